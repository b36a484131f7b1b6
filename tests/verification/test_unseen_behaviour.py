"""What no sample runs, or shows, is named and not verified; made-up samples take both branches where they can."""

import numpy as np
import pytest

import amp_transpiler as amp
from tests.support import array, parse

W, V = array(16, 8, seed=1), array(16, 8, seed=2)
X = array(4, 16)
IF = "y = If (c) <then_branch = t () => (float[4,8] a) {{ a = MatMul (x, w) }}, "
IF += "else_branch = e () => (float[4,8] b) {{ {} }}>"
TWO = IF.format("m = MatMul (x, v) b = Mul (m, m)")
LOOP = "h = MatMul (x, w) y = Loop (n, {}, h) <body = l (int64 i, bool go, float[4,8] s) => (bool on, float[4,8] z) "
LOOP += "{{ on = {} (go) z = Mul (s, f) }}>"
F = np.array(1.1, np.float32)
TRUE, ONCE = np.array(True), np.array(3)


def verdict_of(text, inputs, kinds, **weights):
    model = parse(f"({kinds}) => (float[4,8] y) {{ {text} }}", w=W, **weights)
    return amp.transpile(model, level="O2", inputs=inputs, tolerance="5%", device_check="no")


UNSEEN = {  # body, inputs beside x, samples, what is named; "" for nothing
    "else": (TWO, "bool c", [{"c": TRUE}], "else branch of If"),
    "then": (TWO, "bool c", [{"c": ~TRUE}], "then branch of If"),
    "both ran": (TWO, "bool c", [{"c": TRUE}, {"c": ~TRUE}], ""),
    "a computed condition": (
        "q = ReduceSum <keepdims = 0> (x) z = Constant <value = float {-1000.0}> () c = Greater (q, z) " + TWO,
        "",
        [{}],
        "else branch of If",
    ),
    "an If in an If": (
        IF.format(
            "b = If (d) <then_branch = tt () => (float[4,8] p) { p = MatMul (x, v) }, "
            "else_branch = ee () => (float[4,8] q) { r = MatMul (x, v) q = Relu (r) }>"
        ),
        "bool c, bool d",
        [{"c": TRUE, "d": TRUE}, {"c": ~TRUE, "d": TRUE}],
        "else branch of If",
    ),
    "more trips": (LOOP.format("", "Identity"), "int64 n", [{"n": ONCE}], "further trips of Loop"),
    "a loop that may stop": (LOOP.format("g", "Not"), "int64 n, bool g", [{"n": ONCE, "g": TRUE}], "further trips"),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_what_never_ran_is_not_verified(case):
    body, further, samples, named = UNSEEN[case]
    kinds = "float[4,16] x" + (f", {further}" if further else "")
    weights = {"v": V} if "v)" in body else {}
    weights |= {"f": F} if "Loop" in body else {}
    report = verdict_of(body, [{"x": X, **sample} for sample in samples], kinds, **weights)
    word, told = ("plausible", True) if named else ("verified", False)
    assert report.verdict_word.value == word
    assert ("never ran, so not verified: " in report.verdict) == told
    assert "low node" not in report.verdict
    assert named in report.verdict


def test_a_fixed_number_of_trips_is_verified():
    constant = {"n": np.array(3), "f": F}
    assert verdict_of(LOOP.format("", "Identity"), [{"x": X}], "float[4,16] x", **constant).verdict_word == "verified"


NOTHING = {  # the last operators, the samples, why nothing shows
    "zero": ("y = Relu (h)", -1e3, "zero in all the data"),
    "a saturated sigmoid": ("y = Sigmoid (h)", 1e3, "saturated in all the data"),
    "a saturated tanh": ("y = Tanh (h)", -1e3, "saturated in all the data"),
    "saturated and moved": (
        "a = Sigmoid (h) b = Transpose (a) y = Transpose (b)",
        1e3,
        "saturated in all the data",
    ),
    "mostly NaN": ("y = Sqrt (h)", (-1.0, -1.0, -1.0, 1.0), "NaN or infinite in 75% of float32's elements"),
    "mostly infinite": ("y = Exp (h)", (1e3, 1e3, 1e3, 1e-3), "NaN or infinite in 75% of float32's elements"),
}


@pytest.mark.parametrize("case", NOTHING)
def test_outputs_of_which_the_data_show_nothing(case):
    text, sizes, why = NOTHING[case]
    x = np.abs(X) * np.float32(1) * np.reshape(np.array(sizes, np.float32), (-1, 1))
    model = parse(
        f"(float[4,16] x) => (float[4,8] y, float[4,8] h) {{ h = MatMul (x, w) {text} }}", w=np.abs(W) + np.float32(0.1)
    )
    report = amp.transpile(model, level="O2", inputs={"x": x}, tolerance="5%", device_check="no")
    assert report.verdict.startswith("plausible: ")
    assert f"'y' ({why})" in report.verdict


@pytest.mark.parametrize("text", ["y = Relu (h)", "y = Sigmoid (h)", "y = Tanh (h)"])
def test_outputs_that_show_something(text):
    model = parse(f"(float[4,16] x) => (float[4,8] y) {{ h = MatMul (x, w) {text} }}", w=W)
    report = amp.transpile(model, level="O2", inputs={"x": X}, tolerance="5%", device_check="no")
    assert report.verdict_word == "verified"


STEERED = {  # the condition of an If, made of x and of further inputs
    "a truth value": ("", "bool c"),
    "a number": ("k = Constant <value = int64 {8000}> () c = Equal (rate, k) ", "int64 rate"),
    "a switch": ("c = Cast <to = 9> (use) ", "int32 use"),
    "a sum": ("q = ReduceSum <keepdims = 0> (x) z = Constant <value = float {0.0}> () c = Greater (q, z) ", ""),
    "silence": ("q = ReduceMax <keepdims = 0> (x) z = Constant <value = float {0.0}> () c = Equal (q, z) ", ""),
}


@pytest.mark.parametrize("case", STEERED)
def test_made_up_samples_take_both_branches(case):
    condition, further = STEERED[case]
    kinds = "float[4,16] x" + (f", {further}" if further else "")
    report = verdict_of(condition + TWO, None, kinds, v=V)
    assert report.verdict.startswith("plausible: ")
    assert "made-up samples" in report.verdict
    assert "never ran" not in report.verdict


def test_a_branch_that_no_made_up_sample_takes_is_named():
    never = "q = ReduceMax <keepdims = 0> (x) z = Constant <value = float {1e30}> () c = Less (q, z) "
    assert "never ran, so not verified: else branch" in verdict_of(never + TWO, None, "float[4,16] x", v=V).verdict
