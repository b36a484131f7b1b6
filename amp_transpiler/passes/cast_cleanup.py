"""Removing casts that change nothing.

1. A cast to the type that its input already has.
2. A cast behind a cast, where the two together are one: the first loses nothing, or it turns an integer into float32
   (ONNX Runtime converts integers to 16-bit floats by way of float32 too).
3. A second cast of one value to one type in the same graph.
4. A cast that nothing reads.

A float32 -> low -> float32 round trip is never removed: it rounds. Nor is float32 -> int64 -> float32: it truncates.
"""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.dtypes import INTEGER_DTYPES, LOW_DTYPES, cast_is_lossless
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.casts import INSERTED

__all__ = ["clean_casts"]


def clean_casts(model: ir.Model) -> int:
    """Remove needless casts; return how many of them the source had."""
    removed = 0
    graphs = [scope.graph for scope in scopes(model)]
    for graph in graphs:
        first: dict[tuple[ir.Value, ir.DataType], ir.Node] = {}
        for node in list(graph):
            if _is_cast(node):
                _skip_inner_cast(node)
                _remove_if_needless(node, first)
    for graph in reversed(graphs):
        for node in reversed(list(graph)):
            if _is_cast(node) and not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                removed += INSERTED not in node.meta
                graph.remove(node, safe=True)
    return removed


def _is_cast(node: ir.Node) -> bool:
    return node.op_type == "Cast" and is_standard(node) and node.inputs[0] is not None


def _skip_inner_cast(node: ir.Node) -> None:
    """Rule 2: read the inner cast's input directly."""
    value = node.inputs[0]
    inner = value.producer() if value is not None else None
    if inner is None or not _is_cast(inner):
        return
    source = inner.inputs[0]
    if source is None or source.dtype is None or value is None or value.dtype is None:
        return
    if _compose(source.dtype, value.dtype, node.outputs[0].dtype):
        node.replace_input_with(0, source)


def _compose(first: ir.DataType, middle: ir.DataType, last: ir.DataType | None) -> bool:
    if cast_is_lossless(first, middle):
        return True
    return first in INTEGER_DTYPES and middle == ir.DataType.FLOAT and last in LOW_DTYPES


def _remove_if_needless(node: ir.Node, first: dict[tuple[ir.Value, ir.DataType], ir.Node]) -> None:
    """Rules 1 and 3: let the readers take the input, or the earlier cast's result."""
    source, result = node.inputs[0], node.outputs[0]
    if source is None or result.dtype is None or _is_rounding_option(node):
        return
    if source.dtype == result.dtype:
        _replace(result, source)
        return
    earlier = first.setdefault((source, result.dtype), node)
    if earlier is not node:
        _replace(result, earlier.outputs[0])


def _is_rounding_option(node: ir.Node) -> bool:
    return "saturate" in node.attributes or "round_mode" in node.attributes


def _replace(old: ir.Value, new: ir.Value) -> None:
    """Let `new` take the place of `old`; a graph output keeps its name, which is why some stay."""
    if old.is_graph_output():
        if new.is_graph_output() or new.producer() is None or new.graph is not old.graph:
            for use in list(old.uses()):
                use.node.replace_input_with(use.idx, new)
            return
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.shape = new.shape or old.shape  # an output must have one
        old.name, new.name = f"{old.name}__amp_unused", old.name
        return
    old.replace_all_uses_with(new)
