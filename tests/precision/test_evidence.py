"""Evidence: errors that add in squares, and ranges that forbid a node to be low."""

import pytest

from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.loading import load
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.constraints import LowForm
from amp_transpiler.precision.evidence import Evidence, TensorRange, near_overflow, range_fault
from tests.support import parse

FORM = LowForm(frozenset((0,)), frozenset((0,)))


def relu():
    model = load(parse("(float[2] x) => (float[2] y) { y = Relu(x) }")).model
    propagate_types(model)
    return next(iter(model.graph))


BY_OUTPUT = {"y": {"a": 9e-6, "b": 16e-6}, "z": {"b": 1e-6}}


@pytest.mark.parametrize(
    ("nodes", "casts", "output", "expected"),
    [
        (["a"], [], "y", 3e-3),
        (["a", "b"], [], "y", 5e-3),
        (["a", "b"], [], None, 5e-3),
        (["b"], [], "z", 1e-3),
        (["a"], ["x"], "y", 5e-3),
        (["unknown"], [], None, 0.0),
        ([], [], None, 0.0),
    ],
)
def test_errors_add_in_squares(nodes, casts, output, expected):
    evidence = Evidence(node_errors_by_output=BY_OUTPUT, cast_errors_by_output={"y": {"x": 16e-6}})
    assert evidence.predicted(nodes, casts, output) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ranges", "low", "headroom", "named"),
    [
        ({}, FLOAT16, 4.0, None),
        ({"x": 16000.0}, FLOAT16, 4.0, None),
        ({"x": 17000.0}, FLOAT16, 4.0, "x"),
        ({"y": 17000.0}, FLOAT16, 4.0, "y"),
        ({"x": 17000.0}, FLOAT16, 2.0, None),
        ({"x": 17000.0}, BFLOAT16, 4.0, None),
        ({"other": 1e9}, FLOAT16, 4.0, None),
    ],
)
def test_a_node_may_be_low_only_if_its_range_fits_with_headroom(ranges, low, headroom, named):
    seen = {name: TensorRange(largest, sample="rain.npz") for name, largest in ranges.items()}
    fault = range_fault(relu(), FORM, seen, low, headroom)
    assert (fault is None) == (named is None)
    if named:
        assert fault.startswith(f"'{named}' reaches 1.7e+04 in rain.npz")


def test_a_slot_that_stays_float32_does_not_count():
    form = LowForm(frozenset(), frozenset((0,)))
    assert range_fault(relu(), form, {"x": TensorRange(1e9)}, FLOAT16) is None


def test_candidates_for_overflow_come_largest_first():
    ranges = {"a": TensorRange(2e4), "b": TensorRange(1.0), "c": TensorRange(9e4)}
    assert [name for name, _ in near_overflow(ranges, FLOAT16)] == ["c", "a"]
