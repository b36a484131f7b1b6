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


FLOAT32 = {
    "rows of the result": ("float[6,3] y", "p = MatMul (z, b) y = Exp (p)", "MatMul Mul Exp"),
    "a sum of the rows": (
        "float[80] y",
        "p = ReduceSum <keepdims = 0> (z, zero) y = Exp (p)",
        "Reshape MatMul Reshape Exp",
    ),
    "a sum and a product": (
        "float[6,3] y, float[1,80] s",
        "p = MatMul (z, b) y = Exp (p) q = ReduceSum (z, zero) s = Exp (q)",
        "MatMul Mul Exp Reshape MatMul Exp",
    ),
}
ROUNDED = f"h = Cast <{F16}> (z) c = Cast <{F16}> (b) p = MatMul (h, c)"
FLOAT32["rounded for a product, and summed"] = (
    "float[6,3] y, float[1,80] s",
    f"{ROUNDED} e = Exp (p) y = Cast <{F32}> (e) q = ReduceSum (z, zero) s = Exp (q)",
    "FLOAT16 FLOAT16 FLOAT16 MatMul Mul Exp FLOAT Reshape MatMul Exp",
)
FLOAT32_KEPT = {
    "rounded for others": ("float16[6,80] y", f"h = Cast <{F16}> (z) y = Exp (h)"),
    "another reader": ("float[6,3] y, float[6,80] s", "p = MatMul (z, b) y = Exp (p) s = Exp (z)"),
    "a sum of columns": ("float[6,1] y", "y = ReduceSum (z, last)"),
    "a sum that is an output": ("float[1,80] s", "s = ReduceSum (z, zero)"),
    "an output": ("float[6,3] y, float[6,80] z", "p = MatMul (z, b) y = Exp (p)"),
}


def float32_model(outputs, body):
    text = f"""(float[6,80] g, float[6,1] r, float[80,3] b) => ({outputs})
        <int64[1] zero = {{0}}, int64[1] last = {{1}}> {{ z = Mul (g, r) {body} }}"""
    return step(text, "z")


@pytest.mark.parametrize("name", FLOAT32)
def test_float32_factors_are_applied_where_that_is_asked_for(name, run):
    outputs, body, after = FLOAT32[name]
    model = float32_model(outputs, body)
    feeds = {"g": array(6, 80), "r": array(6, 1, seed=1), "b": array(80, 3, seed=2, scale=0.1)}
    assert run_pass(MoveRowFactors(), model.clone()).count == 0
    before = run(model, feeds)
    assert run_pass(MoveRowFactors(float32=True), model).count == 1
    assert outline(model).removeprefix("| ") == after
    for old, new in zip(before, run(model, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=2e-3 if "rounded" in name else 2e-5)


@pytest.mark.parametrize("name", FLOAT32_KEPT)
def test_other_float32_factors_stay(name):
    assert run_pass(MoveRowFactors(float32=True), float32_model(*FLOAT32_KEPT[name])).count == 0
