"""Large float32 gradients times a root, by the products that make them."""

import numpy as np
import pytest

from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import FuseProducts
from amp_transpiler.update_passes import ScaleGradients
from tests.support import array
from tests.training_passes.training_step import outline, step

AVERAGES = "m1 = Mul (g, tenth) m = Add (m0, m1) s1 = Mul (g, g) s2 = Mul (s1, rest) v = Add (v0, s2)"
PRODUCT = "t = Transpose <perm = [1, 0]> (x) p = MatMul (t, d)"
SCATTERED = 'k = ScatterND <reduction = "add"> (p, i, u) g = Reshape (k, all)'

# name: (nodes that make the gradient and the averages, gradients changed, Muls left)
GRADIENTS = {
    "a product": (f"{PRODUCT} g = Reshape (p, all) {AVERAGES}", 1, 2),
    "by Gemm": (f"p = Gemm <transA = 1, alpha = 0.5> (x, d) g = Reshape (p, all) {AVERAGES}", 1, 2),
    "products beside each other": (
        f"{PRODUCT} c = Concat <axis = 0> (lower, upper) g = Reshape (c, all) {AVERAGES}".replace(
            "c =", "z = MatMul (t, e) lower = Slice (z, none, half) upper = Slice (p, half, full) c ="
        ),
        1,
        2,
    ),
    "both halves of one product": (
        f"""{PRODUCT} lower = Slice (p, none, half) upper = Slice (p, half, full) c = Concat <axis = 0> (upper, lower)
        g = Reshape (c, all) {AVERAGES}""",
        0,
        3,
    ),
    "rows of a product": (
        f"""w = MatMul (y, d) r = Slice (w, none, full) a = Slice (w, full, more) b = Neg (a)
        g = Reshape (r, all) {AVERAGES}""",
        1,
        3,
    ),
    "rows of a product that are handed out": (
        f"w = MatMul (y, d) r = Slice (w, none, full) b = Slice (w, full, more) g = Reshape (r, all) {AVERAGES}",
        0,
        3,
    ),
    "scattered onto": (f"{PRODUCT} {SCATTERED} {AVERAGES}", 1, 3),
    "the gradient is read elsewhere": (f"{PRODUCT} g = Reshape (p, all) q = Neg (g) {AVERAGES}", 0, 3),
    "the product is read elsewhere": (f"{PRODUCT} q = Neg (p) g = Reshape (p, all) {AVERAGES}", 0, 3),
    "no product": (f"{PRODUCT} o = Neg (p) g = Reshape (o, all) {AVERAGES}", 0, 3),
    "decayed": (f"{PRODUCT} o = Add (p, p) g = Reshape (o, all) {AVERAGES}", 0, 3),
    "one average": (
        f"{PRODUCT} g = Reshape (p, all) m = Add (m0, g) s1 = Mul (g, g) s2 = Mul (s1, rest) v = Add (v0, s2)",
        0,
        2,
    ),
}


@pytest.mark.parametrize("case", GRADIENTS.values(), ids=GRADIENTS)
def test_averages_of_scaled_gradients_are_the_same(case, run):
    body, count, left = case
    more = ", float[8,1024] b" if " b = " in body else ", float[1024,1024] q" if "q = Neg (p)" in body else ""
    more = ", float[1048576] q" if "q = Neg (g)" in body else more
    model = step(
        f"""(float[16,1024] x, float[1032,16] y, float[16,1024] d, float[16,1024] e, float[1048576] m0,
        float[1048576] v0, int64[4,1] i, float[4,1024] u) => (float[1048576] m, float[1048576] v{more})
        <int64[1] all = {{-1}}, int64[1] none = {{0}}, int64[1] half = {{512}}, int64[1] full = {{1024}},
        int64[1] more = {{1032}}, float tenth = {{0.1}}, float rest = {{0.001}}> {{ {body} }}""",
        "none",
    )
    for node in model.graph:
        is_update = {value.name for value in node.outputs} & {"m1", "m", "s1", "s2", "v"}
        node.metadata_props[ROLE_KEY] = "optimize" if is_update else "backward"
    sizes = {"x": (16, 1024), "y": (1032, 16), "d": (16, 1024), "e": (16, 1024), "u": (4, 1024)}
    feeds = {name: array(*size, seed=index) for index, (name, size) in enumerate(sizes.items())}
    feeds |= {"m0": array(1 << 20, seed=8), "v0": array(1 << 20, seed=9) ** 2, "i": np.array([[3], [5], [3], [0]])}
    before = run(model, feeds)
    assert run_pass(ScaleGradients(), model).count == count
    run_pass(FuseProducts(), model)
    assert outline(model).replace("| ", "").split().count("Mul") == left
    for old, new in zip(before, run(model, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=2e-6, atol=2e-6)
