"""The measured networks: the same in static programs and in PyTorch; the model of their cost holds what is counted."""

from __future__ import annotations

import json
import math
import pathlib
import subprocess
import sys

import pytest

from programs import leftover, ours, training_page
from programs.sizes import NETWORKS, feeds_of, small

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", NETWORKS)
def test_both_have_as_many_parameters(name):
    pytest.importorskip("torch", reason="torch is not installed")
    from programs.in_torch import model_of

    network = small(NETWORKS[name])
    mine = sum(math.prod(parameter.shape) for parameter in ours.training_step(network).main.all_parameters())
    assert mine == sum(parameter.numel() for parameter in model_of(network).parameters())


@pytest.mark.parametrize("name", ["raf", "rocm", "cnn_cpu"])
def test_feeds_fit_the_program(name):
    network = small(NETWORKS[name])
    step = ours.training_step(network)
    feeds = feeds_of(network)
    assert {key: array.shape for key, array in feeds.items()} == {key: tuple(step.main.var(key).shape) for key in feeds}


def test_torch_s_step_is_counted_by_operators():
    pytest.importorskip("torch", reason="torch is not installed")
    from torch_counts import count_training

    network = NETWORKS["transformer"]
    wide, low = count_training(network, None), count_training(network, "float16")
    assert wide.by_name()["attention"] == low.by_name()["attention backward"] == 4
    assert wide.by_name()["mm"] == low.by_name()["mm"]
    assert not wide.by_name()["_to_copy"]
    # Casts of 52 weights and biases there and back, of the activations before products, normalisations and the loss.
    assert 100 < low.by_name()["_to_copy"] < 200
    assert low.by_name()["unscale and check"] == low.by_name()["fused adamw"] == 1
    flops = {dtype: sum(op.flops for op in counts.operators) for dtype, counts in (("wide", wide), ("low", low))}
    assert flops["wide"] == flops["low"]
    # Forward and backward: six times the weights of the products times the tokens, and attention's products.
    weights = 4 * (4 * 768**2 + 2 * 768 * 3072) + 768**2 + 768 * 30522
    tokens = 32 * 128
    assert flops["wide"] == 6 * weights * tokens + 4 * 14 * tokens * 128 * 768
    assert {op.rate for op in low.operators if op.flops} == {"float16"}


def test_views_and_empty_tensors_are_no_operators():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch_counts import _Counter

    x = torch.empty(4, 8, device="meta")
    counter = _Counter()
    with counter:
        y = (x.t().reshape(2, 16).expand(3, 2, 16) + 1).view(-1)
        torch.empty_like(y)
    assert [(op.name, op.bytes) for op in counter.operators] == [("clone", 256), ("add", 4 * 32 + 4 * 96)]


def step_record(launches: int, operators: dict[str, int]) -> dict:
    times = {"ms": 1.0, "graph_ms": 0.5, "busy_ms": 0.4, "exact_busy_ms": 0.6}
    predicted = dict.fromkeys(training_page.DEVICES, times)
    return {
        "launches": launches,
        "casts": operators.get("Cast", 0),
        "bytes": 3e9,
        "cast_bytes": 1e9,
        "memory": {"in_use_peak": 2**20 * 7},
        "reserved": 2**20 * 9,
        "by_operator": operators,
        "predicted": predicted,
        "graphs": {"plain": 2**20 * 9, "turns": 2**20 * 15, "in_place": None if launches == 6 else 2**20 * 10},
    }


def found() -> dict:
    predicted = {name: {"ms": 0.25} for name in training_page.DEVICES}
    torch_steps = [
        {"network": "raf", "dtype": dtype, "launches": 4, "bytes": 2e9, "by_operator": {"mm": 3, "add": 1}}
        | {"predicted": predicted}
        for dtype in ("float32", "float16")
    ]
    steps = [
        {"network": "raf", "level": "fp32", "dtype": "float32", "ours": step_record(6, {"Gemm": 4, "Mul": 2})},
        {"network": "raf", "level": "O2", "dtype": "float16", "ours": step_record(9, {"Gemm": 4, "Mul": 2, "Cast": 3})},
    ]
    times = [{"what": "step", "network": "transformer_cpu", "layers": 2, "ours": 0.02, "torch": 0.01, "ratio": 2.0}]
    left = leftover.rows(steps, torch_steps)
    return {"steps": steps, "torch": torch_steps, "cpu": times, "leftover": left, "layouts": 3}


def test_what_is_left_beyond_torch_s_count_is_named_by_work():
    rows = {row["work"]: (row["level"], row["ours"], row["torch"]) for row in found()["leftover"]}
    assert rows == {"matrix products": ("O2", 4, 3), "casts": ("O2", 3, 0), "elementwise": ("O2", 2, 1)}


def test_steps_that_were_counted_earlier_are_left_out():
    assert leftover.rows(found()["steps"], []) == []


def test_operators_are_named_with_their_numbers():
    assert leftover.rows(found()["steps"], found()["torch"])[0]["operators"] == "Gemm 4"


def test_tables_have_a_row_for_each_step_and_rows_have_names_of_their_own():
    tables = training_page.tables(found())
    assert "| RAF's BERT, one layer, O2 float16 | 9 | 3 | 3.00 | 1.00 | 7 | 9 | 1.50 |" in tables
    assert "| RAF's BERT, one layer, PyTorch, float16 | 4 | 0 | 2.00 |  |  |  |  |" in tables
    assert "| RAF's BERT, one layer, O2 float16, GB | 3.00 | 9.00 | 0.33 | 2.00 | 1.50 |" in tables
    assert "| RAF's BERT, one layer, O2 float16, MB | 9 | 15 | 10 |" in tables
    assert "| RAF's BERT, one layer, fp32, MB | 9 | 15 | not possible |" in tables
    assert "| transformer, layers: 2: step | 20.0 | 10.0 | 2.00 |" in tables
    names = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| ")]
    assert len(names) == len(set(names))


def test_the_page_says_what_was_measured_and_how():
    page = training_page.page(found())
    assert "the\nleast of three layouts of addresses" in page
    assert page.count("\n## ") == 6
    assert training_page.tables(found()).splitlines()[0] in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raf", "rocm", "resnet18", "transformer"])
@pytest.mark.parametrize("level", ["fp32", "O1", "O2"])
def test_predicted_launches_and_copies_are_those_counted(counted_step, name, level):
    step = counted_step(name, level, "float16")
    assert step["predicted_launches"] == step["launches"]
    assert step["copied"] == step["memcpy"].get("DtoD", {"bytes": 0})["bytes"]


@pytest.mark.slow
def test_the_script_prints_its_tables(tmp_path, counted):
    counted.program("print(1)")  # skips where nothing can be counted
    pytest.importorskip("torch", reason="torch is not installed")
    options = ["--small", "--networks", "rocm", "--levels", "O2", "--dtypes", "float16", "--no-cpu"]
    command = [sys.executable, str(ROOT / "lab" / "bench_training.py"), *options, "--json", str(tmp_path / "out")]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'lab'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| ROCm's network, O2 float16 |" in done.stdout
    (step,) = json.loads((tmp_path / "out").read_text())["steps"]
    assert step["ours"]["reserved"] > 0
