"""Classification losses without ONNX Runtime's copies of the scores: the same numbers, from plain operators."""

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from amp_transpiler.autodiff import differentiate
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import LowerLoss
from tests.support import NUMPY, array, parse

OPERATORS = ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"]


def loss(operator, shape, attributes='reduction = "mean"', inputs="x, l", outputs="y", element="float"):
    """A model of one loss; every shape of the result is possible."""
    sizes, places = ",".join(map(str, shape)), ",".join(map(str, (shape[0], *shape[2:])))
    inputs_text = f"{element}[{sizes}] x, int64[{places}] l, {element}[{shape[1]}] w"
    results = ", ".join(f"{element} {name}" for name in outputs.split(", "))
    model = parse(f"({inputs_text}) => ({results}) {{ {outputs} = {operator} <{attributes}> ({inputs}) }}")
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def lowered(model):
    work = ir.from_proto(model)
    propagate_types(work)
    result = run_pass(LowerLoss(), work)
    assert result.count == 1
    return work


def feeds(shape, ignored=(), dtype=np.float32):
    random = np.random.default_rng(0)
    labels = random.integers(0, shape[1], (shape[0], *shape[2:]))
    labels.reshape(-1)[list(ignored)] = -100
    weights = np.abs(array(shape[1], seed=2)) + 0.1
    return {"x": array(*shape, seed=1).astype(dtype), "l": labels, "w": weights.astype(dtype)}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("inputs", ["x, l", "x, l, w"])
@pytest.mark.parametrize("ignored", [(), (1,)])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2)])
def test_it_is_the_loss_of_the_reference(operator, reduction, inputs, ignored, shape, run):
    attributes = f'reduction = "{reduction}"' + (", ignore_index = -100" if ignored else "")
    model = loss(operator, shape, attributes, inputs)
    fed = {name: value for name, value in feeds(shape, ignored).items() if name in inputs}
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, fed)
    work = lowered(model)
    assert not {node.op_type for node in work.graph} & set(OPERATORS)
    (loss_value,) = run(work, {**feeds(shape, ignored), **fed})
    np.testing.assert_allclose(loss_value, expected, rtol=1e-5, atol=1e-6)


def test_the_log_probabilities_are_a_result_too(run):
    model = loss("SoftmaxCrossEntropyLoss", (4, 3), outputs="y, z")
    fed = feeds((4, 3))
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {name: fed[name] for name in "xl"})
    for old, new in zip(expected, run(lowered(model), fed), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5)


def test_an_ignored_sample_may_have_infinite_scores(run):
    fed = feeds((4, 3), ignored=(2,))
    fed["x"][2] = np.inf
    (loss_value,) = run(lowered(loss("SoftmaxCrossEntropyLoss", (4, 3), "ignore_index = -100")), fed)
    assert np.isfinite(loss_value)


def test_16_bit_scores_are_computed_in_float32_and_results_keep_their_type():
    work = lowered(loss("SoftmaxCrossEntropyLoss", (4, 3), outputs="y, z", element="float16"))
    types = {node.op_type: node.outputs[0].dtype.name for node in work.graph if node.op_type != "Cast"}
    assert types["LogSoftmax"] == types["ReduceMean"] == "FLOAT"
    assert [value.dtype.name for value in work.graph.outputs] == ["FLOAT16", "FLOAT16"]


ATTRIBUTES = 'reduction = "mean", ignore_index = -100'


def with_gradient(dtype, weights):
    """A last layer in 16 bits, its loss, and the gradients of the layer's inputs; rows, labels and weights are fed."""
    text = f"""(float[6,8] r, int64[6] l, float[80] w) => (float y)
        {{ a = Cast <to = {int(ir.DataType[dtype.upper()])}> (r) p = MatMul (a, m) x = Add (p, b) f = Cast <to = 1> (x)
        y = SoftmaxCrossEntropyLoss <{ATTRIBUTES}> (f, l{weights}) }}"""
    matrix, bias = (array(*shape, seed=3, scale=2.0).astype(NUMPY[dtype]) for shape in ((8, 80), (80,)))
    work = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, m=matrix, b=bias)))
    propagate_types(work)
    work.graph.outputs[0].shape = ir.Shape([])
    builder = GraphBuilder(work, metadata={ROLE_KEY: "backward"})
    (loss,), (rows, *_) = work.graph.outputs, work.graph.inputs
    grads = differentiate(builder, {loss: builder.constant(np.array(64.0, np.float32))}, [rows])
    work.graph.outputs.append(builder.op("Identity", [grads[rows]]))
    return work, matrix.astype(np.float64), bias.astype(np.float64)


@pytest.mark.parametrize("ignored", [(), (2, 5)])
@pytest.mark.parametrize("weights", ["", ", w"])
@pytest.mark.parametrize(("dtype", "digits"), [("float16", 2.0**-8), ("bfloat16", 2.0**-5)])
def test_loss_and_gradient_of_16_bit_scores_are_made_of_one_comparison(dtype, digits, ignored, weights, run):
    work, matrix, bias = with_gradient(dtype, weights)
    rows = array(6, 8, seed=4).astype(NUMPY[dtype])
    scores = rows.astype(np.float64) @ matrix + bias
    labels = scores.argmax(1)  # the margins are from nearly 0 to far beyond what 16 bits tell from 1
    labels[0] = scores[0].argmin()
    by_class = np.abs(array(80, seed=5)) + 0.5
    factors = by_class[labels] if weights else np.ones(6)
    factors[list(ignored)] = 0.0
    largest = scores.max(1, keepdims=True)
    log = scores - largest - np.log(np.exp(scores - largest).sum(1, keepdims=True))
    expected = -(factors * log[np.arange(6), labels]).sum() / factors.sum()
    slopes = (np.exp(log) - (labels[:, None] == np.arange(80))) * (64 * factors / factors.sum())[:, None]
    labels[list(ignored)] = -100
    propagate_types(work)
    assert run_pass(LowerLoss(), work).count == 1
    kinds = [node.op_type for node in work.graph]
    assert kinds.count("Softmax") == kinds.count("GatherElements") == 1
    assert kinds.count("LogSoftmax") == (dtype == "float16")
    assert "ReduceMax" not in kinds
    wide = [n.op_type for n in work.graph if n.outputs[0].shape == (6, 80) and n.outputs[0].dtype == ir.DataType.FLOAT]
    assert set(wide) <= {"Cast", "Mul"}, "the declared scores, and the scaled slopes, which casts join"
    assert all(node.outputs[0].shape != (6, 80) for node in work.graph if node.op_type == "Where"), "rows are left out"
    loss, gradient = run(emulate(work).model, {"r": rows.astype("f"), "l": labels, "w": by_class})
    np.testing.assert_allclose(loss, expected, rtol=digits)
    np.testing.assert_allclose(gradient, slopes @ matrix.T, rtol=digits, atol=24 * digits)  # scores are rounded


@pytest.mark.parametrize(
    ("dtype", "score", "digits"),
    [("float16", 5.0, 2e-3), ("float16", 11.5, 2e-3), ("float16", 14.5, 6e-2), ("float16", 19.0, 1.0)]
    + [("bfloat16", score, 1e-2) for score in (5.0, 11.5, 14.5, 19.0)],
)
def test_a_sure_label_keeps_its_digits(dtype, score, digits, run):
    """The probability is 1 - 2e-5 at 11.5: in 16 bits it would be 1, and the gradient 0. Float16 ends at 3e-8."""
    model = parse(
        f"""(float[1,3] r, int64[1] l) => (float g, float y) {{ x = Cast <to = {int(ir.DataType[dtype.upper()])}> (r)
        f = Cast <to = 1> (x) y = SoftmaxCrossEntropyLoss (f, l) g = Identity (r) }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    work = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    propagate_types(work)
    builder = GraphBuilder(work)
    loss = work.graph.outputs[1]
    grads = differentiate(builder, {loss: builder.constant(1000.0)}, [work.graph.inputs[0]])
    work.graph.outputs[0] = builder.op("Identity", [grads[work.graph.inputs[0]]])
    run_pass(LowerLoss(), work)
    gradient, loss = run(emulate(work).model, {"r": np.array([[score, 0, 0]], np.float32), "l": np.array([0])})
    others = 2 * np.exp(-score)
    miss = others / (1 + others)
    np.testing.assert_allclose(loss, np.log1p(others), rtol=digits)
    np.testing.assert_allclose(gradient, 1000 * miss * np.array([[-1, 0.5, 0.5]]), rtol=digits)
