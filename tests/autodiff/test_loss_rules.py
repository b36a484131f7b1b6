"""Gradients of the classification losses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.autodiff.gradient_check import (
    check_by_differences,
    check_by_torch,
    gradient_model,
    needs_torch,
    run_gradients,
)

RANDOM = np.random.default_rng(0)
SHAPES = [(4, 3), (2, 3, 4), (2, 3, 2, 2)]
LOSSES = ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"]


def text(
    loss: str,
    shape: tuple[int, ...],
    reduction: str,
    *,
    weights: bool = False,
    ignore: int | None = None,
    labels: str = "int64",
    dtype: str = "float",
    outputs: str = "y",
) -> str:
    """A model of one loss over a batch of symbolic size."""
    scores, classes = ",".join(["N", *map(str, shape[1:])]), ",".join(["N", *map(str, shape[2:])])
    attributes = f'reduction = "{reduction}"' + ("" if ignore is None else f", ignore_index = {ignore}")
    more = (f", {dtype}[{shape[1]}] w", ", w") if weights else ("", "")
    results = ", ".join(f"{dtype}[] {name}" for name in outputs.split(", "))
    return f"""<ir_version: 10, opset_import: ["" : 22]>
        g ({dtype}[{scores}] x, {labels}[{classes}] t{more[0]}) => ({results})
        {{ {outputs} = {loss} <{attributes}> (x, t{more[1]}) }}"""


def feeds_of(shape: tuple[int, ...], *, weights: bool, ignore: int | None = None, labels: str = "int64") -> dict:
    target = RANDOM.integers(0, shape[1], (shape[0], *shape[2:])).astype(labels)
    if ignore is not None:
        target.reshape(-1)[::3] = ignore
        target.reshape(-1)[1] = 2  # one label counts: the mean of none is 0 / 0
    arrays = {"x": RANDOM.normal(size=shape).astype("f"), "t": target}
    return arrays | ({"w": RANDOM.uniform(0.5, 2, shape[1]).astype("f")} if weights else {})


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("ignore", [None, 1])
def test_loss(loss, shape, reduction, weights, ignore):
    model = text(loss, shape, reduction, weights=weights, ignore=ignore)
    check_by_differences(model, feeds_of(shape, weights=weights, ignore=ignore))


@needs_torch
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("labels", ["int64", "int32"])
def test_cross_entropy_with_labels_outside_the_classes(shape, weights, labels):
    from torch.nn.functional import cross_entropy

    model = text(LOSSES[0], shape, "mean", weights=weights, ignore=-100, labels=labels)
    feeds = feeds_of(shape, weights=weights, ignore=-100, labels=labels)
    check_by_torch(
        model, feeds, lambda x, t, w=None: cross_entropy(x, t.long(), None if w is None else w.detach()), wrt=["x"]
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_log_prob_has_a_gradient_too(shape, reduction):
    model = text(LOSSES[0], shape, reduction, ignore=0, outputs="y, lp")
    check_by_differences(model, feeds_of(shape, weights=False, ignore=0))


def test_gradient_of_log_prob_alone():
    model = text(LOSSES[0], (4, 3), "mean", outputs="y, lp")
    proto = onnx.parser.parse_model(model)
    del proto.graph.output[0]
    slopes, seeds = run_gradients(proto, feeds := feeds_of((4, 3), weights=False))
    shares = np.exp(feeds["x"]) / np.exp(feeds["x"]).sum(1, keepdims=True)
    want = seeds["lp"] - shares * seeds["lp"].sum(1, keepdims=True)
    np.testing.assert_allclose(slopes["x"], want, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", [False, True])
def test_samples_that_do_not_count_have_gradient_zero(loss, weights):
    feeds = feeds_of((4, 3), weights=weights)
    feeds["t"][:] = -1
    feeds["x"][1] = np.inf
    model = onnx.parser.parse_model(text(loss, (4, 3), "mean", weights=weights, ignore=-1))
    slopes, _ = run_gradients(model, feeds, wrt=["x"])
    assert not slopes["x"].any()


def test_large_scores():
    feeds = {"x": np.array([[1e4, -1e4, 0]], "f"), "t": np.array([1])}
    slopes, _ = run_gradients(
        onnx.parser.parse_model(text(LOSSES[0], (1, 3), "sum")), feeds, seeds={"y": np.array(1.0)}
    )
    np.testing.assert_array_equal(slopes["x"], [[1, -1, 0]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_low_precision_is_well_typed(loss, reduction, dtype):
    model = text(loss, (4, 3, 2), reduction, weights=True, ignore=2, dtype=dtype)
    backward, names = gradient_model(onnx.parser.parse_model(model))
    assert names == ["x", "w"]
    low = onnx.TensorProto.DataType.Value(dtype.upper())
    assert all(o.type.tensor_type.elem_type == low for o in backward.graph.output)
    kinds = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(backward).graph.value_info}
    assert all(kinds[n.output[0]] == onnx.TensorProto.FLOAT for n in backward.graph.node if n.op_type == "ReduceSum")
