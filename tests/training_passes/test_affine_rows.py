"""Numbers and multiples that are taken off rows become one BatchNormalization of other rows."""

import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import AffineRows
from tests.support import array
from tests.training_passes.training_step import outline, step

LESS = "l = Sub (z, m) t = Mul (x, s) y = Sub (l, t)"

# name: (shape of z and x, that of m and s, nodes, differences changed)
STEPS = {
    "rows": ("1024,1024", "1024,1", LESS, 1),
    "more rows than kernels were timed with": ("4096,256", "4096,1", LESS, 1),
    "rows of two axes": ("8,128,1024", "8,128,1", LESS, 1),
    "the factor comes first": ("1024,1024", "1024,1", LESS.replace("Mul (x, s)", "Mul (s, x)"), 1),
    "numbers of columns": ("1024,1024", "1,1024", LESS, 0),
    "one number for all": ("1024,1024", "1,1", LESS, 0),
    "few numbers": ("4,8", "4,1", LESS, 1),
    "the multiple is read elsewhere": (
        "1024,1024",
        "1024,1",
        LESS.replace("y = Sub", "k = Sub") + " y = Add (k, t)",
        0,
    ),
    "the difference is read elsewhere": (
        "1024,1024",
        "1024,1",
        LESS.replace("y = Sub", "k = Sub") + " y = Add (k, l)",
        0,
    ),
    "rows are taken off the multiple": ("1024,1024", "1024,1", "l = Sub (z, m) t = Mul (x, s) y = Sub (t, l)", 0),
    "more rows than a normalisation has channels": ("32769,64", "32769,1", LESS, 0),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_is_taken_off_rows_is_one_kernel(name, run):
    shape, column, body, count = STEPS[name]
    declared = ", ".join(f"float[{shape if letter in 'zx' else column}] {letter}" for letter in "zxms")
    model = step(f"({declared}) => (float[{shape}] y) {{ {body} }}", "l")
    sizes = {letter: tuple(map(int, (shape if letter in "zx" else column).split(","))) for letter in "zxms"}
    feeds = {letter: array(*size, seed=index) for index, (letter, size) in enumerate(sizes.items())}
    (before,) = run(model, feeds)
    assert run_pass(AffineRows(), model).count == count
    words = outline(model).split()
    assert words.count("BatchNormalization") == count
    assert words.count("Sub") + words.count("Mul") == (1 if count else 3)
    (after,) = run(model, feeds)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_float64_rows_stay():
    model = step(
        f"(double[64,64] z, double[64,64] x, double[64,1] m, double[64,1] s) => (double[64,64] y) {{ {LESS} }}",
        "l",
    )
    assert run_pass(AffineRows(), model).count == 0
