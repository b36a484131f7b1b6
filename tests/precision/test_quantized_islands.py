"""Low islands that would only cost casts, at level auto."""

import pytest

import amp_transpiler as amp
from tests import support
from tests.support import array, parse

W = array(4, 4, seed=1)
ISLANDS = {
    # name: (body, low nodes)
    "nothing computes, but casts of inputs and outputs are accepted": ("[a] h = Relu (x) [b] y = Tanh (h)", {"a", "b"}),
    "one product keeps its neighbours": ("[a] h = Relu (x) [b] m = MatMul (h, w) [c] y = Tanh (m)", {"a", "b", "c"}),
    "a lone product stays": ("[a] y = MatMul (x, w)", {"a"}),
    "movement alone": (
        "[e] h = Exp (x) [a] s = Transpose (h) [b] t = Transpose (s) [c] u = Transpose (t) [f] y = Exp (u)",
        set(),
    ),
    "many operators are worth two casts": ("[a] h = Relu (x) [b] i = Tanh (h) [c] y = Sigmoid (i)", {"a", "b", "c"}),
    "an island between float32 operators": ("[e] h = Exp (x) [a] r = Relu (h) [f] y = Exp (r)", set()),
    "two cheap operators are not worth two casts": (
        "[e] h = Exp (x) [a] r = Relu (h) [b] s = Tanh (r) [f] y = Exp (s)",
        set(),
    ),
    "Shape reads the result as it is: that is no cast": (
        "[e] h = Exp (x) [a] r = Relu (h) [b] t = Tanh (r) [s] s = Shape (t) [d] y = Reshape (h, s)",
        {"a", "b"},
    ),
    "a float32 output of a low node joins nothing": (
        "[e] h = Exp (x) [a] l, m = LayerNormalization (h, k) [b] r = Tanh (m) [c] s = Sigmoid (r) [f] y = Exp (s)",
        set(),
    ),
    "two islands, one of which computes": (
        "[a] r = Relu (x) [e] h = Exp (r) [b] m = MatMul (h, w) [c] y = Relu (m)",
        {"b", "c"},
    ),
    "joined by what reads both": ("[a] r = Tanh (x) [b] m = MatMul (x, w) [c] y = Add (r, m)", {"a", "b", "c"}),
}


@pytest.mark.parametrize("name", ISLANDS)
def test_which_islands_stay_low(name):
    body, expected = ISLANDS[name]
    weights = {name: values for name, values in {"w": W, "k": W[0]}.items() if f" {name})" in body}
    report = amp.transpile(
        parse(f"(float[N,4] x) => (float[N,A] y) {{ {body} }}", **weights), level="auto", verify=False, prefer="size"
    )
    assert {node for node, precision in support.decisions(report).items() if precision == "low"} == expected
    for node in "abcd":
        if node in support.reasons(report) and node not in expected:
            assert support.reasons(report)[node].startswith("an island: ")


def test_islands_are_left_at_o2():
    report = amp.transpile(parse("(float[4,4] x) => (float[4,4] y) { [a] y = Relu (x) }"), level="O2", verify=False)
    assert support.decisions(report)["a"] == "low"
