"""Marks on nodes that compute a mean over the batch, for runs that share a batch among several processes."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["BATCH_STATISTIC", "is_batch_statistic", "mark_batch_statistic"]

BATCH_STATISTIC = "amp_transpiler.batch_statistic"  # metadata key


def mark_batch_statistic(value: ir.Value) -> None:
    """Say that a value is a mean over the batch: the mean over all ranks' values of it is that of the global batch."""
    node = value.producer()
    if node is not None:
        node.metadata_props[BATCH_STATISTIC] = "mean"


def is_batch_statistic(value: ir.Value) -> bool:
    """Whether a value was marked."""
    node = value.producer()
    return node is not None and BATCH_STATISTIC in node.metadata_props
