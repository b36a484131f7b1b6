"""Tensors of an optimizer times numbers plus numbers, as one BatchNormalization."""

import numpy as np
import pytest

from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.update_passes import FuseUpdates
from tests.support import array
from tests.training_passes.training_step import outline, step

BOTH = "p = Mul (x, s) y = Add (p, t)"

# name: (shape of x, those of s and t, nodes, role, tensors changed, outline afterwards)
TENSORS = {
    "numbers": ("4096,2048", "", "", BOTH, "optimize", 1, "Reshape Expand Reshape Expand Reshape BatchNormalization"),
    "numbers with a dimension": (
        "4096,2048",
        "1",
        "1",
        BOTH,
        "optimize",
        1,
        "Reshape Expand Reshape Expand Reshape BatchNormalization",
    ),
    "a number by row": (
        "512,2048",
        "512,1",
        "512,1",
        BOTH,
        "optimize",
        1,
        "Reshape Reshape Reshape BatchNormalization",
    ),
    "a number by row, and one for all": (
        "512,2048",
        "512,1",
        "",
        BOTH,
        "optimize",
        1,
        "Reshape Reshape Expand Reshape BatchNormalization",
    ),
    "the sum is written the other way": (
        "512,2048",
        "512,1",
        "512,1",
        "p = Mul (s, x) y = Add (t, p)",
        "optimize",
        1,
        "Reshape Reshape Reshape BatchNormalization",
    ),
    "a number by column": ("512,2048", "2048", "2048", BOTH, "optimize", 0, None),
    "more rows than kernels were timed with": ("4096,256", "4096,1", "4096,1", BOTH, "optimize", 0, None),
    "a small tensor": ("8,16", "", "", BOTH, "optimize", 0, None),
    "the product is read elsewhere": (
        "512,2048",
        "",
        "",
        "p = Mul (x, s) q = Add (p, t) y = Div (q, p)",
        "optimize",
        0,
        None,
    ),
    "a tensor without equal parts": ("8388593", "", "", BOTH, "optimize", 0, None),
    "a tensor of the backward pass": ("512,2048", "", "", BOTH, "backward", 0, None),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_scaled_and_shifted_tensor_is_one_kernel(name, run):
    shape, slope, shift, body, role, count, expected = TENSORS[name]
    sizes = [tuple(map(int, text.split(","))) if text else () for text in (shape, slope, shift)]
    declared = [
        f"float[{text}] {letter}" if text else f"float {letter}" for text, letter in ((slope, "s"), (shift, "t"))
    ]
    model = step(f"(float[{shape}] x, {', '.join(declared)}) => (float[{shape}] y) {{ {body} }}", "p")
    for node in model.graph:
        node.metadata_props[ROLE_KEY] = role
    feeds = {letter: array(*size, seed=index) for index, (letter, size) in enumerate(zip("xst", sizes, strict=True))}
    (before,) = run(model, feeds)
    assert run_pass(FuseUpdates(), model).count == count
    if expected is not None:
        assert outline(model) == f"| {expected} Reshape"
    (after,) = run(model, feeds)
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


def test_an_infinite_shift_stays_infinite(run):
    """A step that is skipped divides by it, and must change nothing."""
    model = step(f"(float[4096,2048] x, float s, float t) => (float[4096,2048] y) {{ {BOTH} }}", "p")
    for node in model.graph:
        node.metadata_props[ROLE_KEY] = "optimize"
    assert run_pass(FuseUpdates(), model).count == 1
    roots = np.zeros((4096, 2048), np.float32)
    roots[1] = 1.0
    (result,) = run(model, {"x": roots, "s": np.asarray(np.finfo(np.float32).max), "t": np.asarray(np.inf, np.float32)})
    assert np.isposinf(result).all()
