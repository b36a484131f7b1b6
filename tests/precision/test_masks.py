"""The "minus infinity" of masks at level auto: limited where it only reaches a Softmax, else as it is."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from tests import support
from tests.support import array, parse

W = array(4, 4, seed=1)
LIMITED = -32752.0  # half of float16's largest magnitude

# name: (body over h; whether node m is low, and the constant `off` limited)
BODIES = {
    "added": ("[m] m = Where (c, zero, off) s = Add (h, m) p = Softmax (s) y = MatMul (p, w)", True),
    "in the place of scores": ("[m] m = Where (c, h, off) p = Softmax (m) y = MatMul (p, w)", True),
    "by a product with a switch": (
        "f = Cast <to = 1> (c) g = Sub (one, f) [m] m = Mul (g, off) s = Add (h, m) p = Softmax (s) y = MatMul (p, w)",
        True,
    ),
    "added as a constant": ("[m] s = Add (h, matrix) p = Softmax (s) y = MatMul (p, w)", True),
    "moved first": (
        "[m] e = Expand (off, size) m = Where (c, zero, e) s = Add (h, m) p = Softmax (s) y = MatMul (p, w)",
        True,
    ),
    "moved afterwards": (
        "[m] m = Where (c, zero, off) t = Transpose (m) s = Add (h, t) p = Softmax (s) y = MatMul (p, w)",
        True,
    ),
    "two masks": (
        """[m] m = Where (c, zero, off) n = Where (d, zero, off) a = Add (m, n) s = Add (h, a) p = Softmax (s)
           y = MatMul (p, w)""",
        True,
    ),
    "an output as well": ("[m] z = Where (c, zero, off) s = Add (h, z) p = Softmax (s) y = MatMul (p, w)", False),
    "compared with": (
        """[m] m = Where (c, zero, off) b = Equal (m, off) s = Add (h, m) p = Softmax (s) q = Where (b, p, h)
           y = MatMul (q, w)""",
        False,
    ),
    "before another operator": ("[m] m = Where (c, zero, off) s = Add (h, m) p = Relu (s) y = MatMul (p, w)", False),
    "a product with features": ("[m] m = Mul (h, off) s = Add (h, m) p = Softmax (s) y = MatMul (p, w)", False),
    "subtracted from": ("[m] m = Where (c, zero, off) s = Sub (m, h) p = Softmax (s) y = MatMul (p, w)", True),
    "subtracted": ("[m] m = Where (c, zero, off) s = Sub (h, m) p = Softmax (s) y = MatMul (p, w)", False),
    "plus infinity": ("[m] m = Where (c, zero, on) s = Add (h, m) p = Softmax (s) y = MatMul (p, w)", False),
    "in a body": (
        """[m] m = Where (c, zero, off) s = Add (h, m)
           y = If (yes) <then_branch = t () => (float[4,4] q) { p = Softmax (s) q = MatMul (p, w) },
                         else_branch = e () => (float[4,4] r) { r = MatMul (h, w) }>""",
        True,
    ),
}


def model(body, infinity=-3.4e38):
    outputs = "float[4,4] y, float[4,4] z" if " z = " in body else "float[4,4] y"
    matrix = np.where(np.tri(4), 0.0, infinity).astype(np.float32)
    return parse(
        f"(float[4,4] x, bool[4,4] c, bool[4,4] d, bool yes) => ({outputs}) {{ h = MatMul (x, w) {body} }}",
        w=W,
        off=np.float32(infinity),
        on=np.float32(-infinity),
        zero=np.float32(0),
        one=np.float32(1),
        size=np.array([4, 4]),
        matrix=matrix,
    )


FEEDS = {
    "x": array(4, 4),
    "c": np.tri(4, dtype=bool),
    "d": np.ones((4, 4), bool),
    "yes": np.array(True),
}


def constants(report):
    """The numbers of every constant that is in the result, by name."""
    weights = report.program.to_onnx().graph.initializer
    return {item.name: onnx.numpy_helper.to_array(item).astype(np.float64) for item in weights}


@pytest.mark.parametrize("infinity", [-3.4e38, -1e9])
@pytest.mark.parametrize("name", BODIES)
def test_where_a_mask_is_limited(name, infinity):
    body, limited = BODIES[name]
    report = support.convert(model(body, infinity), FEEDS, "auto")
    assert (support.decisions(report)["m"] == "low") is limited
    magnitudes = {float(values.min()) for values in constants(report).values()}
    assert (LIMITED in magnitudes) is limited


def test_bfloat16_holds_it():
    report = support.convert(model(BODIES["added"][0], -1e9), FEEDS, "auto", "bfloat16")
    assert support.decisions(report)["m"] == "low"
    assert not report.casts - 2


def test_a_row_that_is_masked_as_a_whole_is_repaired():
    """float32 makes such a row uniform. Scores that float16 still tells apart there do not: data must show it."""
    scores = {"x": 400 * array(4, 4), "c": np.zeros((4, 4), bool)}
    report = support.convert(model(BODIES["added"][0]), {**FEEDS, **scores}, "auto")
    assert support.decisions(report)["m"] == "high"
    assert "for the tolerance" in support.reasons(report)["m"]


def test_other_levels_take_the_largest_magnitude():
    report = support.convert(model(BODIES["added"][0]), FEEDS, "O2")
    assert {float(v.min()) for v in constants(report).values()} & {-65504.0}


def test_what_the_user_keeps_in_float32_keeps_its_mask():
    report = amp.transpile(model(BODIES["added"][0]), level="auto", disable_amp=["m"], verify=False, prefer="size")
    assert support.decisions(report)["m"] == "high"
    assert any(np.isclose(v.min(), -3.4e38) for v in constants(report).values())
