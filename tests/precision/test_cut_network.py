"""Programs as numbers of a cut: every choice of small programs is carried out, and its casts are counted."""

import dataclasses
import itertools
import math
import re

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.precision.assign import open_choices
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import Constraints, LowForm
from amp_transpiler.precision.cut_network import choices
from tests.cuts import casts_left, prepared
from tests.support import array, parse

W = array(4, 4, seed=1, scale=0.5)
FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16}


@dataclasses.dataclass
class Unit:
    """A float32 node costs `node`, a cast costs one."""

    node: float = 1.5
    cast: float = 1.0

    def low(self, _node):
        return 0.0

    def high(self, _node):
        return self.node

    def cast_to_low(self, _value):
        return self.cast

    def cast_to_high(self, _value):
        return self.cast


IF = """h = MatMul (x, w)
    r = If (c) <then_branch = t () => (float[4,4] p) { p = Relu (h) },
                else_branch = e () => (float[4,4] q) { q = Exp (h) }>
    y = Tanh (r)"""
NESTED = """h = MatMul (x, w)
    r = If (c) <then_branch = t () => (float[4,4] p) {
                    p = If (c) <then_branch = t2 () => (float[4,4] p2) { p2 = Relu (h) },
                                else_branch = e2 () => (float[4,4] q2) { q2 = Neg (x) }> },
                else_branch = e () => (float[4,4] q) { q = MatMul (h, w) }>
    y = Exp (r)"""
LOOP = """h = Relu (x) z = Exp (x)
    r, s = Loop (n, c, h) <body = b (int64 i, bool k, float[4,4] a) => (bool k2, float[4,4] a2, float[4,4] o) {
        k2 = Identity (k) a2 = MatMul (a, w) o = Mul (a, z) }>
    t = ReduceMax <keepdims = 0> (s, nought) y = Add (r, t)"""
SCAN = """h = Relu (x)
    f, s = Scan <num_scan_inputs = 1, body = b (float[4] a, float[4] v) => (float[4] a2, float[4] o) {
        a2 = Add (a, v) o = Tanh (v) }> (row, h)
    y = Add (s, f)"""
PROGRAMS = {
    # a row holds inputs beside x, outputs, and the body
    "a chain": ("", "float[4,4] y", "a = Relu (x) b = Exp (a) d = Tanh (b) y = MatMul (d, w)"),
    "one cast for many readers": (
        "",
        "float[4,4] y",
        "e = Exp (x) a = Relu (e) b = Tanh (e) d = Neg (e) y = Sum (a, b, d)",
    ),
    "a value that is an output too": ("", "float[4,4] a, float[4,4] y", "a = Relu (x) b = Tanh (a) y = Exp (b)"),
    "outputs that stay float32": (
        "",
        "float[4,4] y, float[4,1] m",
        "h = Relu (x) y, m = LayerNormalization (h, k)",
    ),
    "inputs that stay float32": (
        "float[4] s, ",
        "float[N,C,H,V] y",
        "h = Relu (x) u = Unsqueeze (h, axes) y = Resize (u, , s)",
    ),
    "a GELU is one item": (
        "",
        "float[4,4] y",
        "h = Relu (x) d = Div (h, two) e = Erf (d) f = Add (e, one) g = Mul (h, f) i = Mul (g, half) y = Exp (i)",
    ),
    "a branch": ("bool c, ", "float[4,4] y", IF),
    "nested branches": ("bool c, ", "float[4,4] y", NESTED),
    "a loop's state and its scan output": ("", "float[4,4] y", LOOP),
    "a scan's inputs": ("", "float[4,4] y", SCAN),
    "casts of integers": (
        "int64[4,4] i, ",
        "float[4,4] y",
        "f = Cast <to = 1> (i) g = Cast <to = 1> (i) a = Mul (f, x) b = Exp (f) d = Add (g, a) y = Add (d, b)",
    ),
    "casts from float16": (
        "float16[4,4] l, ",
        "float[4,4] y, float16[4,4] z",
        "f = Cast <to = 1> (l) a = Mul (f, x) b = Exp (f) y = Add (a, b) g = Relu (a) z = Cast <to = 10> (g)",
    ),
    "casts to float32 of float32": (
        "",
        "float[4,4] y",
        "a = Relu (x) f = Cast <to = 1> (a) b = Tanh (f) d = Exp (f) y = Add (b, d)",
    ),
    "a cast to double": ("", "double[4,4] f, float[4,4] y", "a = Relu (x) f = Cast <to = 11> (a) y = Tanh (a)"),
    "a body whose meaning is unknown": (
        "",
        "float[4,4] y",
        """h = Relu (x) s = SequenceConstruct (h)
        r = SequenceMap <body = b (float[4,4] a) => (float[4,4] o) { o = Tanh (a) }> (s)
        t = SequenceAt (r, nought) y = Neg (t)""",
    ),
    "nobody reads it as float": ("", "int64[2] y", "a = Relu (x) b = Tanh (a) y = Shape (b)"),
}


def program_of(name):
    inputs, outputs, body = PROGRAMS[name]
    constants = {
        "w": W,
        "k": W[0],
        "row": W[1],
        "two": np.float32(2**0.5),
        "one": np.float32(1),
        "half": np.float32(0.5),
        "axes": np.array([0, 1]),
        "nought": np.array([0]),
    }
    used = {key: value for key, value in constants.items() if re.search(rf"[ (]{key}[,)]", body)}
    counts = "<int64 n = {3}, bool c = {1}>" if "Loop" in body else ""
    return parse(f"({inputs}float[4,4] x) => ({outputs}) {counts} {{ {body} }}", **used)


@pytest.mark.parametrize("low_io", [(), ("x", "y")], ids=["float32 outside", "low outside"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_casts_of_every_choice_are_foreseen(name, low_io):
    """And the cut finds the cheapest of all programs that can be made."""
    weights, costs = Unit(), {}
    prepared_once, policy, ranges = prepared(program_of(name), objective="low", low_io=frozenset(low_io))
    network = open_choices(prepared_once.model, policy, ranges).choices.weighed(weights)
    for low in itertools.product((False, True), repeat=len(network.problem.low)):
        if any(is_low and item_cost is None for is_low, item_cost in zip(low, network.problem.low, strict=True)):
            continue
        program = prepared_once.clone()
        again = open_choices(program.model, policy, ranges)
        chosen = again.choices.decide(low)
        assert casts_left(program, again.assignment(low)) == len(chosen.casts), low
        high = sum(len(network.nodes(item)) for item, is_low in enumerate(low) if not is_low)
        costs[low] = weights.node * high + len(chosen.casts)
    best = min(costs.values())
    assert costs[tuple(network.solve())] == best
    assert sum(network.solve()) == min(sum(low) for low, cost in costs.items() if cost == best)


def names(nodes):
    return {node.name for node in nodes}


def named(model, weights, **options):
    """The choices of a program whose every node with a float may be low, except where `fixed` says otherwise."""
    program, policy, _ = prepared(model)
    nodes = {node.name: node for node in program.model.graph}
    constraints = Constraints(program.model, policy.target, policy.low)
    fixed = options.pop("fixed", {})
    forms = {node: constraints.of(node).form for name, node in nodes.items() if name not in fixed}
    decided = {nodes[name]: decision for name, decision in fixed.items()}
    together = [[nodes[name] for name in group] for group in options.pop("together", ())]
    return choices(program.model, forms, decided, together, weights, low=FLOAT16, **options)


CHAIN = "(float[4,4] x) => (float[4,4] y) { [a] p = Relu (x) [b] q = Tanh (p) [c] y = Sigmoid (q) }"


def low_names(found):
    return names(found.decide(found.solve()).low)


def test_nodes_that_share_one_precision_are_one_item():
    network = named(parse(CHAIN), Unit(node=1), together=[["b", "a"], ["b", "c"]])
    assert names(network.nodes(0)) == {"a", "b", "c"}
    assert low_names(network) == {"a", "b", "c"}


def test_a_whole_is_float32_where_a_part_must_be():
    must = {"b": Decision("high", "it must")}
    network = named(parse(CHAIN), Unit(node=9), together=[["a", "b"]], fixed=must)
    assert low_names(network) == {"c"}
    assert low_names(named(parse(CHAIN), Unit(node=9), fixed=must)) == {"a", "c"}


def test_a_whole_is_free_where_another_part_is_low_by_force_or_has_no_precision():
    b = Decision("low", "by force", LowForm(frozenset({0}), frozenset({0})), forced=True)
    for fixed in (b, Decision("untouched", "it takes any", takes_any=True)):
        network = named(parse(CHAIN), Unit(node=9), together=[["a", "b"]], fixed={"b": fixed})
        assert low_names(network) == {"a", "c"}


def test_a_float32_node_whose_result_is_stored_low():
    """Its float32 readers read the rounded numbers through a cast."""
    for rounded, expected in ((frozenset(), set()), (frozenset({0}), {"c"})):
        stored = Decision("high", "it rounds its result", rounded=rounded)
        body = "[a] p = Relu (x) [b] q = Tanh (p) [c] y = Sigmoid (q)"
        network = named(
            parse(f"(float[4,4] x) => (float[4,4] y) {{ {body} }}"),
            Unit(node=0.5),
            fixed={"a": Decision("high", "it must"), "b": stored},
        )
        assert low_names(network) == expected


def test_outputs_as_computed_need_no_cast():
    assert low_names(named(parse(CHAIN), Unit(node=0.5))) == set()
    assert low_names(named(parse(CHAIN), Unit(node=0.5), outputs_as_computed=True)) == {"a", "b", "c"}


@dataclasses.dataclass
class Forbids(Unit):
    """`b` cannot be low at any price."""

    price: float = math.inf

    def low(self, node):
        return self.price if node.name == "b" else 0.0


@pytest.mark.parametrize("price", [math.inf, 1e300, 1e30])
def test_a_cost_that_forbids_does_not_blur_the_others(price):
    assert low_names(named(parse(CHAIN), Forbids(node=2.25, price=price))) == {"a", "c"}
    assert low_names(named(parse(CHAIN), Forbids(node=2.0, price=price))) == set()


def test_an_error_of_one_read_counts_in_full():
    """All low costs next to nothing but for one read, so it is no choice to cap the costs by."""

    def felt(value, nodes):
        return 60.0 if value.name == "x" and names(nodes) == {"a"} else 0.0

    text = "{ [a] p, q = Split <num_outputs = 2> (x) [b] y = Mul (p, q) }"
    weights = Unit(node=9, cast=1e-6)
    plain = named(parse(f"(float[4,4] x) => (float[2,4] y) {text}"), weights)
    assert low_names(plain) == {"a", "b"}
    assert low_names(plain.weighed(weights, felt)) == {"b"}


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_unit_of_the_weights_makes_no_difference(scale):
    network = named(parse(CHAIN), Unit(node=2.25 * scale, cast=scale))
    low = network.solve()
    assert sum(low) == 3
    assert network.problem.cost(low) * network.unit == pytest.approx(2 * scale, rel=1e-9)


def test_the_same_choices_under_other_weights():
    network = named(parse(CHAIN), Unit(node=0.1))
    assert low_names(network) == set()
    assert low_names(network.weighed(Unit(node=1))) == {"a", "b", "c"}


def test_nothing_costs_anything():
    assert low_names(named(parse(CHAIN), Unit(node=0, cast=0))) == set()


def test_islands_are_what_might_be_low_and_is_not():
    body = "[a] p = Relu (x) [e] e = Exp (p) [b] q = Tanh (e) [c] y = Sigmoid (q) [d] z = Neg (e)"
    must = {"e": Decision("high", "it must")}
    network = named(parse(f"(float[4,4] x) => (float[4,4] y, float[4,4] z) {{ {body} }}"), Unit(0.1), fixed=must)
    none = [False] * len(network.problem.low)
    islands = {frozenset(names(island.nodes)): island.casts for island in network.islands(none)}
    assert islands == {frozenset("a"): 2, frozenset("bcd"): 3}
    assert network.islands([True] * len(none)) == []
