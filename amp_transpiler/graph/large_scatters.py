"""Sums scattered by rows that ONNX Runtime adds up wrongly on a CPU with threads (docs/onnxruntime_faults.md)."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import is_static, shape_of
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard

__all__ = ["MOST", "large_scatters"]

MOST = 1 << 17
"""Elements that surely take one thread; the provider takes a second one from about 200,000 on."""


def large_scatters(model: ir.Model, most: int = MOST, *, unknown: bool = False) -> list[ir.Node]:
    """List every ScatterND that reduces more than `most` elements, in which a row may come twice.

    Args:
        model: its shapes must be inferred.
        most: elements that are not too many.
        unknown: whether those whose sizes are not known count, too.
    """
    return [
        node
        for node in all_nodes(model)
        if node.op_type == "ScatterND"
        and is_standard(node)
        and node.attributes.get_string("reduction", "none") != "none"
        and _is_large(node, most, unknown)
        and not _has_distinct_rows(node.inputs[1])
    ]


def _is_large(node: ir.Node, most: int, unknown: bool) -> bool:
    if not all(value is not None and value.dtype is not None and is_static(value) for value in node.inputs):
        return unknown
    _, indices, updates = (shape_of(value) for value in node.inputs if value is not None)
    return math.prod(updates) > most and math.prod(indices[:-1]) > 1


def _has_distinct_rows(indices: ir.Value | None) -> bool:
    """Whether constant indices name each row once; negative ones may name it a second time."""
    tensor = ir.convenience.get_const_tensor(indices) if indices is not None else None
    if tensor is None or not tensor.shape.rank() or (indices is not None and indices.is_graph_input()):
        return False
    rows = tensor.numpy().reshape(-1, tensor.numpy().shape[-1])
    return bool((rows >= 0).all()) and len(np.unique(rows, axis=0)) == len(rows)
