"""Whole numbers that hang on one rounding: the share of like inputs that would give others is told, and is right."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.runtime import Session
from amp_transpiler.verification.close_roundings import roundings_of, share_that_differs
from tests.support import array, parse

W = array(64, scale=0.125)
DURATIONS = "h = MatMul (x, w) e = Exp (h)"
SUM = "axis = Constant <value_ints = [1]> () y = ReduceSum <keepdims = 0> (d, axis)"
# body -> the operator that rounds
ROUNDED = {
    f"{DURATIONS} c = Ceil (e) y = Cast <to = 7> (c)": "Ceil",
    f"{DURATIONS} c = Round (e) d = Cast <to = 7> (c) {SUM}": "Round",
    f"{DURATIONS} c = Floor (e) f = Clip (c, one) y = Cast <to = 6> (f)": "Floor",
    f"{DURATIONS} d = Cast <to = 7> (e) {SUM}": "Cast",
    f"{DURATIONS} c = Ceil (e) f = Cast <to = 10> (c) d = Cast <to = 6> (f) y = CumSum (d, axis_1)": "Ceil",
    f"{DURATIONS} c = Ceil (e) d = Cast <to = 7> (c) b = Greater (d, five) y = Cast <to = 6> (b)": "Ceil",
    f"{DURATIONS} k = Mul (e, ten) c = Round (k) y = Cast <to = 7> (c)": "Round",
}
CONSTANTS = {
    "w": W,
    "one": np.float32(1),
    "five": np.int64(5),
    "ten": np.float32(10),
    "axis_1": np.int64(1),
}


def model(body):
    used = {name: np.asarray(value) for name, value in CONSTANTS.items() if f" {name})" in body or f"({name}," in body}
    out = "int32" if body.endswith(("<to = 6> (f)", "(d, axis_1)", "<to = 6> (b)")) else "int64"
    return parse(f"(float[N, 40, 64] x) => ({out} y) {{ {body} }}", opset=18, **used)


def inputs(count, seed):
    return np.random.default_rng(seed).standard_normal((count, 40, 64)).astype(np.float32)


@pytest.mark.parametrize("body", ROUNDED)
def test_the_share_of_like_inputs_is_told(body):
    source = model(body)
    report = amp.transpile(source, inputs=[{"x": part[None]} for part in inputs(8, 1)], level="O2", cache=False)
    [told] = [text for text in report.warnings if "of like inputs" in text] or [""]
    low, high = (Session(part) for part in (report.program, source))
    feeds = [{"x": part[None]} for part in inputs(400, 2)]
    differ = np.mean([not np.array_equal(low.run(feed)[0], high.run(feed)[0]) for feed in feeds])
    if "Greater" in body:  # few durations are near the one step that counts
        assert not told or differ < 0.05
        return
    assert f"output 'y' is whole numbers that {ROUNDED[body]} " in told
    share = float(told.partition("about ")[2].partition("%")[0]) / 100
    assert differ / 3 <= share <= 3 * differ + 0.01


@pytest.mark.parametrize(
    "body",
    [
        "h = MatMul (x, w) y = ArgMax <axis = 1, keepdims = 0> (h)",
        "h = MatMul (x, w) y = Shape (h)",
        "c = Ceil (x) y = Cast <to = 7> (c)",  # of the input itself, which nothing rounds before
        "q = Constant <value_float = 2.0> () h = MatMul (x, w) y = Cast <to = 7> (q)",
        "h = MatMul (x, w) b = Greater (h, one) y = Cast <to = 7> (b)",
    ],
)
def test_other_integers_are_not(body):
    report = amp.transpile(model(body), inputs={"x": inputs(1, 1)}, level="O2", mismatch="100%", cache=False)
    assert not [text for text in report.warnings if "of like inputs" in text]


def test_pictures_are_compared_as_numbers():
    body = "h = MatMul (x, w) k = Mul (h, ten) r = Round (k) y = Cast <to = 2> (r)"
    source = parse(
        f"(float[N, 40, 64] x) => (uint8[N, 40] y) {{ {body} }}",
        opset=18,
        w=W,
        ten=CONSTANTS["ten"],
    )
    report = amp.transpile(source, inputs={"x": inputs(1, 1)}, cache=False)
    assert not [text for text in report.warnings if "of like inputs" in text]


def test_what_rounds_is_found_behind_integers():
    roundings = roundings_of(ir.from_proto(model(f"{DURATIONS} c = Ceil (e) d = Cast <to = 7> (c) {SUM}")))
    assert {name: [node.op_type for node in nodes] for name, nodes in roundings.items()} == {"y": ["Ceil"]}


@pytest.mark.parametrize(
    ("errors", "share"),
    [([0.0, 0.0], 0.0), ([0.25], 0.25), ([0.5, 0.5], 0.75), ([1.0], 1.0), ([7.0, 0.0], 1.0), ([], 0.0)],
)
def test_shares(errors, share):
    reference = np.linspace(0, 1, len(errors))
    assert share_that_differs([[(reference, reference + np.asarray(errors))]]) == pytest.approx(share)
