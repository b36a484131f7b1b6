"""Counts the terms that an operator sums, or multiplies, into one number of its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.cost.shapes import Sizes
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.product_operands import stacked_shape

__all__ = ["terms"]

_Shape: TypeAlias = tuple[int, ...]


def terms(node: ir.Node, sizes: Sizes) -> int:
    """Return the number of terms; 0 for an operator that sums nothing, and where shapes are not known."""
    rule = _TERMS.get(node.op_type)
    return 0 if rule is None else rule(node, sizes)


def _shape(node: ir.Node, index: int, sizes: Sizes) -> _Shape:
    value = node.inputs[index] if index < len(node.inputs) else None
    return sizes.shape(value) or ()


def _product(node: ir.Node, sizes: Sizes) -> int:
    """The inner dimension of a matrix product."""
    first = stacked_shape(node, 0, _shape(node, 0, sizes))
    if not first:
        return 0
    return first[-2] if node.attributes.get_int("transA", 0) and len(first) > 1 else first[-1]


def _conv(node: ir.Node, sizes: Sizes) -> int:
    """Input channels of a group, times the places of the kernel."""
    weight = _shape(node, 1, sizes)
    return math.prod(weight[1:]) if len(weight) > 1 else 0


def _conv_transpose(node: ir.Node, sizes: Sizes) -> int:
    weight = _shape(node, 1, sizes)  # [input channels, output channels of a group, kernel]
    return weight[0] // node.attributes.get_int("group", 1) * math.prod(weight[2:]) if weight else 0


def _reduced(node: ir.Node, sizes: Sizes) -> int:
    """The dimensions that are reduced, multiplied; all of them where none is named."""
    shape = _shape(node, 0, sizes)
    named = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = node.attributes.get_ints("axes", ()) if named is None else named.reshape(-1).tolist()
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        return 0
    return math.prod(shape[axis] for axis in axes) if axes and shape else math.prod(shape)


def _cumulated(node: ir.Node, sizes: Sizes) -> int:
    shape = _shape(node, 0, sizes)
    axis = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    return shape[int(axis.reshape(-1)[0])] if axis is not None and axis.size and shape else 0


def _averaged(node: ir.Node, _: Sizes) -> int:
    return math.prod(node.attributes.get_ints("kernel_shape", ()))


def _averaged_whole(node: ir.Node, sizes: Sizes) -> int:
    return math.prod(_shape(node, 0, sizes)[2:])


def _attention(node: ir.Node, sizes: Sizes) -> int:
    """The longer of the two sums: over a query's width, and over the keys."""
    query, key = _shape(node, 0, sizes), _shape(node, 1, sizes)
    if len(query) <= 2:
        return 0
    return max(query[-1], key[-2] if len(key) > 2 else query[-2])


def _recurrent(node: ir.Node, sizes: Sizes) -> int:
    """A gate adds up an input and the state before."""
    return sum(shape[-1] for index in (1, 2) if (shape := _shape(node, index, sizes)))


_TERMS: Mapping[str, Callable[[ir.Node, Sizes], int]] = MappingProxyType(
    {
        **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "GemmFastGelu", "TransposeMatMul"), _product),
        **dict.fromkeys(("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv"), _conv),
        "ConvTranspose": _conv_transpose,
        **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2"), _reduced),
        **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), _reduced),
        **dict.fromkeys(("CumSum", "CumProd"), _cumulated),
        **dict.fromkeys(("AveragePool", "LpPool"), _averaged),
        **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool"), _averaged_whole),
        **dict.fromkeys(("Sum", "Mean"), lambda node, _: len(node.inputs)),
        **dict.fromkeys(("Attention", "MultiHeadAttention", "GroupQueryAttention"), _attention),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    }
)
