"""Nodes at the border of lower precision, at level auto: float32 where that saves a cast."""

import pytest

from tests.cuts import by_rules
from tests.support import array, parse

# name: (outputs, body over h, nodes that are low, casts)
BODIES = {
    "its input is cast for an output anyway": (
        "float[4,4] h, float[4,1] y",
        "[a] r = Relu (h) [e] y = ReduceSum (r, one)",
        set(),
        2,
    ),
    "its input is not": ("float[4,1] y", "[a] r = Relu (h) [e] y = ReduceSum (r, one)", {"a"}, 2),
    "both inputs are float32": (
        "float[4,4] y",
        "[e] e = Exp (h) [f] f = Exp (x) [a] r = Add (e, f) [b] y = MatMul (r, w)",
        {"b"},
        4,
    ),
    "one of two in a row saves nothing by itself": (
        "float[4,4] h, float[4,1] y",
        "[a] r = Relu (h) [b] s = Tanh (r) [e] y = ReduceSum (s, one)",
        {"a", "b"},
        3,
    ),
    "the last of two saves a cast, then the first": (
        "float[4,4] h, float[4,4] r, float[4,1] y",
        "[a] r = Relu (h) [b] s = Tanh (r) [e] y = ReduceSum (s, one)",
        set(),
        2,
    ),
    "a product stays": ("float[4,4] h, float[4,1] y", "[a] r = MatMul (h, w) [e] y = ReduceSum (r, one)", {"a"}, 3),
    "a low reader wants it": (
        "float[4,4] h, float[4,4] y, float[4,4] z",
        "[a] r = Relu (h) [e] y = Exp (r) [b] z = MatMul (r, w)",
        {"a", "b"},
        4,
    ),
}


def test_what_control_flow_passes_on_is_left():
    """Its precision is settled afterwards, by a vote."""
    proto = parse(
        """(float[4,4] x, bool c) => (float[4,4] y) {
            h = MatMul (x, w)
            r = If (c) <then_branch = t () => (float[4,4] p) { [a] p = Relu (h) },
                        else_branch = e () => (float[4,4] q) { q = MatMul (h, w) }>
            y = MatMul (r, w) }""",
        w=array(4, 4),
    )
    conversion, decisions = by_rules(proto)
    assert decisions["a"].precision == "low"
    assert conversion.casts == 2


def convert(name):
    outputs, body, *_ = BODIES[name]
    return by_rules(
        parse(f"(float[4,4] x) => ({outputs}) {{ h = MatMul (x, w) {body} }}", opset=18, w=array(4, 4), one=[1])
    )


@pytest.mark.parametrize("name", BODIES)
def test_which_nodes_are_low(name):
    conversion, decisions = convert(name)
    *_, expected, casts = BODIES[name]
    assert {node for node in "ab" if node in decisions and decisions[node].precision == "low"} == expected
    assert conversion.casts == casts


def test_the_reason_says_so():
    _, decisions = convert("its input is cast for an output anyway")
    assert decisions["a"].reason == "at the border: lower precision costs a cast more here"
