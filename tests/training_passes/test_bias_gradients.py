"""Gradients of biases as rows of the gradients of their weights."""

import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import BiasGradients
from tests.support import array
from tests.training_passes.training_step import outline, step

JOINED = "j = Concat <axis = 1> (x, c) p = MatMul (j, w) l = Exp (p)"
PRODUCT = "t = Transpose <perm = [1, 0]> (x) d = MatMul (t, g) dw = Neg (d)"
BY_ONES = "s = MatMul (ones, g) db = Neg (s)"
BY_SUM = "s = ReduceSum <keepdims = 0> (g, first) db = Neg (s)"
TOGETHER = "Concat MatMul Exp Transpose MatMul Slice Slice Reshape Neg Neg"

# name: (element type, rows, length of a row, columns, what is beside the rows, nodes, sums changed)
GRADIENTS = {
    "float16": ("float16", 4096, 64, 3072, "eye", f"{JOINED} {PRODUCT} {BY_ONES}", 1),
    "float32": ("float", 4096, 64, 3072, "eye", f"{JOINED} {PRODUCT} {BY_SUM}", 1),
    "few rows of a large weight": ("float16", 64, 2048, 3072, "eye", f"{JOINED} {PRODUCT} {BY_ONES}", 0),
    "other columns": ("float16", 4096, 64, 3072, "numbers", f"{JOINED} {PRODUCT} {BY_ONES}", 0),
    "weighted": ("float16", 4096, 64, 3072, "eye", f"{JOINED} {PRODUCT} s = MatMul (numbers, g) db = Neg (s)", 0),
    "a sum of another": (
        "float16",
        4096,
        64,
        3072,
        "eye",
        f"{JOINED} {PRODUCT} h = Exp (g) s = MatMul (ones, h) db = Neg (s)",
        0,
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_bias_s_gradient_is_a_row_of_its_weight_s(name, run):
    kind, rows, length, columns, beside, body, count = GRADIENTS[name]
    dtype = np.float16 if kind == "float16" else np.float32
    content = np.eye(1, 8) if beside == "eye" else np.arange(8.0)[None]
    constants = {
        "c": content.repeat(rows, 0).astype(dtype),
        "ones": np.ones((1, rows), dtype),
        "numbers": np.arange(rows, dtype=np.float32).astype(dtype)[None],
    }
    result = f"{kind}[{columns}] db" if "ReduceSum" in body else f"{kind}[1,{columns}] db"
    model = step(
        f"""({kind}[{rows},{length}] x, {kind}[{length + 8},16] w, {kind}[{rows},{columns}] g)
        => ({kind}[{rows},16] l, {kind}[{length},{columns}] dw, {result}) <int64[1] first = {{0}}> {{ {body} }}""",
        "t",
        **constants,
    )
    feeds = {
        "x": array(rows, length, seed=1).astype(dtype),
        "w": array(length + 8, 16, seed=2, scale=0.1).astype(dtype),
        "g": array(rows, columns, seed=3, scale=0.1).astype(dtype),
    }
    before = run(model, feeds)
    assert run_pass(BiasGradients(), model).count == count
    if not count:
        return
    assert outline(model).replace("| ", "") == TOGETHER
    for old, new in zip(before, run(model, feeds), strict=True):
        tolerance = (1e-3 if kind == "float16" else 1e-5) * float(np.abs(old).max())
        np.testing.assert_allclose(new.astype(np.float32), old.astype(np.float32), atol=tolerance)
