"""The benchmark of a device's arithmetic: what counts as covered, noise chosen without a family, runs, the page."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
import bench_arithmetic
from amp_transpiler.targets.arithmetic import arithmetic_of
from programs.arithmetic_page import LIMITS, Figures, chosen, family, figures, held_out, page, stated
from programs.arithmetic_runs import PRODUCT_LEVELS, PRODUCTS, RECURRENT, RECURRENT_LEVELS, TABLE, at_levels, measured
from tests.support import array, parse

H100 = arithmetic_of("H100", "1.31")


def record(model="a/m.onnx", dtype="float16", *, device, emulated=0.01, unmeasured=(), **draws):
    """A record with draws at product levels: `low`, `table`, `high` stand for those of the grid."""
    levels = dict(zip(("low", "table", "high"), PRODUCT_LEVELS, strict=True))
    errors = [[levels[name], 4.0, [emulated, worst]] for name, worst in draws.items()] or [[0.05, 4.0, [emulated]]]
    return {
        "model": model,
        "dtype": dtype,
        "verified": True,
        "emulated_then": emulated,
        "device": device,
        "emulated": emulated,
        "unmeasured": list(unmeasured),
        "errors": errors,
    }


# ---- figures ----
def test_the_levels_of_the_table_are_the_table_s():
    for dtype, (product, recurrent) in TABLE.items():
        assert product in PRODUCT_LEVELS
        assert recurrent in RECURRENT_LEVELS
        for (operator, name), rows in H100.rows.items():
            kind = operator.rpartition("::")[2]
            noises = {row.noise for row in rows if row.noise and row.noise < 1.0}
            if kind in PRODUCTS and name == dtype:
                assert noises == {product}, operator
            if kind in RECURRENT - {"RNN"} and name == dtype:
                assert {row.noise for row in rows} == {recurrent}, operator


def test_other_levels_change_products_and_layers_alone():
    other = at_levels(H100, (0.25, 8.0))
    changed = {operator for (operator, _), rows in H100.rows.items() if rows != other.rows[operator, _]}
    assert {operator.rpartition("::")[2] for operator in changed} == PRODUCTS | RECURRENT
    assert other.row("MatMul", "float16", lambda _: False).noise == 0.25
    assert other.row("Gemm", "float16", lambda name: name == "alpha or beta").noise == 1.0
    assert at_levels(H100, (0.25, 4.0)).rows["LSTM", "float16"] == H100.rows["LSTM", "float16"]


def test_the_larger_error_is_stated():
    assert stated(record(device=0.1, emulated=0.03, table=0.01), TABLE) == 0.03
    assert stated(record(device=0.1, emulated=0.01, table=0.03), TABLE) == 0.03
    assert stated(record(device=0.1, low=0.02, high=0.04), {"float16": (0.25, 2.0)}) == 0.04


FIGURES = [
    # the device's error, what is stated, then: is it covered, is the verdict false, is it caught, is it refused
    (0.0100, 0.01, True, False, False, False),
    (0.0102, 0.01, True, False, False, False),
    (0.0103, 0.01, False, False, False, False),
    (0.0300, 0.01, False, True, False, False),
    (0.0300, 0.021, False, True, True, False),
    (0.0100, 0.03, True, False, False, True),
    (0.0100, math.inf, True, False, False, True),
    (0.0, 0.0, True, False, False, False),
]


@pytest.mark.parametrize(("device", "number", "covered", "false", "caught", "refused"), FIGURES)
def test_what_is_covered_caught_and_refused(device, number, covered, false, caught, refused):
    read = Figures([(record(device=device), number)])
    assert (read.covered, read.false, read.caught, len(read.refused)) == (covered, false, caught, refused)
    assert bool(read.missed) is not covered


def test_what_becomes_an_estimate_counts_where_it_is_good():
    good, bad = (record(device=device, unmeasured=["Log in bfloat16"]) for device in (0.01, LIMITS["float16"] * 2))
    assert Figures([(good, 0.01), (bad, 0.05)]).estimated == ["a/m in float16"]


def test_noise_is_chosen_without_the_family_that_it_judges():
    """One family needs the largest noise. The others do with any, so the first is judged by the smallest."""
    needs = record("silero-vad/m.onnx", device=0.015, low=0.01, table=0.011, high=0.015)
    others = [record(f"{name}/m.onnx", device=0.01, low=0.01, table=0.012, high=0.018) for name in ("onnx-asr", "b")]
    records = [needs, *others]
    outside, noises = held_out(records)
    assert {family(row["model"]) for row in records} == set(noises) == {"silero", "onnx-asr", "the rest"}
    assert noises["silero"]["float16"][0] == PRODUCT_LEVELS[0]
    assert noises["onnx-asr"]["float16"][0] == PRODUCT_LEVELS[2]
    assert outside.missed == ["silero-vad/m in float16"]
    assert chosen(records)["float16"][0] == PRODUCT_LEVELS[2]
    assert figures(records, chosen(records)).covered == 3


def test_the_page_names_what_is_not_covered_and_what_is_another_file():
    other = {**record("b/n.onnx", device=0.02, emulated=0.01), "emulated_then": 0.02}
    text = page([record(device=0.01), other])
    assert "| b/n.onnx | float16 | 1 % | 1 % | 1 % to 1 % | 2 % | 0.50 | not covered |" in text
    assert "Emulated otherwise than on the device's host, by more than 2 %: b/n in float16." in text
    assert "| emulated once | 1 of 2 | 0 of 0 | 0 | 0 |" in text


# ---- runs ----
@pytest.fixture
def folders(tmp_path):
    model = parse(
        "(float[8,16] x) => (float[8,16] y) { h = MatMul (x, w) y = Sigmoid (h) }", w=array(16, 16, scale=2.0)
    )
    (tmp_path / "shipped/swift-f0").mkdir(parents=True)
    source = tmp_path / "shipped/swift-f0/model.onnx"
    onnx.save(model, source)
    np.savez(source.with_name("model.inputs.npz"), x=array(8, 16, seed=1))
    (tmp_path / "old").mkdir()
    for dtype in TABLE:
        low = amp.transpile(source, level="O2", dtype=dtype, verify=False, include=".*")
        target = tmp_path / "old" / bench_arithmetic.conversion_name("swift-f0/model.onnx", dtype)
        amp.save(low.program, target)
    return tmp_path


@pytest.mark.parametrize("dtype", TABLE)
def test_a_conversion_is_measured_at_every_level(folders, dtype):
    source = folders / "shipped/swift-f0/model.onnx"
    conversion = folders / "old" / f"swift-f0__model.auto.{dtype}.onnx"
    feeds = {"x": array(8, 16, seed=1)}
    row = measured(source, conversion, feeds, grid=True)
    assert [tuple(levels) for *levels, _ in row["errors"]] == [(level, 4.0) for level in PRODUCT_LEVELS]
    rules = {errors[0] for *_, errors in row["errors"]}
    assert len(rules) == 1, "the first draw has no noise, whatever its level"
    assert row["unmeasured"] == []
    assert 0.0 < row["emulated"] < 0.05
    if dtype == "bfloat16":
        assert rules.pop() > 1.2 * row["emulated"], "Sigmoid rounds its steps"


def test_what_a_file_has_is_not_done_again(folders, monkeypatch, capsys):
    arguments = ["bench_arithmetic.py", str(folders / "shipped"), str(folders / "old"), "--table", "--only", "swift"]
    monkeypatch.setattr("sys.argv", [*arguments, "--json", str(folders / "found.jsonl")])
    assert bench_arithmetic.main() == 0
    first = (folders / "found.jsonl").read_text()
    assert [json.loads(line)["dtype"] for line in first.splitlines()] == ["float16", "bfloat16"]
    assert "| swift-f0/model.onnx | bfloat16 |" in capsys.readouterr().out
    assert bench_arithmetic.main() == 0
    assert (folders / "found.jsonl").read_text() == first


def test_every_row_of_the_device_is_at_level_auto_and_was_verified():
    rows = list(bench_arithmetic.device_rows())
    assert len(rows) == 68
    assert all(row["verified"] for row in rows)
    assert sum(row["device"] > LIMITS[row["dtype"]] for row in rows) == 3
