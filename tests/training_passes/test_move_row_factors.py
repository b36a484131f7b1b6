"""Row factors of a large 16-bit matrix that products read: applied to the small matrices instead."""

import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import MoveRowFactors
from tests.support import array
from tests.training_passes.training_step import outline, step

F32, F16 = "to = 1", "to = 10"
SCALED = f"w = Cast <{F32}> (g) m = Mul (w, r) z = Cast <{F16}> (m)"
ONES = {"ones": np.ones((1, 6), np.float16)}

# name: (graph of g [6,80] and r [6,1], weights, outline afterwards)
MOVED = {
    "rows of the result": (
        f"""(float16[6,80] g, float[6,1] r, float16[80,3] b) => (float16[6,3] y)
        {{ {SCALED} p = MatMul (z, b) y = Exp (p) }}""",
        {},
        "FLOAT16 MatMul Mul Exp",
    ),
    "columns of the result": (
        f"""(float16[6,80] g, float[6,1] r, float16[3,80] b) => (float16[3,6] y)
        {{ {SCALED} p = Gemm <transB = 1> (b, z) y = Exp (p) }}""",
        {},
        "FLOAT16 Reshape Gemm Mul Exp",
    ),
    "summed over, transposed on the left": (
        f"""(float16[6,80] g, float[6,1] r, float16[6,3] b) => (float16[80,3] y)
        {{ {SCALED} p = Gemm <transA = 1> (z, b) y = Exp (p) }}""",
        {},
        "FLOAT16 Mul Gemm Exp",
    ),
    "summed over, on the right": (
        f"""(float16[6,80] g, float[6,1] r, float16[3,6] b) => (float16[3,80] y)
        {{ {SCALED} p = MatMul (b, z) y = Exp (p) }}""",
        {},
        "FLOAT16 Reshape Mul MatMul Exp",
    ),
    "summed over with another one transposed": (
        f"""(float16[6,80] g, float[6,1] r, float16[3,6] b) => (float16[80,3] y)
        {{ {SCALED} p = Gemm <transA = 1, transB = 1> (z, b) y = Exp (p) }}""",
        {},
        "FLOAT16 Reshape Mul Gemm Exp",
    ),
    "a sum of the rows": (
        f"(float16[6,80] g, float[6,1] r) => (float16[1,80] y) {{ {SCALED} p = MatMul (ones, z) y = Exp (p) }}",
        ONES,
        "FLOAT16 Reshape MatMul Exp",
    ),
    "read by something else, too": (
        f"""(float16[6,80] g, float[6,1] r, float16[80,3] b) => (float16[6,3] y, float16[6,80] u)
        {{ {SCALED} p = MatMul (z, b) y = Exp (p) u = Exp (z) }}""",
        {},
        "FLOAT16 Mul MatMul Exp Exp",
    ),
    "a product that is larger": (
        f"""(float16[6,80] g, float[6,1] r, float16[80,99] b) => (float16[6,99] y)
        {{ {SCALED} p = MatMul (z, b) y = Exp (p) }}""",
        {},
        "FLOAT16 Mul MatMul Exp",
    ),
}
KEPT = {
    "a factor for few numbers": (f"(float16[6,8] g, float[6,1] r) => (float16[6,8] y) {{ {SCALED} y = Exp (z) }}"),
    "a factor a column": f"(float16[6,80] g, float[1,80] r) => (float16[6,80] y) {{ {SCALED} y = Exp (z) }}",
    "the float32 product is read": (
        f"(float16[6,80] g, float[6,1] r) => (float16[6,80] y, float[6,80] u) {{ {SCALED} y = Exp (z) u = Exp (m) }}"
    ),
    "a result of the program": f"(float16[6,80] g, float[6,1] r) => (float16[6,80] z) {{ {SCALED} }}",
}


def feeds(model):
    shapes = {value.name: tuple(value.shape) for value in model.graph.inputs}
    types = {value.name: value.dtype.numpy() for value in model.graph.inputs}
    return {name: array(*shape, scale=0.2).astype(types[name]) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", MOVED)
def test_factors_are_applied_where_there_is_less_to_multiply(name, run):
    text, weights, expected = MOVED[name]
    model = step(text, "p", **weights)
    before = run(model, feeds(model))
    assert run_pass(MoveRowFactors(), model).count == 1
    assert outline(model).replace("| ", "") == expected
    for old, new in zip(before, run(model, feeds(model)), strict=True):
        np.testing.assert_allclose(old.astype("f"), new.astype("f"), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("name", KEPT)
def test_other_products_are_left_alone(name):
    model = step(KEPT[name], "y")
    assert run_pass(MoveRowFactors(), model).count == 0
