"""Evidence: errors that add in squares, and ranges that forbid a node to be low."""

import dataclasses

import pytest

from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.assign import open_choices
from amp_transpiler.precision.constraints import LowForm
from amp_transpiler.precision.evidence import Evidence, TensorRange, near_overflow, range_fault, read_key
from amp_transpiler.precision.frontier import Frontier
from amp_transpiler.systems.choice import Request, choose_policy
from tests.support import array, parse

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
        assert str(fault).startswith(f"'{named}' reaches 1.7e+04 in rain.npz")


def test_a_slot_that_stays_float32_does_not_count():
    form = LowForm(frozenset(), frozenset((0,)))
    assert range_fault(relu(), form, {"x": TensorRange(1e9)}, FLOAT16) is None


def test_candidates_for_overflow_come_largest_first():
    ranges = {"a": TensorRange(2e4), "b": TensorRange(1.0), "c": TensorRange(9e4)}
    assert [name for name, _ in near_overflow(ranges, FLOAT16)] == ["c", "a"]


def test_a_cast_costs_what_is_felt_where_it_is_read():
    """A product beside a skipping sum: the sum stays float32, where nearly all that a cast of h adds would be felt."""
    text = "(float[4,4] x) => (float[4,4] y) { [h] h = MatMul (x, w) [a] a = MatMul (h, w) [y] y = Add (h, a) }"
    model = load(parse(text, w=array(4, 4))).model
    propagate_types(model)
    policy = dataclasses.replace(choose_policy(Request()), objective="low")
    opened = open_choices(model, policy)
    evidence = Evidence(
        node_errors_by_output={"y": {"h": 4.0, "a": 0.01, "y": 4.0}},
        cast_errors_by_output={"y": {"h": 1.0}},
        read_errors_by_output={"y": {read_key("h", "a"): 0.01, read_key("h", "y"): 0.98}},
    )
    frontier = Frontier(opened.choices, opened.weights, evidence, {"y": 1.0})
    cheapest = frontier.cheapest(0.5)
    assert cheapest.low == {"a"}
    assert cheapest.predicted == pytest.approx(0.02**0.5)
    whole = dataclasses.replace(evidence, read_errors_by_output={})
    assert not Frontier(opened.choices, opened.weights, whole, {"y": 1.0}).cheapest(0.5).low
    assert frontier.point({"a", "y"}).predicted == pytest.approx(5.01**0.5), "all who read it: the error of the cast"
