"""Sums of rows in the gradient of an attention, from its result in place of its shares."""

import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import AttentionSums
from tests.support import array
from tests.training_passes.training_step import outline, step

HEADS = "perm = [0, 2, 1, 3]"
LAST = "perm = [0, 1, 3, 2]"
FORWARD = f"o = MatMul (p, v) ot = Transpose <{HEADS}> (o) y = Exp (ot)"
SLOPES = f"g = Transpose <{HEADS}> (gt) vt = Transpose <{LAST}> (v) s = MatMul (g, vt)"
SUM = "m = Mul (s, p) d = ReduceSum (m, last) z = Sub (s, d)"
DOT = "r = Unsqueeze (s, a) c = Unsqueeze (p, b) q = MatMul (r, c) d = Squeeze (q, b) z = Sub (s, d)"

# name: (nodes behind the inputs p [2,3,8,8], v [2,3,8,4] and gt [2,8,3,4], sums changed, outline afterwards)
STEPS = {
    "a sum, as the result lies": (
        f"{FORWARD} {SLOPES} {SUM}",
        1,
        "MatMul Transpose Exp | Transpose Transpose MatMul Mul ReduceSum Transpose Sub",
    ),
    "a product": (
        f"{FORWARD} {SLOPES} {DOT}",
        1,
        "MatMul Transpose Exp | Transpose Transpose MatMul Unsqueeze Unsqueeze MatMul Squeeze Transpose Sub",
    ),
    "of a result that is not transposed": (
        f"o = MatMul (p, v) y = Exp (o) {SLOPES} {SUM}",
        1,
        "MatMul Exp | Transpose Transpose MatMul Mul ReduceSum Sub",
    ),
    "of a result that is transposed otherwise": (
        f"o = MatMul (p, v) ot = Transpose <perm = [2, 0, 1, 3]> (o) y = Exp (ot) {SLOPES} {SUM}",
        1,
        "MatMul Transpose Exp | Transpose Transpose MatMul Mul ReduceSum Sub",
    ),
    "without the result": (f"y = Exp (v) {SLOPES} {SUM}", 0, None),
    "of other shares": (f"w = Exp (p) o = MatMul (w, v) y = Exp (o) {SLOPES} {SUM}", 0, None),
    "of other values": (f"w = Exp (v) o = MatMul (p, w) y = Exp (o) {SLOPES} {SUM}", 0, None),
    "over another axis": (
        f"{FORWARD} {SLOPES} m = Mul (s, p) d = ReduceSum (m, third) z = Sub (s, d)",
        0,
        None,
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_row_is_summed_over_the_result(name, run):
    body, count, expected = STEPS[name]
    model = step(
        f"""(float[2,3,8,8] p, float[2,3,8,4] v, float[2,8,3,4] gt) => (float y, float z)
        <int64[1] last = {{-1}}, int64[1] third = {{2}}, int64[1] a = {{3}}, int64[1] b = {{4}}> {{ {body} }}""",
        "g",
    )
    for output in model.graph.outputs:
        output.shape = output.producer().inputs[0].shape  # in ONNX text, `float y` declares a scalar
    feeds = {"p": array(2, 3, 8, 8, seed=1), "v": array(2, 3, 8, 4, seed=2), "gt": array(2, 8, 3, 4, seed=3)}
    before = run(model, feeds)
    assert run_pass(AttentionSums(), model).count == count
    if expected is not None:
        assert outline(model) == expected
    for old, new in zip(before, run(model, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)


def test_short_rows_of_shares_are_summed_themselves():
    """Rows of the result would be longer."""
    model = step(
        f"""(float[2,4,4] p, float[2,4,8] v, float[2,4,8] g) => (float[2,4,8] y, float[2,4,4] z)
        <int64[1] last = {{-1}}> {{
            y = MatMul (p, v) vt = Transpose <perm = [0, 2, 1]> (v) s = MatMul (g, vt) {SUM}
        }}""",
        "vt",
    )
    assert run_pass(AttentionSums(), model).count == 0
