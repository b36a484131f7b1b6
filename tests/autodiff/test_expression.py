"""Expressions append the operators that they read as."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from amp_transpiler.autodiff.expression import Expr, concat
from amp_transpiler.graph.builder import GraphBuilder

X = np.array([[0.5, -1.0, 2.0], [3.0, 0.25, -2.0]], np.float32)
Y = np.array([[2.0, -1.0, 1.0], [0.5, 4.0, -2.0]], np.float32)


def inputs(kind: ir.DataType = ir.DataType.FLOAT) -> tuple[ir.Model, Expr, Expr]:
    values = [ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape([2, 3])) for name in "xy"]
    graph = ir.Graph(values, [], nodes=[], opset_imports={"": 21}, name="g")
    model = ir.Model(graph, ir_version=10)
    builder = GraphBuilder(model)
    return model, Expr(values[0], builder), Expr(values[1], builder)


def computed(function) -> np.ndarray:
    model, x, y = inputs()
    model.graph.outputs.append(function(x, y).value)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return onnx.reference.ReferenceEvaluator(proto).run(None, {"x": X, "y": Y})[0]


def written(function, kind: ir.DataType = ir.DataType.FLOAT) -> list[str]:
    """The operators that a function appends, a number for an input that is a constant, `_` for an intermediate one."""
    model, x, y = inputs(kind)
    function(x, y)

    def shown(value: ir.Value) -> str:
        if value.const_value is not None:
            return f"{value.const_value.numpy().item():g}"
        return str(value.name) if value.name in ("x", "y") else "_"

    return [f"{node.op_type}({', '.join(shown(value) for value in node.inputs)})" for node in model.graph]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / y,
        lambda x, y: y @ x.T,
        lambda x, y: -x,
        lambda x, y: x**2,
        lambda x, y: 2 + x,
        lambda x, y: 2 - x,
        lambda x, y: 2 * x,
        lambda x, y: 2 / x,
        lambda x, y: x > y,
        lambda x, y: x >= y,
        lambda x, y: x < y,
        lambda x, y: x <= y,
        lambda x, y: (x > 0) & ~(y > 0),
        lambda x, y: x.reshape([3, 2]),
    ],
)
def test_operators_mean_what_they_mean_in_numpy(function):
    want = function(X, Y)
    got = computed(function)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x, y: x.equals(y), np.equal(X, Y)),
        (lambda x, y: (x > 0).where(x, 0), np.where(X > 0, X, 0)),
        (lambda x, y: (x > 0).where(0, y), np.where(X > 0, 0, Y)),
        (lambda x, y: x.maximum(y), np.maximum(X, Y)),
        (lambda x, y: x.minimum(0.5), np.minimum(X, 0.5)),
        (lambda x, y: x.tanh(), np.tanh(X)),
        (lambda x, y: x.abs().sqrt(), np.sqrt(np.abs(X))),
        (lambda x, y: x.sum(), X.sum(keepdims=True)),
        (lambda x, y: x.sum([1], keepdims=False), X.sum(1)),
        (lambda x, y: x.mean([0]), X.mean(0, keepdims=True)),
        (lambda x, y: x.transpose([1, 0]), X.T),
        (lambda x, y: x.slice([1], [3], [1]), X[:, 1:3]),
        (lambda x, y: x.unsqueeze(0).squeeze(0), X),
        (lambda x, y: x.sum([0]).expand_like(y), np.broadcast_to(X.sum(0), (2, 3))),
        (lambda x, y: x.sum_to(y.sum([0])), X.sum(0, keepdims=True)),
        (lambda x, y: x.shape_tensor(), np.array([2, 3])),
        (lambda x, y: x.zeros_like(), np.zeros((2, 3))),
        (lambda x, y: concat([x, y], 1), np.concatenate([X, Y], 1)),
        (lambda x, y: x.outputs("Split", count=3, axis=1, num_outputs=3)[1], X[:, 1:2]),
        (lambda x, y: x.op("Softmax", axis=1), np.exp(X) / np.exp(X).sum(1, keepdims=True)),
    ],
)
def test_methods(function, want):
    np.testing.assert_allclose(computed(function), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x, y: 1 - x, ["Sub(1, x)"]),
        (lambda x, y: 1 + x, ["Add(x, 1)"]),  # a number comes second in sums and products
        (lambda x, y: 2 * x, ["Mul(x, 2)"]),
        (lambda x, y: 1 / x, ["Reciprocal(x)"]),
        (lambda x, y: x.wide().cast(x.dtype), []),
    ],
)
def test_numbers_are_constants_and_needless_casts_are_not_written(function, want):
    assert written(function) == want


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        (ir.DataType.FLOAT, ["Greater(x, 0)"]),
        (ir.DataType.FLOAT16, ["Greater(x, 0)"]),
        (ir.DataType.BFLOAT16, ["Cast(x)", "Greater(_, 0)"]),  # CUDA compares no bfloat16
    ],
)
def test_bfloat16_is_compared_in_float32(kind, want):
    assert written(lambda x, y: x > 0, kind) == want


@pytest.mark.parametrize("kind", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
def test_sums_of_lower_precision_are_float32(kind):
    _, x, _ = inputs(kind)
    assert x.sum([0]).dtype == x.mean().dtype == x.wide().dtype == ir.DataType.FLOAT
    assert x.sum_to(x.slice([0], [1], [0]), low=True).dtype == kind


def test_numbers_take_the_element_type_of_the_expression():
    _, x, _ = inputs(ir.DataType.FLOAT16)
    assert (1 - x).dtype == ir.DataType.FLOAT16


def test_known_facts():
    model, x, _ = inputs()
    assert (x.rank, x.sizes, x.is_static, x.size(1), x.known) == (2, (2, 3), True, 3, None)
    x.value.shape = ir.Shape(["n", 3])
    assert (x.is_static, x.size(0), x.size(1)) == (False, None, 3)
    assert x.constant([1.0, 2.0]).known.tolist() == [1, 2]
    assert len(model.graph) == 0


def test_equality_is_pythons():
    _, x, y = inputs()
    assert (x == x, x == y) == (True, False)  # noqa: PLR0124  # that is the point
