"""Classification losses without ONNX Runtime's copies of the scores: the same numbers, from plain operators."""

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.passes.training import LowerLoss
from tests.support import array, parse

OPERATORS = ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"]


def loss(operator, shape, attributes='reduction = "mean"', inputs="x, l", outputs="y", element="float"):
    """A model of one loss; every shape of the result is possible."""
    sizes, places = ",".join(map(str, shape)), ",".join(map(str, (shape[0], *shape[2:])))
    given = f"{element}[{sizes}] x, int64[{places}] l, {element}[{shape[1]}] w"
    made = ", ".join(f"{element} {name}" for name in outputs.split(", "))
    model = parse(f"({given}) => ({made}) {{ {outputs} = {operator} <{attributes}> ({inputs}) }}")
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def lowered(model):
    made = ir.from_proto(model)
    propagate_types(made)
    result = run_pass(LowerLoss(), made)
    assert result.count == 1
    return made


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
    given = {name: value for name, value in feeds(shape, ignored).items() if name in inputs}
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, given)
    made = lowered(model)
    assert not {node.op_type for node in made.graph} & set(OPERATORS)
    (found,) = run(made, {**feeds(shape, ignored), **given})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_log_probabilities_are_a_result_too(run):
    model = loss("SoftmaxCrossEntropyLoss", (4, 3), outputs="y, z")
    given = feeds((4, 3))
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {name: given[name] for name in "xl"})
    for old, new in zip(expected, run(lowered(model), given), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5)


def test_an_ignored_sample_may_have_infinite_scores(run):
    given = feeds((4, 3), ignored=(2,))
    given["x"][2] = np.inf
    (found,) = run(lowered(loss("SoftmaxCrossEntropyLoss", (4, 3), "ignore_index = -100")), given)
    assert np.isfinite(found)


def test_16_bit_scores_are_computed_in_float32_and_results_keep_their_type():
    made = lowered(loss("SoftmaxCrossEntropyLoss", (4, 3), outputs="y, z", element="float16"))
    types = {node.op_type: node.outputs[0].dtype.name for node in made.graph if node.op_type != "Cast"}
    assert types["LogSoftmax"] == types["ReduceMean"] == "FLOAT"
    assert [value.dtype.name for value in made.graph.outputs] == ["FLOAT16", "FLOAT16"]
