"""Gradients of operators that read and write by index."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from amp_transpiler.errors import ModelError
from tests.autodiff.gradient_check import (
    check_by_differences,
    check_by_torch,
    gradient_model,
    needs_torch,
    run_gradients,
)
from tests.autodiff.graph_text import assert_low_is_well_typed, graph, tensor

RANDOM = np.random.default_rng(3)


def some(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f")


def reads(operator, attributes, x, index, symbolic, element="int64"):
    """A graph that reads `x` by an index; if `symbolic`, the first axis of both has no known size."""
    first = ("N",) if symbolic else x.shape[:1]
    rows = ("M",) if symbolic and index.ndim else index.shape[:1]
    inputs = f"{tensor((*first, *x.shape[1:]))} x, {tensor((*rows, *index.shape[1:]), element)} i"
    return graph(inputs, f"y = {operator}<{attributes}>(x, i)")


GATHERS = [
    (0, [1, 1, 0, -1]),
    (0, [[0, 2], [2, 2]]),
    (1, [0, 3, 3]),
    (-1, [[1, 1], [0, -1]]),
    (1, 2),
    (0, -1),
    (2, []),
]


@pytest.mark.parametrize(("axis", "index"), GATHERS)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("element", ["int64", "int32"])
def test_gather(axis, index, symbolic, element):
    x, index = some(3, 4, 2), np.array(index, element)
    text = reads("Gather", f"axis={axis}", x, index, symbolic, element)
    if index.size:
        check_by_differences(text, {"x": x, "i": index})
    else:
        assert not run_gradients(onnx.parser.parse_model(text), {"x": x, "i": index})[0]["x"].any()
    assert_low_is_well_typed(text)


PADDED = [
    (1, "int64 i = {-1}"),
    (1, "int64[1] i = {2}"),
    (2, "int64[1,1] i = {0}"),
    (1, "int64[3] i = {1, 2, -1}"),
    (1, "int64[4] i = {0, 1, 2, 3}"),
    (1, "int64[2,3] i = {2, 2, 2, 2, 2, 2}"),
    (2, "int32[3] i = {1, -1, 1}"),
]


@pytest.mark.parametrize(("axis", "index"), PADDED)
def test_gather_of_constant_neighbours_or_of_one_place_pads(axis, index):
    text = graph("float[N,4,2] x", f"y = Gather<axis={axis}>(x, i)", constants=index)
    check_by_differences(text, {"x": some(3, 4, 2)})
    backward, _ = gradient_model(onnx.parser.parse_model(text))
    assert "ScatterND" not in {node.op_type for node in backward.graph.node}


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_rows_of_low_embeddings_are_added_in_float32(kind):
    backward, _ = gradient_model(
        onnx.parser.parse_model(graph(f"{kind}[5,2] x, int64[N] i", "y = Gather(x, i)").replace("float y", f"{kind} y"))
    )
    (scatter,) = (node for node in backward.graph.node if node.op_type == "ScatterND")
    types = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(backward).graph.value_info}
    assert {types[scatter.input[2]], types[scatter.output[0]]} == {onnx.TensorProto.FLOAT}


@pytest.mark.parametrize(
    ("axis", "index"),
    [
        (0, [[0, 1], [2, 1], [2, -1]]),
        (1, [[0, 0, 1], [1, -1, 1], [0, 1, 0]]),
        (1, [[1], [1], [0]]),
        (-1, [[0, 0], [1, -1], [1, 1]]),
    ],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_gather_elements(axis, index, symbolic):
    x, index = some(3, 2), np.array(index)
    text = reads("GatherElements", f"axis={axis}", x, index, symbolic)
    check_by_differences(text, {"x": x, "i": index})
    assert_low_is_well_typed(text)


GATHERS_ND = [
    (0, [[0, 1], [2, 3], [0, 1]], (3, 4, 2)),
    (0, [[2], [0], [2]], (3, 4, 2)),
    (0, [[[0, 0, 1]], [[-1, 3, 0]]], (3, 4, 2)),
    (1, [[1], [3], [0]], (3, 4, 2)),
    (1, [[[1], [1]], [[0], [2]]], (2, 4, 2)),
    (1, [[[1, 0], [1, 0]], [[0, 1], [2, 1]]], (2, 4, 2)),
    (2, [[[0], [1]], [[1], [1]]], (2, 2, 2)),
]


@pytest.mark.parametrize(("batch", "index", "shape"), GATHERS_ND)
@pytest.mark.parametrize("symbolic", [False, True])
def test_gather_nd(batch, index, shape, symbolic):
    x, index = some(*shape), np.array(index)
    text = reads("GatherND", f"batch_dims={batch}", x, index, symbolic)
    check_by_differences(text, {"x": x, "i": index})
    assert_low_is_well_typed(text)


def writes(operator, attributes, x, index, updates, symbolic):
    shapes = [list(array.shape) for array in (x, index, updates)]
    if symbolic:
        shapes[0][0], shapes[1][0], shapes[2][0] = "N", "M", "M"
    inputs = ", ".join(
        f"{tensor(shape, element)} {name}"
        for shape, element, name in zip(shapes, ("float", "int64", "float"), "xiu", strict=True)
    )
    return graph(inputs, f"y = {operator}<{attributes}>(x, i, u)")


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("reduction", "axis", "index"),
    [
        ("none", 0, [[0, 2], [1, 0]]),
        ("none", -1, [[1], [0]]),
        ("add", 0, [[0, 2], [0, 2]]),
        ("add", 1, [[0, -1], [1, 1]]),
    ],
)
def test_scatter_elements(reduction, axis, index, symbolic):
    x, index = some(3, 2), np.array(index)
    updates = some(*index.shape)
    text = writes("ScatterElements", f'axis={axis}, reduction="{reduction}"', x, index, updates, symbolic)
    check_by_differences(text, {"x": x, "i": index, "u": updates})
    assert_low_is_well_typed(text)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("reduction", "index", "update_shape"),
    [
        ("none", [[2], [0]], (2, 2)),
        ("none", [[2, 1], [0, 0]], (2,)),
        ("add", [[2], [2]], (2, 2)),
        ("add", [[2, 1], [-1, 1]], (2,)),
    ],
)
def test_scatter_nd(reduction, index, update_shape, symbolic):
    x, index, updates = some(3, 2), np.array(index), some(*update_shape)
    text = writes("ScatterND", f'reduction="{reduction}"', x, index, updates, symbolic)
    check_by_differences(text, {"x": x, "i": index, "u": updates})
    assert_low_is_well_typed(text)


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", ["mul", "max"])
def test_other_reductions_are_refused(operator, reduction):
    text = writes(
        operator,
        f'reduction="{reduction}"',
        some(3, 2),
        np.array([[0, 1]]),
        some(1, 2) if operator == "ScatterElements" else some(1),
        symbolic=False,
    )
    with pytest.raises(ModelError, match=f"{operator}, opset 21.*reduction '{reduction}'"):
        gradient_model(onnx.parser.parse_model(text))


@pytest.mark.parametrize("axis", [-1, 0])
def test_the_values_of_one_hot(axis):
    text = graph("int64[N] i, float[2] v", f"y = OneHot<axis={axis}>(i, d, v)", constants="int64 d = {4}")
    check_by_differences(text, {"i": np.array([1, 3, 1]), "v": some(2)})
    assert_low_is_well_typed(text, ["float16"])  # the operator takes no bfloat16


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("axis", "count"), [(-1, 2), (0, 1)])
def test_top_k(largest, axis, count):
    body = f"v, i = TopK<axis={axis}, largest={largest}>(x, k)"
    text = graph("float[N,4] x", body, outputs="float v", constants=f"int64[1] k = {{{count}}}")
    check_by_differences(text, {"x": some(3, 4)})
    assert_low_is_well_typed(text, ["float16"])  # the operator takes no bfloat16


def test_compress_is_refused():
    with pytest.raises(ModelError, match=r"Compress, opset 21.*multiply by a mask"):
        gradient_model(onnx.parser.parse_model(graph("float[3] x, bool[3] c", "y = Compress(x, c)")))


def test_adding_needs_opset_16():
    with pytest.raises(ModelError, match=r"Gather, opset 15.*raise the opset"):
        gradient_model(onnx.parser.parse_model(graph("float[3] x, int64[2] i", "y = Gather(x, i)", opset=15)))


@needs_torch
@pytest.mark.parametrize(
    ("text", "feeds", "function"),
    [
        (
            graph("float[5,2] x, int64[N,3] i", "y = Gather(x, i)"),
            {"i": np.array([[0, 1, 1], [4, 1, 0]])},
            lambda x, i: x[i],
        ),
        (
            graph("float[N,2] x, int64[N,2] i", "y = GatherElements<axis=1>(x, i)"),
            {"i": np.array([[0, 0], [1, 0], [1, 1], [0, 1], [1, 1]])},
            lambda x, i: x.gather(1, i),
        ),
        (
            graph(
                "float[N,2] x, int64[N,1] i",
                "y = ScatterElements<axis=1>(x, i, u)",
                constants="float[5,1] u = {1,2,3,4,5}",
            ),
            {"i": np.array([[0], [0], [1], [0], [1]])},
            lambda x, i: x.scatter(1, i, 0.0),
        ),
        (graph("float[N,2] x", "y, i = TopK(x, k)", constants="int64[1] k = {1}"), {}, lambda x: x.topk(1).values),
    ],
)
def test_by_torch(text, feeds, function):
    check_by_torch(text, {"x": some(5, 2), **feeds}, function)
