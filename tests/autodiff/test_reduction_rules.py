"""Gradients of reductions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.autodiff.gradient_check import check_by_differences, check_by_torch, needs_torch, run_gradients
from tests.autodiff.graph_text import assert_low_is_well_typed, graph, numbers, tensor

RANDOM = np.random.default_rng(2)
OPERATORS = [
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
]
AXES = [([1], 1), ([-1], 0), ([0, 2], 0), ([2, 0], 1), ([-2, 0, 2], 0), (None, 1), (None, 0)]


def some(*shape: int) -> np.ndarray:
    return (RANDOM.permutation(int(np.prod(shape))).reshape(shape) / 7 + 0.4).astype("f")  # no ties


def text(operator, axes, keepdims, shape, noop=0):
    axes_input = "" if axes is None else ", a"
    held = "" if axes is None else numbers("a", axes)
    body = f"y = {operator}<keepdims={keepdims}, noop_with_empty_axes={noop}>(x{axes_input})"
    return graph(f"{tensor(shape)} x", body, constants=held)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("axes", "keepdims"), AXES)
@pytest.mark.parametrize("shape", [(2, 3, 2), ("N", 3, 2)])
def test_axes_and_keepdims(operator, axes, keepdims, shape):
    check_by_differences(text(operator, axes, keepdims, shape), {"x": some(2, 3, 2)})


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("axes", "keepdims"), [([-1], 0), (None, 1)])
@pytest.mark.parametrize("first", [2, "N"])
def test_low_types_are_well_typed(operator, axes, keepdims, first):
    assert_low_is_well_typed(text(operator, axes, keepdims, (first, 3, 2)))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("noop", [0, 1])
def test_empty_axes(operator, noop):
    check_by_differences(text(operator, [], 1, ("N", 3), noop), {"x": some(2, 3)})


@pytest.mark.parametrize("operator", [name for name in OPERATORS if name != "ReduceSum"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_as_an_attribute(operator, keepdims):
    body = f"y = {operator}<keepdims={keepdims}, axes=[-1]>(x)"
    check_by_differences(graph("float[N,3] x", body, opset=17), {"x": some(2, 3)})


def gradient(operator, values, seed=None):
    model = onnx.parser.parse_model(text(operator, [1], 0, ("N", len(values[0]))))
    x = np.array(values, "f")
    slopes, _ = run_gradients(model, {"x": x}, seeds={"y": np.full(len(x), 6.0)})
    return slopes["x"]


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_ties_share(operator):
    sign = 1 if operator == "ReduceMax" else -1
    values = [[sign * v for v in row] for row in ([1, 2, 2], [3, 3, 3], [5, 0, 1])]
    assert gradient(operator, values).tolist() == [[0, 3, 3], [2, 2, 2], [6, 0, 0]]


def test_products_with_zeros():
    got = gradient("ReduceProd", [[2, 3, 4], [0, 3, 4], [0, 3, 0]])
    assert np.allclose(got, [[72, 48, 36], [72, 0, 0], [0, 0, 0]])


def test_the_norm_of_nothing():
    assert gradient("ReduceL2", [[0, 0], [3, 4]]).tolist() == [[0, 0], [pytest.approx(3.6), pytest.approx(4.8)]]


def test_minus_infinity_in_a_sum_of_exponentials():
    inf = float("inf")
    assert gradient("ReduceLogSumExp", [[-inf, 0], [-inf, -inf]]).tolist() == [[0, 6], [0, 0]]


def test_negative_numbers():
    x = np.array([[-1.0, 2.0, -3.0], [0.5, -0.25, 4.0]], "f")
    for operator in ("ReduceL1", "ReduceL2", "ReduceProd", "ReduceSumSquare"):
        check_by_differences(text(operator, [1], 0, ("N", 3)), {"x": x})


@needs_torch
@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("ReduceSum", lambda x: x.sum(1)),
        ("ReduceMean", lambda x: x.mean(1)),
        ("ReduceMax", lambda x: x.amax(1)),
        ("ReduceMin", lambda x: x.amin(1)),
        ("ReduceProd", lambda x: x.prod(1)),
        ("ReduceL1", lambda x: x.abs().sum(1)),
        ("ReduceL2", lambda x: x.norm(dim=1)),
        ("ReduceSumSquare", lambda x: (x * x).sum(1)),
        ("ReduceLogSumExp", lambda x: x.logsumexp(1)),
    ],
)
def test_by_torch(operator, function):
    ties_and_zeros = np.array([[1, 0, 1, 0.5], [2, 3, -1, 3]], "f")
    check_by_torch(text(operator, [1], 0, ("N", 4)), {"x": ties_and_zeros}, function)
