"""Pictures of small integers are compared as numbers; labels and truth values are not."""

import numpy as np
import onnx.parser
import pytest

import amp_transpiler as amp

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
CONSTANTS = (
    "float[3,3,1,1] w = {.1,.2,.3,.3,.2,.1,.2,.2,.2}, float k = {255}, float lo = {0}, float hi = {255}, float s = {1}"
)
CONSTANTS = CONSTANTS.replace("{.", "{0.").replace(",.", ",0.")
X = np.random.default_rng(0).random((1, 3, 32, 32), np.float32) / 4  # three times it is a picture of 16 bits, too
PICTURES = {
    "rounded": ("uint8", "d = Clip(m, lo, hi) e = Round(d) y = Cast<to = 2>(e)"),
    "cut off": ("uint8", "d = Clip(m, lo, hi) y = Cast<to = 2>(d)"),
    "quantized": ("uint8", "y = QuantizeLinear(m, s)"),
    "transposed": ("uint8", "d = Clip(m, lo, hi) e = Cast<to = 2>(d) y = Transpose<perm = [0, 2, 3, 1]>(e)"),
    "int8": ("int8", "d = Sub(m, hi) e = Cast<to = 3>(d) y = Identity(e)"),
    "16 bits": ("uint16", "d = Mul(m, k) e = Clip(d, lo, d) y = Cast<to = 4>(e)"),
}


def _model(dtype, last):
    text = f"{HEAD}g (float[n,3,h,v] x) => ({dtype}[n,a,b,c] y) <{CONSTANTS}> {{ f = Conv(x, w) m = Mul(f, k) {last} }}"
    return onnx.parser.parse_model(text.replace("e = Clip(d, lo, d) ", "e = Relu(d) "))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_compared_as_numbers(name):
    report = amp.transpile(_model(*PICTURES[name]), inputs={"x": X}, prefer="size")
    row = report.outputs["y"]
    assert report.verdict_word in ("verified", "estimated")
    assert report.low_nodes
    assert 0 < row.relative < 0.02
    assert not row.mismatched
    assert "within" in report.verdict


@pytest.mark.parametrize("name", PICTURES)
def test_the_tolerance_holds_for_it(name):
    with pytest.raises(amp.CheckFailed, match="relative norm"):
        amp.transpile(_model(*PICTURES[name]), level="O2", inputs={"x": X}, tolerance=1e-7)


def test_a_share_of_the_users_own_counts_integers():
    report = amp.transpile(_model(*PICTURES["cut off"]), level="O2", inputs={"x": X}, mismatch=0.5)
    assert report.outputs["y"].mismatched
    assert report.outputs["y"].relative == 0


@pytest.mark.parametrize(
    "last", ["a = ArgMax<axis = 1, keepdims = 1>(m) y = Cast<to = 2>(a)", "b = Greater(m, hi) y = Cast<to = 2>(b)"]
)
def test_labels_and_truth_values_are_not(last):
    report = amp.transpile(_model("uint8", last), level="O2", inputs={"x": X})
    assert not report.outputs["y"].as_numbers
