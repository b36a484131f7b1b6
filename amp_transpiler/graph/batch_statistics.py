"""Marks on nodes that compute a mean over the batch, for runs that share a batch among several processes."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes

__all__ = ["BATCH_STATISTIC", "has_batch_statistics", "is_batch_statistic", "mark_batch_statistic"]

BATCH_STATISTIC = "amp_transpiler.batch_statistic"  # metadata key


def mark_batch_statistic(value: ir.Value) -> None:
    """Say that a value is a mean over the batch: the mean over all ranks' values of it is that of the global batch."""
    node = value.producer()
    if node is not None:
        node.metadata_props[BATCH_STATISTIC] = node.op_type  # passes copy metadata to nodes that they insert before


def is_batch_statistic(value: ir.Value) -> bool:
    """Whether a value was marked."""
    node = value.producer()
    return node is not None and _is_marked(node)


def has_batch_statistics(model: ir.Model) -> bool:
    """Whether the backward pass of a model depends on statistics of a batch."""
    return any(map(_is_marked, all_nodes(model)))


def _is_marked(node: ir.Node) -> bool:
    return node.metadata_props.get(BATCH_STATISTIC) == node.op_type
