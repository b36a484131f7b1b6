"""The gradient of a float32 cross entropy, computed in the 16 bits that it is rounded to."""

import numpy as np
import pytest

from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import RoundSlopes
from tests.support import array
from tests.training_passes.training_step import step

ROWS, CLASSES = 600, 2048  # so many that a kernel less pays
LOW = {"float16": 2**-11, "bfloat16": 2**-8}  # one rounding


def loss(dtype="float16", *, axis=1, more="", outputs="", sums="v = MatMul (w, d) t = Neg (v)"):
    """The log probability of each label, and the gradient of their sum by the scores and by a bias."""
    to = {"float16": 10, "bfloat16": 16}[dtype]
    text = f"""(float[{ROWS},{CLASSES}] x, int64[{ROWS},1] l, float[{ROWS},1] r) => (
        float[{ROWS},1] e, float[{ROWS},{CLASSES}] y, float[1,{CLASSES}] t{outputs})
        <int64[2] turned = {{1, {ROWS}}}, int64[1] zero = {{0}}, float one = {{1}}> {{
        h = Cast <to = {to}> (x) f = Cast <to = 1> (h) q = LogSoftmax <axis = {axis}> (f)
        e = GatherElements <axis = 1> (q, l) p = Exp (e) s = Sub (p, one)
        a = Exp (q) d = ScatterElements <axis = 1> (a, l, s) w = Reshape (r, turned) {sums}
        low = Cast <to = {to}> (d) y = Cast <to = 1> (low) {more} }}"""
    model = step(text, "a")
    infer_shapes(model)
    return model


FEEDS = {
    "x": 4 * array(ROWS, CLASSES, seed=3),
    "l": np.random.default_rng(0).integers(0, CLASSES, (ROWS, 1)),
    "r": array(ROWS, 1, seed=4) / ROWS,
}


@pytest.mark.parametrize("dtype", LOW)
def test_the_loss_stays_float32_and_the_gradient_is_rounded_once(dtype, run):
    model = loss(dtype)
    likely, slopes, total = run(emulate(model.clone()).model, FEEDS)
    assert run_pass(RoundSlopes(), model).count == 1
    kinds = {node.op_type: node.outputs[0].dtype.name for node in model.graph if node.op_type != "Cast"}
    assert kinds["Softmax"] == kinds["ScatterElements"] == kinds["MatMul"] == dtype.upper()
    assert kinds["LogSoftmax"] == "FLOAT"
    assert "Exp" not in {node.op_type for node in model.graph if node.outputs[0].shape == (ROWS, CLASSES)}
    after = run(emulate(model).model, FEEDS)
    np.testing.assert_array_equal(after[0], likely)
    np.testing.assert_allclose(after[1], slopes, rtol=2 * LOW[dtype], atol=1e-7)
    np.testing.assert_allclose(after[2], total, rtol=4 * LOW[dtype], atol=1e-5)


def test_a_cast_of_the_weights_that_is_there_is_read():
    model = loss(more="c = Cast <to = 10> (r) o = Cast <to = 1> (c)", outputs=f", float[{ROWS},1] o")
    assert run_pass(RoundSlopes(), model).count == 1
    assert sum(node.op_type == "Cast" and node.inputs[0].name in ("r", "w") for node in model.graph) == 1


WIDE = f", float[{ROWS},{CLASSES}] o"
KEPT = {  # what needs the numbers before they are rounded
    "slopes that something else reads": {"more": "o = Neg (d)", "outputs": WIDE},
    "shares that something else reads": {"more": "o = Neg (a)", "outputs": WIDE},
    "slopes that are an output": {"more": "o = Identity (d)", "outputs": WIDE},
    "a sum in float32": {"sums": "t = ReduceSum (d, zero)"},
    "shares of rows": {"axis": 0},
}


@pytest.mark.parametrize("name", KEPT)
def test_what_needs_float32_stays(name):
    assert not run_pass(RoundSlopes(), loss(**KEPT[name])).modified


def test_prices_decide(monkeypatch):
    monkeypatch.setattr("amp_transpiler.training_passes.round_slopes._seconds_of_softmax", lambda *_: 1.0)
    assert not run_pass(RoundSlopes(), loss()).modified
