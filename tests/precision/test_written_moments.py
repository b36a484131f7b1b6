"""Means and variances that are written out as sums: float32 in bfloat16 for engines, low elsewhere."""

import numpy as np
import pytest

import amp_transpiler as amp
from tests.support import array, parse

X = "(float[4,64] x, float[4,1] n) => (float[4,64] y) {{ {} }}"
COUNT = {"n": np.full([4, 1], 257, np.float32)}
CONSTANTS = {
    "axes": np.int64([1]),
    "shape": np.int64([4, 64]),
    "share": np.float32(1 / 64),
    "two": np.float32(2),
    "three": np.float32(3),
}
SUM, SQUARES = "[sum] s = ReduceSum(x, axes)", "[sum] s = ReduceSumSquare(x, axes)"
CENTRED = "[quotient] m = Div(s, n) [centre] y = Sub(x, m)"
MEAN = "[mean] m = ReduceMean(x, axes)"
SUM_OF_SQUARES = "[sums] r = ReduceSum(z, axes) [squares] q = Div(r, n)"
SQUARED = "[squared] p = Mul(m, m)"
SPREAD = "[spread] v = Sub(q, p) [scale] y = Mul(x, v)"
FORMS = {
    "divided": (f"{SUM} {CENTRED}", {"sum", "quotient"}),
    "times a constant": (f"{SUM} [quotient] m = Mul(s, share) [centre] y = Sub(x, m)", {"sum", "quotient"}),
    "repeated": (
        f"{SUM} [quotient] q = Div(s, n) [repeat] m = Expand(q, shape) [centre] y = Sub(x, m)",
        {"sum", "quotient"},
    ),
    "of squares": (f"{SQUARES} {CENTRED}", set()),
    "that pools": (f"{SUM} [quotient] m = Div(s, n) [add] y = Add(x, m)", set()),
    "subtracted from": (f"{SUM} [quotient] m = Div(s, n) [centre] y = Sub(m, x)", set()),
    "read by others, too": (f"{SUM} {CENTRED.replace('y =', 'c =')} [add] y = Add(c, s)", {"sum", "quotient"}),
    "one operator": (f"{MEAN} [centre] y = Sub(x, m)", set()),
    "a divisor": (f"[exp] e = Exp(x) {SUM.replace('(x', '(e')} [soft] y = Div(e, s)", set()),
    "a difference of squares": (
        f"{MEAN} [square] z = Mul(x, x) [squares] q = ReduceMean(z, axes) {SQUARED} {SPREAD}",
        {"mean", "square", "squares", "squared", "spread"},
    ),
    "of sums": (
        f"{SUM} [quotient] m = Div(s, n) [square] z = Pow(x, two) {SUM_OF_SQUARES} [squared] p = Pow(m, two) {SPREAD}",
        {"sum", "quotient", "square", "sums", "squares", "squared", "spread"},
    ),
    "of cubes": (
        f"{MEAN} [cube] z = Pow(x, three) [cubes] q = ReduceMean(z, axes) {SQUARED} {SPREAD}",
        set(),
    ),
    "of another mean": (
        f"{MEAN.replace('(x', '(n')} [square] z = Mul(x, x) [squares] q = ReduceMean(z, axes) {SQUARED} {SPREAD}",
        set(),
    ),
}
MODEL = X.format(FORMS["divided"][0])
OTHERS = {
    "float16": {"dtype": "float16"},
    "ONNX Runtime": {"target": "cuda"},
    "by a search": {"level": "auto", "inputs": {"x": array(4, 64), **COUNT}},
}


def high(text, **options):
    """Return the names of the nodes that stay float32, with the constants that the text reads."""
    weights = {name: value for name, value in CONSTANTS.items() if f" {name})" in text}
    asked = {"level": "O2", "dtype": "bfloat16", "target": "tensorrt", "verify": False, "build": "no", "fuse": "none"}
    asked |= options
    if "inputs" in options:
        asked["verify"] = True
    report = amp.transpile(parse(text, **weights), **asked)
    return {row.name for row in report.decisions if row.precision == "float32"}


@pytest.mark.parametrize(("nodes", "kept"), FORMS.values(), ids=FORMS)
def test_written_moments_stay_float32(nodes, kept):
    assert high(X.format(nodes)) == kept


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_elsewhere_nobody_asks(options):
    assert high(MODEL, **options) == set()


def test_the_mean_of_a_spectrum_keeps_its_digits():
    """Where the mean is far from zero, what is subtracted from it has the error of the mean."""
    text = X.replace("[4,", "[256,").format(FORMS["divided"][0])
    sample = {"x": array(256, 64) - np.float32(12), "n": np.full([256, 1], 61, np.float32)}
    by_rule, low = (
        amp.transpile(
            parse(text, axes=CONSTANTS["axes"]),
            level="O2",
            dtype="bfloat16",
            target="tensorrt",
            inputs=sample,
            build="no",
            include=include,
        ).outputs["y"]
        for include in ((), "^(sum|quotient)$")
    )
    assert by_rule.relative < 0.9 * low.relative
