"""Means of weighted float32 rows, as in the gradient of a LayerNormalization, as products with the weights."""

import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import MeanByProducts
from tests.support import array
from tests.training_passes.training_step import outline, step

# name: (graph of g and h [2,3,4] and s [4], nodes changed, outline afterwards)
MEANS = {
    "weighted": ("v = Mul (g, s) m = ReduceMean (v, last) y = Exp (m)", 1, "Reshape MatMul Mul Exp"),
    "weighted, and the product of both is there": (
        "t = Mul (g, h) v = Mul (s, g) w = Mul (v, h) m = ReduceMean (w, last) y = Exp (m) z = Exp (t) u = Exp (v)",
        1,
        "Mul Mul Reshape MatMul Mul Exp Exp Exp",
    ),
    "weighted, and the product of both is not there": (
        "v = Mul (g, s) w = Mul (v, h) m = ReduceMean (w, last) y = Exp (m)",
        1,
        "Mul Reshape MatMul Mul Exp",
    ),
    "not weighted": ("v = Mul (g, h) m = ReduceMean (v, last) y = Exp (m)", 0, None),
    "over another axis": ("v = Mul (g, s) m = ReduceMean (v, first) y = Exp (m)", 0, None),
    "without the axis": ("v = Mul (g, s) m = ReduceMean <keepdims = 0> (v, last) y = Exp (m)", 0, None),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_of_weighted_rows_is_a_product(name, run):
    body, count, expected = MEANS[name]
    results = [f"float {result}" for result in "yzu" if f" {result} = Exp" in body]
    model = step(
        f"""(float[2,3,4] g, float[2,3,4] h, float[4] s) => ({", ".join(results)})
        <int64[1] last = {{-1}}, int64[1] first = {{0}}> {{ {body} }}""",
        "m",
    )
    for output in model.graph.outputs:
        output.shape = output.producer().inputs[0].shape  # in ONNX text, `float y` declares a scalar
    feeds = {"g": array(2, 3, 4, seed=1), "h": array(2, 3, 4, seed=2), "s": array(4, seed=3)}
    before = run(model, feeds)
    assert run_pass(MeanByProducts(), model).count == count
    if expected is not None:
        assert outline(model).replace("| ", "") == expected
    for old, new in zip(before, run(model, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)
