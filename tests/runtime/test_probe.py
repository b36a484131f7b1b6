"""The probe of kernels' arithmetic: its graphs run, its formulas tell kernels apart, its rows say what was asked."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import textwrap

import ml_dtypes
import numpy as np
import onnx
import pytest

from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16, FLOAT32
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.probe import answers
from amp_transpiler.runtime.probe.answers import answer, distance
from amp_transpiler.runtime.probe.arithmetic import Rounding, every_pattern, tf32
from amp_transpiler.runtime.probe.catalogue import FORMATS, GROUPS, questions
from amp_transpiler.runtime.probe.keeping import Summary, keep, summarize
from amp_transpiler.runtime.probe.measure import device_row, measure
from amp_transpiler.runtime.probe.question import SINGLE, Question

ALL = list(questions())


def question(body="y = Add (x, z)", low=FLOAT16, candidates=None, repeats=1, **inputs):
    single = {SINGLE: lambda r, x, z: r(x + z)}
    return Question("test", "Add", "some", low, body, inputs, candidates or single, repeats=repeats)


# ---- the catalogue ----
def test_there_are_some_500_questions_in_three_formats_and_no_two_are_alike():
    assert len(ALL) > 500
    names = collections.Counter((row.probe, row.op, row.condition, row.low.name) for row in ALL)
    assert [name for name, count in names.items() if count > 1] == []
    assert {row.low for row in ALL} == set(FORMATS)
    assert {row.probe for row in ALL} >= {
        "unary",
        "tail",
        "reduction",
        "product",
        "accumulator",
        "followed",
        "attention",
    }


def test_every_graph_is_valid_by_its_schemas():
    for row in ALL:
        if row.low is not BFLOAT16:  # in which some operators have no form before a later opset
            inferred = onnx.shape_inference.infer_shapes(row.model(), strict_mode=True)  # the output's shape
            onnx.checker.check_model(inferred, full_check=True)


def test_every_question_has_the_one_rounding_as_its_first_candidate():
    assert {next(iter(row.candidates)) for row in ALL} == {SINGLE}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_each_group_is_answered_on_the_cpu_in_float32_within_float32_errors(group):
    """The CPU's kernels are the oracle of the formulas: in float32 nothing is rounded between."""
    asked = list(group(FLOAT32))
    for row in asked:
        reply = answer(row, CPUPlace())
        single = reply["candidates"][SINGLE]
        assert single["nonfinite"] == 0, row
        limit = 2e-3 if row.op == "Gelu" else 5e-6  # one element of GELU alone, in the approximation of the CPU
        assert single["relative"] is None or single["relative"] < limit, (row, single)
    assert asked or group.__name__ in ("unary", "casts")


def test_every_bit_pattern_is_asked():
    for low in (FLOAT16, BFLOAT16):
        patterns = every_pattern(low)
        assert patterns.dtype == low.numpy
        assert len(np.unique(patterns.view(np.uint16))) == 2**16


# ---- arithmetic ----
@pytest.mark.parametrize(("low", "dtype"), [(FLOAT16, np.float16), (BFLOAT16, ml_dtypes.bfloat16)])
def test_rounding_is_the_format_s(low, dtype):
    values = np.random.default_rng(0).normal(0, 10, 1000)
    assert np.array_equal(Rounding(low)(values), values.astype(np.float32).astype(dtype).astype(np.float64))


def test_tf32_keeps_ten_bits_and_rounds_ties_to_even():
    unit = 2.0**-10
    assert tf32(np.array([1 + unit, 1 + unit / 2, 1 + 1.5 * unit, -1 - 0.6 * unit])).tolist() == [
        1 + unit,
        1.0,
        1 + 2 * unit,
        -1 - unit,
    ]


def test_bfloat16_s_stepwise_sigmoid_loses_small_probabilities():
    x = np.array([-8.0, -3.0, 0.0, 3.0])
    stepwise = Rounding(BFLOAT16).sigmoid(x)
    assert stepwise[0] == 0.0  # 3.4e-4 in one rounding
    assert stepwise[2] == 0.5
    assert stepwise[1] + stepwise[3] == 1.0


def test_a_sum_in_turn_stops_growing_where_a_half_rounds_away():
    ones = np.ones((1, 3000))
    assert Rounding(FLOAT16).in_turn(ones, 1).tolist() == [2048.0]
    assert Rounding(BFLOAT16).in_turn(ones, 1).tolist() == [256.0]


# ---- distance ----
def test_a_distance_is_in_units_in_the_last_place():
    reply = distance(np.array([1 + 2.0**-10, 4.0]), np.array([1.0, 4.0]), FLOAT16)
    assert (reply["max_ulp"], reply["differing"], reply["nonfinite"], reply["of"]) == (1.0, 1, 0, 2)
    assert reply["rms_ulp"] == pytest.approx(math.sqrt(0.5), abs=1e-5)
    assert reply["relative"] == pytest.approx(2.0**-10 / math.sqrt(17), rel=1e-2)


def test_other_kinds_of_numbers_differ_and_equal_ones_do_not():
    result = np.array([np.nan, np.inf, np.inf, 1.0, np.nan])
    expected = np.array([np.nan, np.inf, -np.inf, np.nan, np.nan])
    reply = distance(result, expected, FLOAT16)
    assert (reply["differing"], reply["nonfinite"]) == (2, 2)


# ---- answers ----
def test_the_candidate_that_gives_every_bit_is_named():
    random = np.random.default_rng(0)
    candidates = {
        SINGLE: lambda r, x, z: r(x + z + 1),
        "true": lambda r, x, z: r(x + z),
        "shorter": lambda r, x, z: x[:1],
    }
    asked = question(candidates=candidates, repeats=2, x=random.normal(size=9), z=random.normal(size=9))
    reply = answer(asked, CPUPlace())
    assert (reply["is"], reply["deterministic"]) == ("true", True)
    assert reply["candidates"][SINGLE]["differing"] == 9
    assert reply["candidates"]["shorter"] == {"shape": [1], "device_shape": [9]}
    sums = (asked.feeds()["x"] + asked.feeds()["z"]).view(np.uint16)
    assert reply["sample_bits"] == sums.tolist()
    assert "refused" not in reply


def test_the_same_inputs_and_outputs_have_the_same_digests():
    x = np.linspace(0, 1, 5)
    first, again, other = (answer(question(x=x, z=z), CPUPlace()) for z in (x, x, x + 1))
    assert first["inputs_sha256"] == again["inputs_sha256"] != other["inputs_sha256"]
    assert first["outputs_sha256"] == again["outputs_sha256"] != other["outputs_sha256"]


def test_a_refusal_is_an_answer():
    reply = answer(question("y = Sigmoid (x)", BFLOAT16, x=np.ones(3)), CPUPlace())
    assert "Sigmoid" in reply["refused"]
    assert "is" not in reply


def test_a_kernel_that_answers_differently_is_told(monkeypatch):
    class Restless:
        def __init__(self):
            self.count = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, feeds, _fetch):
            self.count += 1
            return [feeds["x"] + np.float16(self.count)]

    monkeypatch.setattr(answers.Session, "over", lambda *_: Restless())
    asked = question("y = Add (x, x)", candidates={SINGLE: lambda r, x: r(2 * x)}, repeats=3, x=np.ones(4))
    assert answer(asked, CPUPlace())["deterministic"] is False
    assert answer(dataclasses.replace(asked, repeats=1), CPUPlace())["deterministic"] is None


def test_a_row_says_what_it_depends_on():
    [row] = measure(CPUPlace(), [question(x=np.ones(2), z=np.ones(2))])
    assert {key: row[key] for key in device_row(CPUPlace())} == device_row(CPUPlace())
    assert list(row) == [
        *("device", "sm", "driver", "onnxruntime", "cuda", "cudnn", "options", "probe", "op", "format", "condition"),
        *("candidates", "is", "deterministic", "inputs_sha256", "outputs_sha256", "sample_bits"),
    ]


@pytest.mark.slow
def test_all_of_it_opens_on_the_cuda_provider(counted):
    """On the stand-ins: whatever nobody has a kernel for is refused, and nothing else runs on the CPU."""
    program = """
        import json
        from amp_transpiler.runtime.places import CUDAPlace
        from amp_transpiler.runtime.probe.measure import measure
        rows = list(measure(CUDAPlace(0)))
        refused = [row["format"] for row in rows if "refused" in row]
        cpu = [row["op"] for row in rows if "on_cpu" in row]
        print(json.dumps({"rows": len(rows), "refused": refused, "cpu": cpu}))
    """
    reply = counted.program(textwrap.dedent(program))
    assert reply["rows"] == len(ALL)
    assert reply["cpu"] == []
    assert set(reply["refused"]) == {"bfloat16"}
    assert len(reply["refused"]) < 80


# ---- what is kept ----
def answered(op="Exp", low="float16", **more):
    single = {"max_ulp": 0.0, "nonfinite": 0, "differing": 0}
    plain = {"op": op, "format": low, "is": SINGLE, "deterministic": None, "candidates": {SINGLE: single}}
    return plain | more


def tried(ulps, nonfinite=0):
    return {SINGLE: {"max_ulp": ulps, "nonfinite": nonfinite, "differing": 1}}


def test_rows_are_summed_by_what_a_user_should_know():
    rows = [
        answered(),
        answered(**{"is": None, "candidates": tried(1.0)}),
        answered(**{"is": "steps", "candidates": tried(9.0)}),
        answered("Sum", **{"is": None, "candidates": tried(0.0, nonfinite=1)}, deterministic=False),
        answered("Mul", "float32", **{"is": None, "candidates": tried(9.0)}),
        answered("Elu", on_cpu=["Elu"]),
        {"op": "Log", "format": "bfloat16", "refused": "no kernel"},
    ]
    assert summarize(rows) == Summary(
        7, 1, 1, ("Sum float16 (1 of 1)",), ("Exp float16 (1 of 3)", "Sum float16 (1 of 1)")
    )


def kept(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_rows_of_a_device_are_kept_in_place_of_older_ones(monkeypatch, tmp_path):
    monkeypatch.setenv("AMP_TRANSPILER_CACHE", str(tmp_path))
    rows = list(measure(CPUPlace(), [question(x=np.ones(2), z=np.ones(2)), question(x=np.ones(3), z=np.ones(3))]))
    path = keep(rows)
    assert path.is_relative_to(tmp_path)
    assert path.name.startswith("CPU_ort")
    assert kept(path) == rows
    assert keep(rows[:1]) == path
    assert kept(path) == rows[:1]


def test_rows_of_another_driver_lie_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("AMP_TRANSPILER_CACHE", str(tmp_path))
    rows = list(measure(CPUPlace(), [question(x=np.ones(2), z=np.ones(2))]))
    assert keep(rows) != keep([row | {"driver": "1.2"} for row in rows])


def test_where_nothing_is_kept_there_is_no_file(monkeypatch):
    monkeypatch.setenv("AMP_TRANSPILER_CACHE", "off")
    assert keep(list(measure(CPUPlace(), [question(x=np.ones(2), z=np.ones(2))]))) is None
