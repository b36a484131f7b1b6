"""The curve of best choices between error and cost: what lies beside its convex hull."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from amp_transpiler.files.loading import load
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision import frontier as frontier_module
from amp_transpiler.precision.assign import open_choices
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.frontier import Frontier
from amp_transpiler.systems.choice import Request, choose_policy
from tests.support import array, parse

TEXT = """(float[4,4] x) => (float[4,4] y, float[4,4] z) {
    [a] y = MatMul (x, w) [b] h = MatMul (x, w) [c] z = Tanh (h) }"""
ERRORS = {"a": 0.95, "b": 0.5, "c": 0.45}


def opened():
    model = load(parse(TEXT, w=array(4, 4))).model
    propagate_types(model)
    return open_choices(model, dataclasses.replace(choose_policy(Request()), objective="low"))


def frontier(errors=ERRORS):
    found = opened()
    return Frontier(found.choices, found.weights, Evidence(node_errors_by_output={"y": errors}), {"y": 1.0})


# limit of the predicted error -> the nodes that are low
CHEAPEST = {1.4: {"a", "b", "c"}, 1.0: {"b", "c"}, 0.8: {"b"}, 0.6: set(), 0.0: set()}


@pytest.mark.parametrize(("limit", "expected"), CHEAPEST.items())
def test_what_no_multiplier_reaches_is_found(limit, expected):
    """Both products come before the Tanh at any price of errors, but both are too much for the second limit."""
    found = frontier().cheapest(limit)
    assert found.low == expected
    assert found.predicted <= limit


def test_what_adds_nothing_stays_low_under_any_limit():
    assert frontier({**ERRORS, "a": 0.0}).cheapest(1e-6).low == {"a"}


def worthwhile_by_hand(found):
    """Return the low nodes of every choice that is the best one of some nodes."""
    one = Frontier(found.choices, found.weights, Evidence(), {})
    names = sorted(one.open_names)
    held = (held for count in range(len(names) + 1) for held in itertools.combinations(names, count))
    return {one._at(0.0, nodes).low for nodes in held}


def branched(text):
    model = load(parse(f"(float[4,4] x) => (float[4,4] y) {{ {text} }}", w=array(4, 4))).model
    propagate_types(model)
    return open_choices(model, dataclasses.replace(choose_policy(Request()), objective="low"))


WORTHWHILE = [
    "[a] h = MatMul (x, w) [b] i = Tanh (h) [c] j = Tanh (x) [d] k = Add (i, j) [e] y = Relu (k)",
    "[a] h = Tanh (x) [b] i = Relu (h) [c] j = MatMul (i, w) [d] k = Transpose (j) [e] l = Add (k, h) [f] y = Neg (l)",
]


@pytest.mark.parametrize("text", WORTHWHILE)
def test_all_choices_that_are_worth_their_casts(text):
    found = branched(text)
    one = Frontier(found.choices, found.weights, Evidence(), {})
    every = worthwhile_by_hand(found)
    assert {point.low for point in one.worthwhile(64)} == every
    assert {point.low for point in one.worthwhile(64, least=3)} == {low for low in every if len(low) >= 3}
    assert one.worthwhile(len(every)) is not None
    assert one.worthwhile(len(every) - 1) is None


def test_choices_beside_another_have_a_node_more_or_less():
    one = frontier()
    assert {point.low for point in one.beside(one.point({"b"}))} == {frozenset(), frozenset("ab"), frozenset("bc")}


def test_choices_by_kinds_of_operators():
    one = frontier()
    assert {kind: point.low for kind, point in one.of_kinds().items()} == {"MatMul": {"a", "b"}, "Tanh": {"c"}}
    assert one.without(["Tanh"]).low == {"a", "b"}
    assert one.without(["MatMul"]).low == frozenset(), "the Tanh alone is not worth its casts"


LAYERS = 8


@pytest.mark.parametrize("seed", range(12))
def test_cuts_that_are_known_beforehand_are_not_solved(seed, monkeypatch):
    """Where choices turn at one place alone, the search for a multiplier goes on without cuts, to the same answer."""
    text = "[m0] v0 = MatMul (x, w) "
    text += " ".join(f"[m{n}] u{n} = MatMul (v{n - 1}, w) [t{n}] v{n} = Tanh (u{n})" for n in range(1, LAYERS))
    model = load(parse(f"(float[4,4] x) => (float[4,4] v{LAYERS - 1}) {{ {text} }}", w=array(4, 4))).model
    propagate_types(model)
    found = open_choices(model, dataclasses.replace(choose_policy(Request()), objective="low"))
    random = np.random.default_rng(seed)
    names = [str(node.name) for node in model.graph]
    errors = {output: dict(zip(names, np.exp(random.normal(-4, 3, len(names))), strict=True)) for output in "yz"}
    cuts, answers = [], []
    for looks in (range(0), frontier_module._LOOKS):
        monkeypatch.setattr(frontier_module, "_LOOKS", looks)
        one = Frontier(found.choices, found.weights, Evidence(node_errors_by_output=errors), {"y": 1.0, "z": 2.0})
        answers.append([one.cheapest(limit).low for limit in (2.0, 1.0, 0.5, 0.2, 0.05)])
        cuts.append(len(one._solved))
    assert answers[0] == answers[1]
    assert cuts[1] < cuts[0]


def test_choices_that_were_looked_at():
    one = frontier()
    assert one.cheapest(1.0) in one.known()
    assert [point.cost for point in one.known()] == sorted(point.cost for point in one.known())


# the room of outputs -> what is low then, beside the second product
WIDENED = [
    ({"y": 0.5, "z": 0.5}, {"a", "b"}),
    ({"y": 0.5, "z": 0.7}, {"a", "b"}),
    ({"y": 0.5, "z": 1.1}, {"a", "b", "c"}),
    ({"y": 0.3, "z": 0.7}, {"b", "c"}),
    ({"y": 0.3, "z": 0.3}, {"b"}),
]


@pytest.mark.parametrize(("rooms", "expected"), WIDENED)
def test_a_choice_takes_more_nodes_in_where_each_output_has_room(rooms, expected):
    """The first product adds to both outputs: no more than each has room for, but more than either in sum."""
    found = opened()
    errors = {"y": {"a": 0.4, "b": 0.3}, "z": {"a": 0.4, "b": 0.3, "c": 0.6}}
    one = Frontier(found.choices, found.weights, Evidence(node_errors_by_output=errors), {"y": 1.0, "z": 1.0})
    assert one.widened(one.point({"b"}), rooms).low == expected


# what the error of all three and of two is found to be -> the nodes that are low then
LEARNED = {
    "the product that is not in both": ([({"a", "b", "c"}, 3.0), ({"b", "c"}, 0.5)], {"b", "c"}),
    "the product that is in both": ([({"a", "b", "c"}, 3.0), ({"b", "c"}, 2.9)], {"a"}),
    "all as predicted": ([({"a", "b", "c"}, 1.378)], {"b", "c"}),
    "an overflow says nothing of one node": ([({"a", "b", "c"}, math.inf)], {"b", "c"}),
}


@pytest.mark.parametrize("name", LEARNED)
def test_measured_choices_correct_what_is_predicted(name):
    runs, expected = LEARNED[name]
    one = frontier()
    for low, error in runs:
        one.learn(one.point(low), {"y": error})
        assert math.isinf(error) or one.predicted(one.point(low)) == pytest.approx(error, rel=0.05)
    assert one.cheapest(1.0).low == expected


def of_text(text, casts=None):
    model = load(parse(text, w=array(4, 4), low=np.float32(1.003e-5), none=np.float32(0.0))).model
    propagate_types(model)
    found = open_choices(model, dataclasses.replace(choose_policy(Request()), objective="low"))
    return Frontier(found.choices, found.weights, Evidence(cast_errors_by_output={"y": casts or {}}), {"y": 1.0})


# an operator between two products, of whose error nothing is predicted -> whether it may be the cause of what is found
ROUNDING = {"Relu (h)": False, "Clip (h, none)": False, "Clip (h, low)": True, "Transpose <perm = [1, 0]> (h)": False}


@pytest.mark.parametrize(("call", "is_blamed"), ROUNDING.items())
def test_what_rounds_nothing_is_not_blamed(call, is_blamed):
    """A Clip at 1.003e-5 rounds that by a little, which its derivative does not tell."""
    one = of_text(f"(float[4,4] x) => (float[4,4] y) {{ [a] h = MatMul (x, w) [r] r = {call} [b] y = MatMul (r, w) }}")
    one.learn(one.point({"a", "r", "b"}), {"y": 2.0})
    squares = {name: one.squares(one.point({name}))["y"] for name in ("r", "a")}
    assert one.squares(one.point({"a", "r", "b"}))["y"] == pytest.approx(4.0)
    assert (squares["r"] < 0.5 * squares["a"]) == (not is_blamed)


def test_a_cast_adds_the_same_wherever_its_numbers_are_moved():
    """Each choice that fails casts another of the values that a Transpose and a Reshape hand on."""
    text = """(float[4,4] x) => (float[2,8] y) {
        [a] h = MatMul (x, w) [t] t = Transpose <perm = [1, 0]> (h) [r] r = Reshape (t, shape) [e] y = Tanh (r) }"""
    text = text.replace("{", "{ shape = Constant <value_ints = [2, 8]> ()", 1)
    one = of_text(text, {"h": 0.01, "t": 0.01, "r": 0.01})
    one.learn(one.point({"e"}), {"y": 2.0})
    blamed = one.squares(one.point({"e"}))["y"] - one.squares(one.point({"r", "t", "a", "e"}))["y"]
    assert blamed > 1.0, "the cast of r fails"
    for low in ({"r", "e"}, {"t", "r", "e"}):
        assert one.predicted(one.point(low)) == pytest.approx(2.0), "so do those of t and h"


def test_a_choice_that_holds_by_chance_clears_nobody():
    """A part of it fails. Errors cancel in an output of few elements."""
    one = frontier()
    one.learn(one.point({"a", "b", "c"}), {"y": 0.4})
    one.learn(one.point({"a", "b"}), {"y": 2.0})
    assert one.predicted(one.point({"a", "b"})) == pytest.approx(2.0)
    assert one.predicted(one.point({"a", "b", "c"})) >= 1.9


def test_errors_as_they_might_be_agree_with_what_was_measured():
    one = frontier()
    one.learn(one.point({"a", "b", "c"}), {"y": 40.0})
    one.learn(one.point({"c"}), {"y": 0.2})
    worlds = one.imagined(32)
    every = one.point({"a", "b", "c"})
    assert all(world.squares(every.low, ())["y"] == pytest.approx(1600.0, rel=0.01) for world in worlds)
    assert not any(one.holds_under(every, world) for world in worlds)
    assert all(one.holds_under(one.point({"c"}), world) for world in worlds)
    held = {tuple(name for name in "ab" if one.holds_under(one.point({name}), world)) for world in worlds}
    assert {("a",), ("b",)} <= held, "either product may be the cause, whichever has more of what was predicted"
    assert {point.low for point in (one.cheapest_under(world, 1.1) for world in worlds)} >= {
        frozenset("bc"),
        frozenset("a"),  # around which a Tanh alone is not worth its casts
    }
