"""The curve of best choices between error and cost: what lies beside its convex hull."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from amp_transpiler.files.loading import load
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision import frontier as frontier_module
from amp_transpiler.precision.assign import open_choices
from amp_transpiler.precision.evidence import Evidence, read_key
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
    opening = opened()
    return Frontier(opening.choices, opening.weights, Evidence(node_errors_by_output={"y": errors}), {"y": 1.0})


# limit of the predicted error -> the nodes that are low
CHEAPEST = {1.4: {"a", "b", "c"}, 1.0: {"b", "c"}, 0.8: {"b"}, 0.6: set(), 0.0: set()}


@pytest.mark.parametrize(("limit", "expected"), CHEAPEST.items())
def test_what_no_multiplier_reaches_is_found(limit, expected):
    """Both products come before the Tanh at any price of errors, but both are too much for the second limit."""
    cheapest = frontier().cheapest(limit)
    assert cheapest.low == expected
    assert cheapest.predicted <= limit


def test_what_adds_nothing_stays_low_under_any_limit():
    assert frontier({**ERRORS, "a": 0.0}).cheapest(1e-6).low == {"a"}


# low nodes of a choice, nodes that may be low besides -> those that are
EXTENDED = {
    "one product more": ("b", "a", {"a", "b"}),
    "all that may be": ("b", "ac", {"a", "b", "c"}),
    "nothing that is not worth its casts": ("", "c", set()),
    "what is low stays": ("c", "", {"c"}),
}


@pytest.mark.parametrize("name", EXTENDED)
def test_choices_that_extend_others(name):
    low, others, expected = EXTENDED[name]
    solver = frontier()
    assert solver.extended(solver.point({*low}), others).low == expected


LAYERS = 8


@pytest.mark.parametrize("seed", range(12))
def test_few_cuts_are_solved_for_a_bound(seed, monkeypatch):
    """The price at which two choices cost the same leads to the neighbours of the hull, as many cuts by halving do."""
    text = "[m0] v0 = MatMul (x, w) "
    text += " ".join(f"[m{n}] u{n} = MatMul (v{n - 1}, w) [t{n}] v{n} = Tanh (u{n})" for n in range(1, LAYERS))
    model = load(parse(f"(float[4,4] x) => (float[4,4] v{LAYERS - 1}) {{ {text} }}", w=array(4, 4))).model
    propagate_types(model)
    opening = open_choices(model, dataclasses.replace(choose_policy(Request()), objective="low"))
    random = np.random.default_rng(seed)
    names = [str(node.name) for node in model.graph]
    errors = {"y": dict(zip(names, np.exp(random.normal(-4, 3, len(names))), strict=True))}
    monkeypatch.setattr(frontier_module, "_HOLDS", 1)

    def solver():
        return Frontier(opening.choices, opening.weights, Evidence(node_errors_by_output=errors), {"y": 1.0})

    halving = solver()
    by_halving = [halving._at(float(price)) for price in np.exp(np.linspace(-30, 30, 600))]
    for limit in (1.0, 0.5, 0.2, 0.05):
        direct = solver()
        chosen = direct.cheapest(limit)
        assert len(direct._known) <= 16
        assert chosen.cost <= min(
            point.cost for point in (*by_halving, halving.exact) if halving.predicted(point) <= limit
        )


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
    opening = opened()
    errors = {"y": {"a": 0.4, "b": 0.3}, "z": {"a": 0.4, "b": 0.3, "c": 0.6}}
    solver = Frontier(opening.choices, opening.weights, Evidence(node_errors_by_output=errors), {"y": 1.0, "z": 1.0})
    assert solver.widened(solver.point({"b"}), rooms).low == expected


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
    solver = frontier()
    for low, error in runs:
        solver.learn(solver.point(low), {"y": error})
        assert math.isinf(error) or solver.predicted(solver.point(low)) == pytest.approx(error, rel=0.05)
    assert solver.cheapest(1.0).low == expected


def of_text(text, casts=None):
    model = load(parse(text, w=array(4, 4), low=np.float32(1.003e-5), none=np.float32(0.0))).model
    propagate_types(model)
    opening = open_choices(model, dataclasses.replace(choose_policy(Request()), objective="low"))
    return Frontier(opening.choices, opening.weights, Evidence(cast_errors_by_output={"y": casts or {}}), {"y": 1.0})


# an operator between two products, of whose error nothing is predicted -> whether it may be the cause of what is found
ROUNDING = {"Relu (h)": False, "Clip (h, none)": False, "Clip (h, low)": True, "Transpose <perm = [1, 0]> (h)": False}


@pytest.mark.parametrize(("call", "is_blamed"), ROUNDING.items())
def test_what_rounds_nothing_is_not_blamed(call, is_blamed):
    """A Clip at 1.003e-5 rounds that by a little, which its derivative does not tell."""
    solver = of_text(
        f"(float[4,4] x) => (float[4,4] y) {{ [a] h = MatMul (x, w) [r] r = {call} [b] y = MatMul (r, w) }}"
    )
    solver.learn(solver.point({"a", "r", "b"}), {"y": 2.0})
    squares = {name: solver.squares(solver.point({name}))["y"] for name in ("r", "a")}
    assert solver.squares(solver.point({"a", "r", "b"}))["y"] == pytest.approx(4.0)
    assert (squares["r"] < 0.5 * squares["a"]) == (not is_blamed)


@pytest.mark.parametrize("price", np.exp(np.linspace(-12.0, 6.0, 19)))
def test_a_cut_counts_every_error(price):
    """All low costs next to nothing but for what the first product feels of its cast: so that is no plain choice."""
    model = load(parse("(float[4,4] x) => (float[4,4] y) { [a] h = MatMul (x, w) [b] y = Tanh (h) }", w=array(4, 4)))
    propagate_types(model.model)
    opening = open_choices(model.model, dataclasses.replace(choose_policy(Request()), objective="low"))
    evidence = Evidence(
        node_errors_by_output={"y": {"a": 1e-4, "b": 1e-4}},
        cast_errors_by_output={"y": {"x": 60.0, "h": 1e-4}},
        read_errors_by_output={"y": {read_key("x", "a"): 60.0, read_key("h", "b"): 1e-4}},
    )
    solver = Frontier(opening.choices, opening.weights, evidence, {"y": 1.0})
    chosen = solver._at(float(price))
    costs = {
        point.low: point.cost + price * solver._error(point, ()) for point in map(solver.point, ("", "a", "b", "ab"))
    }
    assert chosen.cost + price * solver._error(chosen, ()) == pytest.approx(min(costs.values()))


def test_a_cast_adds_the_same_wherever_its_numbers_are_moved():
    """Each choice that fails casts another of the values that a Transpose and a Reshape hand on."""
    text = """(float[4,4] x) => (float[2,8] y) {
        [a] h = MatMul (x, w) [t] t = Transpose <perm = [1, 0]> (h) [r] r = Reshape (t, shape) [e] y = Tanh (r) }"""
    text = text.replace("{", "{ shape = Constant <value_ints = [2, 8]> ()", 1)
    solver = of_text(text, {"h": 0.01, "t": 0.01, "r": 0.01})
    solver.learn(solver.point({"e"}), {"y": 2.0})
    blamed = solver.squares(solver.point({"e"}))["y"] - solver.squares(solver.point({"r", "t", "a", "e"}))["y"]
    assert blamed > 1.0, "the cast of r fails"
    for low in ({"r", "e"}, {"t", "r", "e"}):
        assert solver.predicted(solver.point(low)) == pytest.approx(2.0), "so do those of t and h"


def test_a_choice_that_holds_by_chance_clears_nobody():
    """A part of it fails. Errors cancel in an output of few elements."""
    solver = frontier()
    solver.learn(solver.point({"a", "b", "c"}), {"y": 0.4})
    solver.learn(solver.point({"a", "b"}), {"y": 2.0})
    assert solver.predicted(solver.point({"a", "b"})) == pytest.approx(2.0)
    assert solver.predicted(solver.point({"a", "b", "c"})) >= 1.9
