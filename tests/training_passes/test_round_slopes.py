"""A float32 cross entropy of 16-bit scores: the gradient is rounded to 16 bits once, and so are losses of samples."""

import numpy as np
import pytest

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.cross_entropy import label_logarithms
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import RoundSlopes
from tests.support import array
from tests.training_passes.training_step import step

ROWS, CLASSES = 600, 2048  # so many that a kernel less pays
MANY_CLASSES = 9216  # so many that several small kernels more pay
LOW = {"float16": 2**-11, "bfloat16": 2**-8}  # one rounding


def loss(
    dtype="float16",
    *,
    axis=1,
    more="",
    outputs="",
    sums="v = MatMul (w, d) t = Neg (v)",
    result=f"float[{ROWS},1] e",
    classes=CLASSES,
):
    """The log probability of each label, and the gradient of their sum by the scores and by a bias."""
    to = {"float16": 10, "bfloat16": 16}[dtype]
    text = f"""(float[{ROWS},{classes}] x, int64[{ROWS},1] l, float[{ROWS},1] r) => (
        {result}, float[{ROWS},{classes}] y, float[1,{classes}] t{outputs})
        <int64[2] turned = {{1, {ROWS}}}, int64[1] zero = {{0}}, int64[1] one_axis = {{1}}, float one = {{1}}> {{
        h = Cast <to = {to}> (x) f = Cast <to = 1> (h) q = LogSoftmax <axis = {axis}> (f)
        e = GatherElements <axis = 1> (q, l) p = Exp (e) s = Sub (p, one)
        a = Exp (q) d = ScatterElements <axis = 1> (a, l, s) w = Reshape (r, turned) {sums}
        low = Cast <to = {to}> (d) y = Cast <to = 1> (low) {more} }}"""
    model = step(text, "a")
    infer_shapes(model)
    return model


def feeds(classes=CLASSES):
    labels = np.random.default_rng(0).integers(0, classes, (ROWS, 1))
    return {"x": 4 * array(ROWS, classes, seed=3), "l": labels, "r": array(ROWS, 1, seed=4) / ROWS}


@pytest.mark.parametrize("dtype", LOW)
def test_the_loss_stays_float32_and_the_gradient_is_rounded_once(dtype, run):
    model = loss(dtype)
    likely, slopes, total = run(emulate(model.clone()).model, feeds())
    assert run_pass(RoundSlopes(), model).count == 1
    kinds = {node.op_type: node.outputs[0].dtype.name for node in model.graph if node.op_type != "Cast"}
    assert kinds["Softmax"] == kinds["ScatterElements"] == kinds["MatMul"] == dtype.upper()
    assert kinds["LogSoftmax"] == "FLOAT"
    assert "Exp" not in {node.op_type for node in model.graph if node.outputs[0].shape == (ROWS, CLASSES)}
    after = run(emulate(model).model, feeds())
    np.testing.assert_array_equal(after[0], likely)
    np.testing.assert_allclose(after[1], slopes, rtol=2 * LOW[dtype], atol=1e-7)
    np.testing.assert_allclose(after[2], total, rtol=4 * LOW[dtype], atol=1e-5)


MEAN = {
    "more": "z = Neg (e) u = ReduceMean <keepdims = 0> (z)",
    "result": "float u",
    "classes": MANY_CLASSES,
}


def test_a_mean_loss_is_made_of_16_bit_probabilities(run):
    model = loss(**MEAN)
    mean, slopes, total = run(emulate(model.clone()).model, feeds(MANY_CLASSES))
    assert run_pass(RoundSlopes(), model).count == 1
    wide = {node.op_type for node in model.graph if node.outputs[0].dtype.name == "FLOAT"}
    assert not wide & {"LogSoftmax", "Softmax", "ScatterElements"}
    after = run(emulate(model).model, feeds(MANY_CLASSES))
    np.testing.assert_allclose(after[0], mean, rtol=1e-5)
    np.testing.assert_allclose(after[1], slopes, rtol=2 * LOW["float16"], atol=1e-7)
    np.testing.assert_allclose(after[2], total, rtol=4 * LOW["float16"], atol=1e-5)


ALONE = f", float[{ROWS},1] o"
SINGLE = {  # whose losses stay float32
    "losses that are read one by one": {"classes": MANY_CLASSES},
    "losses that something else reads": {**MEAN, "outputs": ALONE, "more": f"{MEAN['more']} o = Abs (z)"},
    "sums of some": {**MEAN, "more": "u = ReduceSum <keepdims = 1> (e, one_axis)", "result": f"float[{ROWS},1] u"},
    "log probabilities that something else reads": {
        **MEAN,
        "outputs": f", float[{ROWS},{MANY_CLASSES}] o",
        "more": f"{MEAN['more']} o = Neg (q)",
    },
    "too few classes for the prices": {**MEAN, "classes": CLASSES},
    "bfloat16": {**MEAN, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_losses_stay_float32(name):
    model = loss(**SINGLE[name])
    assert run_pass(RoundSlopes(), model).count == 1
    assert [node.outputs[0].dtype.name for node in model.graph if node.op_type == "LogSoftmax"] == ["FLOAT"]


def test_few_losses_stay_float32(monkeypatch):
    monkeypatch.setattr("amp_transpiler.training_passes.round_slopes._MANY", ROWS + 1)
    model = loss(**MEAN)
    assert run_pass(RoundSlopes(), model).count == 1
    assert [node.outputs[0].dtype.name for node in model.graph if node.op_type == "LogSoftmax"] == ["FLOAT"]


# How the scores spread, what the label's have more, the mean loss, and how much of itself it is off, at most.
ERRORS = [
    (0.0, 0.0, 8.3, 2e-4),
    (0.5, 0.0, 8.4, 1e-5),
    (2.0, 0.0, 10.3, 1e-5),
    (1.0, 8.0, 1.7, 1e-5),
    (1.0, 10.0, 0.65, 1e-5),
    (1.0, 14.0, 0.04, 3e-5),
]


@pytest.mark.parametrize(("spread", "more", "expected", "off"), ERRORS)
def test_the_error_of_a_loss_is_as_stated(spread, more, expected, off, run):
    rows, classes = 1024, 4096
    random = np.random.default_rng(0)
    labels = random.integers(0, classes, (rows, 1))
    scores = spread * random.standard_normal((rows, classes))
    own_score = np.take_along_axis(scores, labels, 1) + more + (more > 0) * 2 * random.standard_normal((rows, 1))
    np.put_along_axis(scores, labels, own_score, 1)
    scores = scores.astype(np.float16)
    inputs = f"float16[{rows},{classes}] x, int64[{rows},1] l"
    model = step(f"({inputs}) => (float16[{rows},{classes}] p) {{ p = Softmax <axis = 1> (x) }}", "p")
    likely = label_logarithms(GraphBuilder(model), model.graph.inputs[0], model.graph.outputs[0], model.graph.inputs[1])
    model.graph.outputs[:] = [likely]
    (loss_value,) = run(emulate(model).model, {"x": scores, "l": labels})
    exact = scores.astype(np.float64)
    true = np.take_along_axis(exact, labels, 1) - np.log(np.exp(exact).sum(1, keepdims=True))
    assert -true.mean() == pytest.approx(expected, rel=0.1)
    assert loss_value.astype(np.float64).mean() == pytest.approx(true.mean(), rel=off)
    single = np.select([true > -0.692, true > -9.7, true > -11.8], [-true * 2**-11, 2**-11, 2**-8], -true * 2**-11)
    assert (abs(loss_value - true) <= single + 2**-18).all()  # float32 logarithms are off by the latter


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
