"""Gradients of pools and of the moves between space and channels."""

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

RANDOM = np.random.default_rng(0)
BATCH = 2


def distinct(*shape: int) -> np.ndarray:
    """Numbers so far apart that a small difference does not change which one is the maximum."""
    return (RANDOM.permutation(int(np.prod(shape))).reshape(shape) / 10 - 1.03).astype("f")


def text(operator: str, x: tuple[int, ...], attributes: str, dtype: str = "float", opset: int = 22) -> str:
    """The model with a symbolic batch; `x` is the shape of the input without it."""
    call = f"{operator} <{attributes}> (x)" if attributes else f"{operator} (x)"
    return f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g ({dtype}[batch,{",".join(map(str, x))}] x) => ({dtype}[batch,{",".join("a" * len(x))}] y) {{ y = {call} }}"""


# x without batch, kernel, strides, pads (the same on both ends), dilations, ceil_mode
POOLS = [
    ((2, 9), [3], [2], [1], [1], 0),
    ((2, 7), [3], [3], [0], [1], 1),
    ((2, 6, 7), [2, 2], [2, 2], [0, 0], [1, 1], 0),
    ((2, 8, 7), [3, 3], [2, 2], [1, 1], [1, 1], 0),
    ((2, 8, 7), [3, 3], [1, 1], [1, 1], [1, 1], 0),
    ((2, 8, 7), [3, 2], [2, 2], [1, 0], [1, 1], 1),
    ((2, 9, 9), [2, 3], [1, 2], [1, 1], [2, 2], 0),
    ((1, 4, 5, 6), [2, 3, 2], [2, 2, 1], [0, 1, 1], [1, 1, 1], 0),
    ((1, 5, 5, 5), [3, 3, 3], [2, 2, 2], [1, 1, 1], [1, 1, 1], 1),
]


def of(kernel, strides, pads, dilations, ceil) -> str:
    rest = f"dilations = {dilations}, ceil_mode = {ceil}"
    return f"kernel_shape = {kernel}, strides = {strides}, pads = {pads + pads}, {rest}"


@needs_torch
@pytest.mark.parametrize(("x", "kernel", "strides", "pads", "dilations", "ceil"), POOLS)
def test_max_pool(x, kernel, strides, pads, dilations, ceil):
    def function(x):
        import torch.nn.functional as f

        pool = [f.max_pool1d, f.max_pool2d, f.max_pool3d][len(kernel) - 1]
        return pool(x, kernel, strides, pads, dilations, bool(ceil))

    check_by_torch(text("MaxPool", x, of(kernel, strides, pads, dilations, ceil)), {"x": distinct(BATCH, *x)}, function)


def test_equal_maxima_give_all_to_one():
    slopes, seeds = run_gradients(
        onnx.parser.parse_model(text("MaxPool", (1, 4), "kernel_shape = [2], strides = [2]")),
        {"x": np.zeros((1, 1, 4), "f")},
    )
    first, second = seeds["y"].astype("f").ravel()
    assert slopes["x"].ravel().tolist() == [first, 0, second, 0]


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("pad", "pads"),
    [("SAME_UPPER", [0, 1, 1, 2]), ("SAME_LOWER", [1, 2, 0, 1]), ("VALID", [0, 0, 0, 0])],
)
def test_auto_pad(operator, pad, pads):
    """The same as with explicit pads."""
    x = {"x": distinct(BATCH, 1, 4, 5)}
    automatic, explicit = (
        text(operator, (1, 4, 5), f"kernel_shape = [2, 4], strides = [1, 2], {attribute}")
        for attribute in (f'auto_pad = "{pad}"', f"pads = {pads}")
    )
    slopes, seeds = run_gradients(onnx.parser.parse_model(automatic), x)
    want, _ = run_gradients(onnx.parser.parse_model(explicit), x, seeds=seeds)
    np.testing.assert_allclose(slopes["x"], want["x"], rtol=1e-6)


@needs_torch
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(
    ("x", "kernel", "strides", "pads", "ceil"), [(*row[:4], row[5]) for row in POOLS if set(row[4]) == {1}]
)
def test_average_pool(x, kernel, strides, pads, ceil, include):
    def function(x):
        import torch.nn.functional as f

        pool = [f.avg_pool1d, f.avg_pool2d, f.avg_pool3d][len(kernel) - 1]
        return pool(x, kernel, strides, pads, bool(ceil), bool(include))

    attributes = f"{of(kernel, strides, pads, [1] * len(kernel), ceil)}, count_include_pad = {include}"
    check_by_torch(text("AveragePool", x, attributes), {"x": distinct(BATCH, *x)}, function)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        ((1, 5, 4), "kernel_shape = [3, 2], pads = [2, 0, 1, 1]"),
        ((1, 6, 6), "kernel_shape = [2, 3], dilations = [2, 2], strides = [2, 1], pads = [1, 1, 0, 2]"),
        ((1, 6), "kernel_shape = [2], dilations = [3], pads = [1, 1]"),
    ],
)
def test_average_pool_against_differences(x, attributes, include):
    source = text("AveragePool", x, f"{attributes}, count_include_pad = {include}")
    check_by_differences(source, {"x": distinct(BATCH, *x)})


@needs_torch
@pytest.mark.parametrize("x", [(2, 3), (2, 3, 2), (1, 2, 2, 3)])
@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools(operator, x):
    def function(x):
        axes = tuple(range(2, x.dim()))
        return x.mean(axes, keepdim=True) if operator == "GlobalAveragePool" else x.amax(axes, keepdim=True)

    check_by_torch(text(operator, x, ""), {"x": distinct(BATCH, *x)}, function)


def test_equal_global_maxima_share():
    x = np.array([[[1, 3, 3, 0]], [[2, 2, 2, 2]]], "f")
    slopes, seeds = run_gradients(onnx.parser.parse_model(text("GlobalMaxPool", (1, 4), "")), {"x": x})
    a, b = seeds["y"].ravel()
    np.testing.assert_allclose(slopes["x"].reshape(2, 4), [[0, a / 2, a / 2, 0], [b / 4] * 4], rtol=1e-6)


@needs_torch
@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p):
    def function(x):
        import torch

        parts = x.abs().unfold(2, 3, 2).unfold(3, 2, 1)
        return torch.pow(torch.pow(parts, p).sum((-1, -2)), 1 / p)

    attributes = f"kernel_shape = [3, 2], strides = [2, 1], p = {p}"
    check_by_torch(text("LpPool", (2, 7, 5), attributes), {"x": distinct(BATCH, 2, 7, 5)}, function)


@needs_torch
@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool(p):
    def function(x):
        return x.abs().pow(p).sum((2, 3), keepdim=True).pow(1 / p)

    check_by_torch(text("GlobalLpPool", (2, 3, 4), f"p = {p}", opset=21), {"x": distinct(BATCH, 2, 3, 4)}, function)


def test_the_norm_of_zeros_passes_nothing():
    slopes, _ = run_gradients(
        onnx.parser.parse_model(text("LpPool", (1, 4), "kernel_shape = [2], strides = [2], p = 3")),
        {"x": np.array([[[0, 0, 1, 2]]], "f")},
    )
    assert slopes["x"][0, 0, :2].tolist() == [0, 0]
    assert np.all(slopes["x"][0, 0, 2:] != 0)


@pytest.mark.parametrize(
    ("operator", "x", "attributes"),
    [
        ("DepthToSpace", (8, 2, 3), "blocksize = 2"),
        ("DepthToSpace", (8, 2, 3), 'blocksize = 2, mode = "DCR"'),
        ("DepthToSpace", (8, 2, 3), 'blocksize = 2, mode = "CRD"'),
        ("SpaceToDepth", (2, 4, 6), "blocksize = 2"),
    ],
)
def test_space_and_depth(operator, x, attributes):
    check_by_differences(text(operator, x, attributes), {"x": distinct(BATCH, *x)})


TYPED = [
    ("MaxPool", (2, 8, 7), "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"),
    ("MaxPool", (2, 8, 8), "kernel_shape = [2, 2], strides = [2, 2]"),
    ("AveragePool", (2, 8, 7), "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"),
    ("AveragePool", (2, 4, 4, 4), "kernel_shape = [2, 2, 2]"),
    ("LpPool", (2, 8, 7), "kernel_shape = [3, 3], p = 3"),
    ("GlobalAveragePool", (2, 8, 7), ""),
    ("GlobalMaxPool", (2, 8, 7), ""),
    ("GlobalLpPool", (2, 8, 7), ""),
    ("DepthToSpace", (8, 2, 3), 'blocksize = 2, mode = "CRD"'),
    ("SpaceToDepth", (2, 4, 6), "blocksize = 2"),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double"])
@pytest.mark.parametrize(("operator", "x", "attributes"), TYPED)
def test_element_types_fit(operator, x, attributes, dtype):
    backward, names = gradient_model(onnx.parser.parse_model(text(operator, x, attributes, dtype)))
    assert names == ["x"]
    assert len({o.type.tensor_type.elem_type for o in backward.graph.output}) == 1


@pytest.mark.parametrize(
    ("kernel", "strides", "reduction"), [([3, 3], [2, 2], b"add"), ([2, 2], [2, 2], None), ([2, 2], [2, 3], None)]
)
def test_only_overlapping_windows_add(kernel, strides, reduction):
    """Sums are taken in float32: float16 loses the small terms."""
    source = text("MaxPool", (2, 9, 9), f"kernel_shape = {kernel}, strides = {strides}", "float16")
    backward, _ = gradient_model(onnx.parser.parse_model(source))
    (scatter,) = [node for node in backward.graph.node if node.op_type == "ScatterElements"]
    assert {a.name: a.s for a in scatter.attribute}.get("reduction") == reduction
    types = {v.name: v.type.tensor_type.elem_type for v in backward.graph.value_info}
    assert types[scatter.input[2]] == (onnx.TensorProto.FLOAT if reduction else onnx.TensorProto.FLOAT16)


def test_indices_that_the_model_has_already_are_used():
    source = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[batch,1,4] x) => (float[batch,1,a] y, int64[batch,1,a] i)
        { y, i = MaxPool <kernel_shape = [2]> (x) }"""
    slopes, seeds = run_gradients(onnx.parser.parse_model(source), {"x": np.array([[[1, 4, 2, 3]]], "f")})
    a, b, c = seeds["y"].ravel()
    np.testing.assert_allclose(slopes["x"].ravel(), [0, a + b, 0, c], rtol=1e-6)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (text("MaxPool", (1, 4, 4), "kernel_shape = [2, 2], storage_order = 1"), "storage_order"),
        (text("MaxPool", (1, 4, 4), "kernel_shape = [2, 2]", opset=15), "opset 16"),
        (text("AveragePool", (1, "h", 4), "kernel_shape = [2, 2]"), "must be known numbers"),
    ],
)
def test_what_cannot_be_done_is_an_error(source, match):
    with pytest.raises(ModelError, match=match):
        gradient_model(onnx.parser.parse_model(source))
