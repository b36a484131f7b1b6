"""Where many small roundings add up, the other 16-bit format is offered."""

import numpy as np
import pytest

import amp_transpiler as amp
from tests.support import array, parse

X = {"x": array(8, 16, seed=9)}
WEIGHTS = {f"w{number}": array(16, 16, seed=number, scale=0.25) for number in range(4)}
GRAPH = """(float[8,16] x) => (float[8,16] y) {
    a = MatMul(x, w0) b = Tanh(a) c = MatMul(b, w1) d = Tanh(c) e = MatMul(d, w2) f = Tanh(e) y = MatMul(f, w3)
}"""


def test_float16_is_offered_where_bfloat16_rounds_too_much():
    diagnosis = amp.debug(parse(GRAPH, **WEIGHTS), inputs=X, dtype="bfloat16", tolerance=0.004)

    assert diagnosis.guilty is not None
    assert diagnosis.guilty.fault == "rounding"
    assert diagnosis.cure is not None
    assert (diagnosis.cure.dtype, diagnosis.cure.nodes) == ("float16", ())
    assert diagnosis.cure.excess <= 1.0


LARGE = GRAPH.replace("y = MatMul(f, w3)", "g = Mul(f, many) h = Mul(g, many) i = Mul(h, few) y = MatMul(i, w3)")


@pytest.mark.parametrize(
    ("graph", "dtype", "tolerance"),
    [
        (GRAPH, "float16", 0.0001),  # bfloat16 rounds more
        (LARGE, "bfloat16", 0.004),  # float16 ends before it
    ],
)
def test_no_format_is_offered_that_does_not_hold(graph, dtype, tolerance):
    constants = {"many": np.float32(1e4), "few": np.float32(1e-4)} if graph is LARGE else {}

    diagnosis = amp.debug(parse(graph, **WEIGHTS, **constants), inputs=X, dtype=dtype, tolerance=tolerance)

    assert diagnosis.excess > 1.0
    assert diagnosis.cure is not None
    assert diagnosis.cure.dtype is None
