"""The slope of a GELU as a sum of three numbers, and half the gradient where that costs nothing."""

import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import SumSlopes
from tests.support import array
from tests.training_passes.training_step import outline, step

HALF = "<alpha = 0.5, beta = 0.5>"
TAIL = f"a = Mul (x, root) e = Erf (a) p = HardSigmoid {HALF} (e)"
DENSITY = "q = Mul (a, a) i = Exp (q) r = Div (a, i) d = Mul (r, c)"
SLOPE = f"{TAIL} {DENSITY} s = Add (p, d)"
PRODUCT = "g = MatMul (h, w)"
SUMMED = "Mul Erf Mul Exp Div HardSigmoid Sum"

# name: (nodes behind the inputs x, h and w [512,512] and v [512,1], slopes changed, outline afterwards)
STEPS = {
    "the gradient of a product": (f"{PRODUCT} {SLOPE} y = Mul (g, s)", 1, f"MatMul {SUMMED} Mul Mul"),
    "the slope comes first": (f"{PRODUCT} {SLOPE} y = Mul (s, g)", 1, f"MatMul {SUMMED} Mul Mul"),
    "a gradient that rows are scaled of": (f"g = Mul (h, v) {SLOPE} y = Mul (g, s)", 1, f"Mul Mul {SUMMED} Mul"),
    "the smaller factor comes first": (f"g = Mul (v, h) {SLOPE} y = Mul (g, s)", 1, f"Mul Mul {SUMMED} Mul"),
    "a gradient that comes from outside": (f"{SLOPE} y = Mul (h, s)", 0, None),
    "a gradient of two equal factors": (f"g = Mul (h, w) {SLOPE} y = Mul (g, s)", 0, None),
    "the gradient is read elsewhere": (f"{PRODUCT} {SLOPE} t = Mul (g, s) y = Add (t, g)", 0, None),
    "the slope is read elsewhere": (f"{PRODUCT} {SLOPE} t = Mul (g, s) y = Add (t, s)", 0, None),
    "half of one plus is read elsewhere": (f"{PRODUCT} {SLOPE} t = Mul (g, s) y = Add (t, p)", 0, None),
    "another line than half of one plus": (
        f"{PRODUCT} {TAIL.replace('alpha = 0.5', 'alpha = 0.4')} {DENSITY} s = Add (p, d) y = Mul (g, s)",
        0,
        None,
    ),
    "a factor with which a HardSigmoid would cut off": (
        f"{PRODUCT} {TAIL} {DENSITY.replace('c)', 'large)')} s = Add (p, d) y = Mul (g, s)",
        0,
        None,
    ),
}


def _model(body, rows, dtype="float"):
    shape = f"{dtype}[{rows},{rows}]"
    return step(
        f"""({shape} x, {shape} h, {shape} w, {dtype}[{rows},1] v) => ({shape} y)
        <{dtype} root = {{0.70710678}}, {dtype} c = {{0.56418958}}, {dtype} large = {{1.5}}> {{ {body} }}""",
        "",
    )


@pytest.mark.parametrize("name", STEPS)
def test_twice_a_slope_is_a_sum(name, run):
    body, count, expected = STEPS[name]
    model = _model(body, 512)
    feeds = {"x": 2 * array(512, 512, seed=1), "h": array(512, 512, seed=2), "w": array(512, 512, seed=3)}
    feeds["v"] = array(512, 1, seed=4)
    (before,) = run(model, feeds)
    assert run_pass(SumSlopes(), model).count == count
    if expected is not None:
        assert outline(model) == expected
    (after,) = run(model, feeds)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_a_slope_is_right_far_from_zero(run):
    """Where both parts are flat, and where their sum is larger than one or negative."""
    model = _model(f"{PRODUCT} {SLOPE} y = Mul (g, s)", 512)
    points = np.linspace(-40.0, 40.0, 512 * 512, dtype=np.float32).reshape(512, 512)
    feeds = {"x": points, "h": np.eye(512, dtype=np.float32), "w": np.ones((512, 512), np.float32)}
    feeds["v"] = array(512, 1)
    (before,) = run(model, feeds)
    assert run_pass(SumSlopes(), model).count == 1
    (after,) = run(model, feeds)
    assert before.max() > 1.1
    assert before.min() < -0.1
    np.testing.assert_allclose(after, before, rtol=0, atol=3e-7)


def test_float64_slopes_stay():
    assert run_pass(SumSlopes(), _model(f"{PRODUCT} {SLOPE} y = Mul (g, s)", 8, "double")).count == 0
