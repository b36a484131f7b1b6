"""Sums 16-bit rows by matrix products, which sum in float32 and need no casts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.targets.kernel_conditions import blocks_of
from amp_transpiler.update_passes.update_chains import low_source

__all__ = ["SumByProducts"]


class SumByProducts(Pass[PassResult]):
    """Writes 16-bit sums over leading axes as products with a row of ones; counts them.

    The gradient of a bias, a scale or a table of positions is such a sum: a cast to float32, a ReduceSum and a cast
    back, ten bytes an element and three kernels. A matrix product sums in float32 too: two bytes and one kernel.

    1. The value that is cast to float32 for the sum is 16-bit, and the sum is cast only to the same format.
    2. The axes are the first ones. What is left of the value is one row, whatever its axes.
    3. A sum that is 16-bit itself becomes a product where CUDA would add up partial sums of several blocks, in 16 bits
       and in any order (`targets/kernel_conditions.py`).

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        shared, count = GraphBuilder(model), 0
        for node in list(model.graph):
            if node.graph is not None and _sums_first_axes(node):
                count += _rewrite(node, shared)
        return PassResult(model, modified=bool(count), count=count)


def _sums_first_axes(node: ir.Node) -> bool:
    if node.op_type != "ReduceSum" or not is_standard(node) or len(node.inputs) < 2:
        return False
    summed, axes = node.inputs[0], node.inputs[1]
    tensor = None if axes is None else constant_of(axes)
    if tensor is None or tensor.size == 0 or summed is None or not is_static(summed):
        return False
    rank = len(shape_of(summed))
    first_axes = sorted(int(axis) % rank for axis in tensor.numpy())
    return first_axes == list(range(len(first_axes))) and len(first_axes) < rank


def _rewrite(node: ir.Node, shared: GraphBuilder) -> bool:
    """Replace a 16-bit sum, or a sum of float32 between casts from and to 16 bits; return whether it is one."""
    wide, result = node.inputs[0], node.outputs[0]
    assert wide is not None
    source = wide if wide.dtype in LOW_DTYPES else low_source(wide)
    if source is None or not is_static(result):
        return False
    if source is wide:
        return _replace_low(node, source, shared)
    casts = _casts_of(result)
    if not casts or any(cast.outputs[0].dtype != source.dtype for cast in casts):
        return False
    total = _product(node, source, casts[0], shared)
    for cast in casts:
        value = cast.outputs[0]
        value.replace_all_uses_with(total.builder.reshape(total.value, shape_of(value)))
    _remove_unused([*casts, *_makers(casts[0], node), node, wide.producer()])
    return True


def _replace_low(node: ir.Node, source: ir.Value, shared: GraphBuilder) -> bool:
    """Replace a 16-bit sum whose blocks would be added up in any order; return whether it is one."""
    rows, result = _rows(node), node.outputs[0]
    if result.is_graph_output() or blocks_of(rows, math.prod(shape_of(source)) // max(1, rows))[1] == 1:
        return False
    total = _product(node, source, node, shared)
    result.replace_all_uses_with(total.builder.reshape(total.value, shape_of(result)))
    _remove_unused([node])
    return True


class _Total(NamedTuple):
    """A product that is a sum, and what builds on after it."""

    value: ir.Value
    builder: GraphBuilder


def _product(node: ir.Node, source: ir.Value, last: ir.Node, shared: GraphBuilder) -> _Total:
    """Multiply the rows of a 16-bit value by ones, which all sums share, before a node."""
    rows = _rows(node)
    builder = GraphBuilder(
        shared.model,
        before=last,
        names=shared.names,
        metadata=last.metadata_props,
        prefix=f"{node.name}/",
        shares=shared,
    )
    ones = builder.constant(np.ones((1, rows)), source.dtype)
    sizes = shape_of(source)
    flat = source if len(sizes) == 2 and rows == sizes[0] else builder.reshape(source, [rows, -1])
    return _Total(builder.matmul(ones, flat), builder)


def _rows(node: ir.Node) -> int:
    """Return how many rows a sum over first axes adds up."""
    summed, axes = node.inputs[0], constant_of(node.inputs[1])
    assert summed is not None, "a reduction has an input"
    assert axes is not None, "they are constant"
    return math.prod(shape_of(summed)[: axes.size])


def _casts_of(result: ir.Value) -> list[ir.Node]:
    """Return the casts that read a sum, behind views of it too; none if anything else does."""
    casts: list[ir.Node] = []
    if result.is_graph_output():
        return casts
    for use in result.uses():
        node, value = use.node, use.node.outputs[0]
        if not is_standard(node) or value.is_graph_output():
            return []
        if node.op_type == "Cast":
            casts.append(node)
        elif node.op_type in ("Squeeze", "Reshape") and use.idx == 0 and (behind := _casts_of(value)):
            casts.extend(behind)
        else:
            return []
    return casts


def _makers(cast: ir.Node, start: ir.Node) -> list[ir.Node]:
    """Return the views between a sum and a cast, the last one first."""
    views: list[ir.Node] = []
    node = cast.inputs[0].producer() if cast.inputs[0] is not None else None
    while node is not None and node is not start:
        views.append(node)
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return views


def _remove_unused(nodes: list[ir.Node | None]) -> None:
    for node in nodes:
        if node is not None and node.graph is not None and not any(is_used(value) for value in node.outputs):
            node.graph.remove(node, safe=True)
