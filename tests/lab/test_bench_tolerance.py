"""The benchmark of tolerances: what a bisection by operator kind keeps low, and whether any choice keeps more."""

import dataclasses
import itertools

import numpy as np
import onnx
import pytest

from amp_transpiler.files.loading import load
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.assign import open_choices
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.frontier import Frontier
from amp_transpiler.systems.choice import Request, choose_policy
from bench_tolerance import SHARES, Bisection, examine, low_table, worthwhile
from tests.support import array, parse

MODEL = parse(
    """(float[4,8] x) => (float[4,8] y) {
        [a] h = MatMul (x, v) [b] t = Tanh (h) [c] k = MatMul (t, w) [d] y = Softmax (k) }""",
    v=array(8, 8, seed=1),
    w=array(8, 8, seed=2, scale=4.0),
)


@pytest.fixture
def files(tmp_path):
    onnx.save(MODEL, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", x=array(4, 8, seed=3))
    return tmp_path / "model.onnx", tmp_path / "inputs.npz"


def test_the_most_low_nodes_of_all_choices(files):
    bisection = Bisection(*files)
    error = bisection.record(bisection.o2)["error"]
    assert bisection.most(2.0 * error, 0) == 4, "all of them"
    assert bisection.most(2.0 * error, 4) == 4, "none has more"
    assert bisection.most(0.0, 0) == 0
    assert 0 < bisection.most(0.7 * error, 0) < 4


@pytest.mark.slow
def test_cases_in_which_nothing_has_more_are_told_apart(files):
    record = examine(*files, {})
    assert len(record["most"]) == len(SHARES)
    for ours, other, most in zip(record["low"], record["bisection"], record["most"], strict=True):
        assert (most is None) == (ours["low"] > other["worth"])
        assert most is None or most >= max(ours["low"], other["worth"])
    for ours, other in zip(record["low"], record["bisection"], strict=True):
        ours["low"] = other["worth"] = 1
    record["most"] = [1, 2, None]
    *_, possible, last = low_table({"model": record})
    assert (possible[1], last[1]) == ("3", "2")
    record["low"][0]["low"] = 0
    *_, last = low_table({"model": record})
    assert last[1] == "3", "one that has fewer is never left out"


def worthwhile_by_hand(frontier):
    """Return the low nodes of every choice that is the best one of some nodes."""
    names = sorted(frontier.open_names)
    low = (low for count in range(len(names) + 1) for low in itertools.combinations(names, count))
    return {frontier.extended(frontier.exact, nodes).low for nodes in low}


WORTHWHILE = [
    "[a] h = MatMul (x, w) [b] i = Tanh (h) [c] j = Tanh (x) [d] k = Add (i, j) [e] y = Relu (k)",
    "[a] h = Tanh (x) [b] i = Relu (h) [c] j = MatMul (i, w) [d] k = Transpose (j) [e] l = Add (k, h) [f] y = Neg (l)",
]


@pytest.mark.parametrize("text", WORTHWHILE)
def test_all_choices_that_are_worth_their_casts(text):
    model = load(parse(f"(float[4,4] x) => (float[4,4] y) {{ {text} }}", w=array(4, 4))).model
    propagate_types(model)
    opened = open_choices(model, dataclasses.replace(choose_policy(Request()), objective="low"))
    frontier = Frontier(opened.choices, opened.weights, Evidence(), {})
    every = worthwhile_by_hand(frontier)
    assert {point.low for point in worthwhile(frontier, 64)} == every
    assert {point.low for point in worthwhile(frontier, 64, least=3)} == {low for low in every if len(low) >= 3}
    assert worthwhile(frontier, len(every)) is not None
    assert worthwhile(frontier, len(every) - 1) is None
