"""A cure holds, and nothing of it can be left out; on small graphs it is as small as any set that holds."""

import contextlib
import dataclasses
import itertools
import types

import hypothesis
import numpy as np
import pytest
from hypothesis import given, strategies

import amp_transpiler as amp
from amp_transpiler.diagnosis.cure import CureSearch, find_cure, units_of
from amp_transpiler.diagnosis.subject import subject_of
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.report.diagnosis import Suspect
from amp_transpiler.verification.accuracy import make_reference
from amp_transpiler.verification.conversions import Conversions, judging_arithmetic
from tests.diagnosis.findings import HEAD, findings_of
from tests.support import array, parse

# ---- the search, on conversions that are only a rule ----


@dataclasses.dataclass(frozen=True)
class Policy:
    forced_high: dict


class Rule:
    """Conversions that keep the limits where a rule holds of the nodes in float32."""

    def __init__(self, holds):
        self._holds, self.policy, self.tried = holds, Policy({}), []

    def measured(self, policy):
        nodes = frozenset(policy.forced_high)
        self.tried.append(nodes)
        return types.SimpleNamespace(excess=0.5 if self._holds(nodes) else 2.0)


NODES = tuple("abcdefgh")
parts = strategies.sets(strategies.sampled_from(NODES), min_size=1, max_size=4)


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
@given(strategies.lists(parts, min_size=1, max_size=3), strategies.lists(parts, max_size=6), strategies.booleans())
def test_what_is_returned_holds_and_has_nothing_to_spare(ways, units, with_all):
    rule = Rule(lambda nodes: any(way <= nodes for way in ways))
    units = [tuple(sorted(unit)) for unit in units] + ([NODES] if with_all else [])
    cure = find_cure(rule, units)
    reached = {name for unit in units for name in unit}
    if cure is None:
        assert not any(way <= reached for way in ways)
        return
    nodes = set(cure.nodes)
    assert nodes in ways  # each way has nothing to spare, unless another is a part of it
    assert len(rule.tried) == len(set(rule.tried)) == cure.runs


def test_what_holds_as_it_is_needs_no_node():
    rule = Rule(lambda _: True)
    assert find_cure(rule, [("a",), NODES]).nodes == ()
    assert len(rule.tried) == 1


def test_the_likeliest_unit_comes_first():
    rule = Rule(lambda nodes: bool({"a", "c"} & nodes))
    assert find_cure(rule, [("c",), ("a",), NODES]).nodes == ("c",)
    assert rule.tried == [frozenset(), frozenset("c")]


def test_where_nothing_holds():
    assert find_cure(Rule(lambda _: False), [("a",), NODES]) is None
    assert find_cure(Rule(lambda _: False), []) is None


def test_few_units_are_asked_first_and_no_run_is_repeated():
    many = tuple(f"n{number}" for number in range(500))
    rule = Rule(lambda nodes: nodes >= {many[3], many[40]})
    search = CureSearch(rule, [(name,) for name in many])

    assert search.find_few() is None
    assert set(search.find().nodes) == {many[3], many[40]}
    assert len(rule.tried) == len(set(rule.tried)) == search.runs


def test_hundreds_of_nodes_take_few_runs():
    many = tuple(f"n{number}" for number in range(500))
    cure = find_cure(Rule(lambda nodes: nodes >= {"n3", "n77", "n400"}), [(name,) for name in many[:40]] + [many])
    assert {"n3", "n77", "n400"} <= set(cure.nodes)
    assert cure.runs <= 100


# what a node does wrong -> the nodes that must be float32 for it
UNITS = {
    "rounding": ("b",),
    "constant": ("b",),
    "overflow": ("b", "c"),
    "vanishing": ("b", "c"),
}


@pytest.mark.parametrize("fault", UNITS)
def test_the_nodes_that_a_fault_takes(fault):
    suspects = [Suspect(node="b", op="Sigmoid", value="i", fault=fault, contribution=1.0, why="")]
    assert units_of(findings_of(), suspects) == [UNITS[fault], ("a", "b", "c")]


def test_nodes_without_a_partner_go_with_the_one_behind_them():
    fused = HEAD + " { z = Cast<to=10> (x) [a] r = com.microsoft.Fused (z) y = Cast<to=1> (r) }"
    suspects = [Suspect(node="c", op="MatMul", value="y", fault="rounding", contribution=1.0, why="")]
    assert set(units_of(findings_of(fused), suspects)[0]) == {"a", "b", "c"}


def test_a_node_of_the_low_program_only():
    suspects = [Suspect(node="cast", op="Cast", value="r", fault="kernel", contribution=1.0, why="")]
    assert units_of(findings_of(), suspects)[0] == ("cast",)


# ---- real conversions, against a search through every set ----


@contextlib.contextmanager
def no_phase(_):
    yield


def conversions_of(model, inputs, tolerance=0.02):
    options = ConversionOptions(level="O2", dtype="float16", target="cuda", tolerance=tolerance, fuse="none")
    subject = subject_of(model, None, options)
    reference = make_reference(subject.source, subject.prepared, inputs)
    arithmetic = judging_arithmetic(subject.prepared, subject.policy)
    return Conversions(subject.prepared, subject.policy, subject.ranges, reference, None, no_phase, arithmetic)


def holds(conversions, nodes):
    words = Reason("words", {"words": "a test"})
    forced = {**conversions.policy.forced_high, **dict.fromkeys(nodes, words)}
    return conversions.measured(dataclasses.replace(conversions.policy, forced_high=forced)).excess <= 1.0


def smaller(conversions, names, count):
    """Return the sets of fewer nodes than a number that keep the limits in float32."""
    sets = itertools.chain.from_iterable(itertools.combinations(names, size) for size in range(count))
    return [nodes for nodes in sets if holds(conversions, nodes)]


TAIL = "[n] n = LayerNormalization (t, g, b) [o] y = MatMul (n, w)"
GRAPHS = {
    "one overflow": f"[a] h = Mul (x, big) [s] s = Mul (h, h) [t] t = Mul (s, small) {TAIL}",
    "an overflow in a sum": f"[a] h = Mul (x, big) [c] c = MatMul (h, v) [s] s = Mul (c, c) [t] t = Add (s, x) {TAIL}",
    "numbers that vanish": f"[a] h = Mul (x, small) [s] s = Mul (h, h) [t] t = Mul (s, back) {TAIL}",
    "rounding of a sum": f"[a] h = Add (x, big) [s] s = Sub (h, big) [t] t = Relu (s) {TAIL}",
    "two faults": f"[a] h = Mul (x, big) [s] s = Mul (h, h) [l] l = Sqrt (s) [p] p = Mul (x, small) [q] q = Mul (p, p)"
    f" [r] r = Mul (q, back) [t] t = Mul (l, r) {TAIL}",
}


def model_of(nodes):
    return parse(
        f"(float[2,4] x) => (float[2,4] y) {{ {nodes} }}",
        big=np.float32(2000.0),
        small=np.float32(1e-5),
        back=np.float32(1e8),
        v=array(4, 4, low=0.2, seed=4),
        w=array(4, 4),
        g=1.0 + array(4, seed=2, scale=0.1),
        b=array(4, seed=3, scale=0.1),
    )


@pytest.mark.parametrize("case", GRAPHS)
def test_the_cure_is_the_smallest(case):
    model, inputs = model_of(GRAPHS[case]), {"x": array(2, 4, low=0.5, seed=6)}
    cure = amp.debug(model, inputs=inputs).cure
    conversions = conversions_of(model, inputs)
    names = [node.name for node in model.graph.node]
    assert holds(conversions, cure.nodes)
    assert smaller(conversions, names, len(cure.nodes)) == []


def test_a_cure_may_be_the_whole_model():
    nodes = "[a] h = MatMul (x, w) [b] i = Relu (h) [c] y = MatMul (i, w)"
    model, inputs = model_of(nodes), {"x": array(2, 4, low=0.5, seed=6)}
    diagnosis = amp.debug(model, inputs=inputs, tolerance=1e-7)
    assert diagnosis.cure is not None
    assert {"a", "c"} <= set(diagnosis.cure.nodes)
    assert diagnosis.cure.excess <= 1.0
