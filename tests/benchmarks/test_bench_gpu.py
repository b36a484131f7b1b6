"""The one run that a GPU is needed for: its parts work on a CPU, and one that fails or hangs does not cost the rest."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
import types
from typing import ClassVar

import numpy as np
import onnx
import pytest

import bench_gpu
from amp_transpiler.runtime.provider_options import EXACT_FLOAT32
from gpu import inference, table
from gpu.conversions import VARIANTS
from gpu.records import Task, Unavailable, attempt
from tests.support import parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "bench_gpu.py"


def run(*arguments: str, out: pathlib.Path) -> dict:
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    command = [sys.executable, str(SCRIPT), "--smoke", "--json", str(out), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return json.loads(out.read_text())


@pytest.mark.slow
def test_a_smoke_run_measures_inference_training_and_truths(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    chosen = ["--programs", "pointwise", "raf", "kernels"]
    kinds = ["--only", "truths", "training", "torch_training", "inference", "torch"]
    found = run(*kinds, *chosen, out=tmp_path / "gpu.json")
    done = {(part["kind"], part["name"]): part["ended"] for part in found["parts"]}
    assert set(done.values()) == {"done"}, done
    rows = {(row["kind"], row["variant"], row["dtype"]): row for row in found["records"]}
    for variant in VARIANTS:
        row = rows["inference", variant.name, variant.dtype]
        assert row["ms"] > 0, row
        assert row["predicted_launches"] > 0
        assert row["error"] < 0.1
    assert rows["inference", "O2", "float16"]["error_from_emulation"] < 1e-6
    losses = [row["loss"] for row in found["records"] if "training" in row["kind"]]
    assert len(losses) == 6
    assert all(loss < 5 for loss in losses)  # below ln 50 times a little: they are of the same network
    assert sum(row["variant"] == "truth" for row in found["records"]) == 12


@pytest.mark.slow
def test_it_starts_on_the_stand_ins(counted, tmp_path):
    """Nothing computes there, so that outputs are wrong; but every part of ours finds its way to the provider."""
    options = ["--smoke", "--place", "cuda", "--device", "H100", "--json", str(tmp_path / "out")]
    program = textwrap.dedent(f"""
        import json, runpy, sys
        sys.argv = ["bench_gpu.py", *{options}, "--only", "training", "--programs", "rocm"]
        try:
            runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
        except SystemExit as end:
            print(json.dumps(end.code))
    """)
    assert counted.program(program) == 0
    found = json.loads((tmp_path / "out").read_text())
    rows = {row["variant"]: row for row in found["records"]}
    assert {variant: "failed" in row for variant, row in rows.items()} == dict.fromkeys(rows, False)
    assert all(row["predicted_ms"] > 0 for row in rows.values())
    assert set(rows) == {"fp32", "torch", "O2", "O2, CUDA graph"}
    assert found["model"]["training"]["programs"] == 4


class _Device:
    """A session on a device with TF32, which is wrong by a thousandth where it may take TF32."""

    opened: ClassVar[list[dict[str, str]]] = []

    def __init__(self, *_, provider_options=None, **_others):
        self.opened.append(dict(provider_options or {}))
        self.tf32, self.cuda_graph, self.cpu_nodes = "use_tf32" not in self.opened[-1], False, ()
        self.outputs = [types.SimpleNamespace(name="y")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, feeds):
        return [feeds["x"] * (1.001 if self.tf32 else 1.0)]

    def bind(self, _):
        return lambda: None


@pytest.mark.parametrize(
    ("variant", "body", "options", "error"),
    [
        ("fp32.float32", "y = MatMul (x, w)", [{}, EXACT_FLOAT32], 0.0),
        ("auto.float16", "h = Cast <to = 10> (x) z = MatMul (h, h) y = Cast <to = 1> (z)", [{}], 0.001),
    ],
)
def test_errors_are_told_without_tf32(tmp_path, monkeypatch, variant, body, options, error):
    model = parse(f"(float[2,2] x) => (float[2,2] y) {{ {body} }}", w=np.eye(2, dtype=np.float32))
    onnx.save(model, tmp_path / f"net.{variant}.onnx")
    x = np.ones((2, 2), np.float32)
    np.savez(tmp_path / "net.feeds.npz", x=x)
    np.savez(tmp_path / "net.fp32.float32.npz", y=x)
    monkeypatch.setattr(inference.amp, "Session", _Device)
    monkeypatch.setattr(inference, "predictions", lambda *_args, **_options: {})
    monkeypatch.setattr(_Device, "opened", [])
    task = part(tmp_path, "inference", "net")
    inference.inference(task)
    [found] = task.found()
    assert _Device.opened == options
    assert found["error"] == pytest.approx(error, abs=1e-6)
    assert ("error_with_tf32" in found) == (len(options) == 2)


def test_without_a_gpu_it_says_so_and_ends_with_2(monkeypatch, capsys):
    monkeypatch.setattr(bench_gpu, "driver_device_count", lambda: 0)
    monkeypatch.setattr("sys.argv", ["bench_gpu.py"])
    assert bench_gpu.main() == 2
    assert "no NVIDIA GPU answers" in capsys.readouterr().err


def part(tmp_path, kind, name):
    return Task(kind, name, "cpu", tmp_path, tiny=True)


def test_a_part_that_hangs_is_stopped_and_one_that_cannot_run_is_skipped(tmp_path, monkeypatch):
    script = tmp_path / "gpu" / "part.py"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent("""
            import json, sys, time
            name = json.load(open(sys.argv[1]))["name"]
            if name == "hangs":
                time.sleep(60)
            if name == "lacks":
                print("transformers not installed", file=sys.stderr)
            sys.exit({"lacks": 3, "fails": 1}.get(name, 0))
        """)
    )
    monkeypatch.setattr(bench_gpu, "SCRIPTS", tmp_path)
    monkeypatch.setitem(bench_gpu.KINDS, "truths", 1.5)
    kinds = {"hangs": "truths", "lacks": "training", "fails": "training", "works": "training"}
    parts = bench_gpu.run_all([part(tmp_path, kind, name) for name, kind in kinds.items()], 300)
    assert [row.name for row in parts] == list(kinds)
    ended = {row.name: row.ended for row in parts}
    assert ended["works"] == "done"
    assert ended["lacks"] == "skipped: transformers not installed"
    assert ended["hangs"].startswith("stopped after")
    assert ended["fails"].startswith("failed")


def test_when_no_time_is_left_parts_are_named(tmp_path):
    (only,) = bench_gpu.run_all([part(tmp_path, "truths", "kernels")], 0)
    assert only.ended == "skipped: no time was left"


def test_a_failure_is_a_record_and_what_was_found_before_it_stays(tmp_path):
    task = part(tmp_path, "inference", "pointwise")
    attempt(task, "fp32", "float32", lambda: {"ms": 1.0})

    def fail():
        raise ValueError("what\nwent wrong")

    def lack():
        raise Unavailable("no transformers")

    attempt(task, "O2", "float16", fail)
    with pytest.raises(Unavailable):
        attempt(task, "auto", "float16", lack)
    first, second = task.found()
    assert (first["ms"], second["failed"]) == (1.0, "ValueError: what went wrong")


def record(**given):
    plain = {"kind": "inference", "name": "pointwise", "variant": "O2", "dtype": "float16", "ms": 2.0, "p90_ms": 3.0}
    return plain | given


@pytest.mark.parametrize(
    ("row", "faulty"),
    [
        (record(error_from_emulation=0.002), False),
        (record(error_from_emulation=0.02), True),
        (record(error_from_emulation=float("inf")), True),
        (record(error_from_emulation=0.02, dtype="bfloat16"), False),
        (record(failed="ValueError: no"), True),
        (record(failed="ValueError: no", variant="onnxruntime"), False),
        (record(failed="ValueError: no", kind="torch", variant="torch eager"), False),
    ],
)
def test_only_what_is_ours_is_a_fault(row, faulty):
    assert bool(list(table.faults({"parts": [], "records": [row]}))) == faulty


def test_times_are_held_against_float32_and_the_model():
    records = [
        record(variant="fp32", dtype="float32", ms=4.0, predicted_ms=2.0),
        record(ms=2.0, predicted_ms=4.0, error=0.01, memory=2**21),
        record(kind="torch", variant="torch eager", ms=8.0),
    ]
    cells = table.cells(records[1], records)
    assert cells[4:9] == ["2.000", "3.000", "2.00", "2", "1.00%"]
    assert table.cells(records[2], records)[6] == "0.50"
    assert table.against_the_model(records)["inference"] == {"mean": 1.0, "least": 0.5, "most": 2.0, "programs": 2}


@pytest.mark.parametrize(
    ("device", "row"),
    [
        ("NVIDIA H100 80GB HBM3, 580.1, 81559 MiB", "H100"),
        ("NVIDIA H200, 580.1, 143771 MiB", "H200"),
        ("NVIDIA GeForce RTX 4090, 550.1, 24564 MiB", "RTX4090"),
        ("Tesla T4, 535.1, 15360 MiB", "T4"),
        ("NVIDIA GeForce GTX 1080, 535.1, 8192 MiB", None),
    ],
)
def test_the_cost_model_s_row_is_found_by_the_device_s_name(device, row):
    assert bench_gpu.row_of(device) == row
