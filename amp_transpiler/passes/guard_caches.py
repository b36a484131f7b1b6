"""Protection from ONNX Runtime's memory plan where an attention's cache grows: on CUDA."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["CACHES", "GuardCaches"]

logger = logging.getLogger(__name__)

CACHES: Mapping[str, Mapping[int, int]] = MappingProxyType({"com.microsoft::GroupQueryAttention": {1: 3, 2: 4}})
"""Operator -> output that is a cache after the run -> input that is the same cache before it."""


class GuardCaches(Pass[PassResult]):
    """Gives the open sizes of caches that grow names of their own; counts the caches.

    ONNX Runtime infers that the cache after a run has the shape of that before it, as if callers shared one buffer. Its
    memory plan then puts the former into the latter's memory where the graph itself makes that: behind a cast of the
    input. A run with another length fails ("Shape mismatch attempting to re-use buffer"). A size with a name of its own
    is no equal one. Caches that are inputs of the graph keep their memory, so what callers share stays shared.
    """

    def call(self, model: ir.Model) -> PassResult:
        count = sum(
            _name_sizes(node.outputs[after], node.inputs[before])
            for node in all_nodes(model)
            for after, before in CACHES.get(operator_name(node), {}).items()
            if after < len(node.outputs) and before < len(node.inputs)
        )
        if count:
            logger.info("%d caches kept out of the memory of what they were before", count)
        return PassResult(model, modified=bool(count), count=count)


def _name_sizes(after: ir.Value, before: ir.Value | None) -> bool:
    """Name the sizes of a cache that ONNX Runtime may take for those before the run; return whether there are any."""
    if not after.name or before is None or before.producer() is None:
        return False
    shape = after.shape or (None if before.shape is None else ir.Shape([None] * len(before.shape)))
    if shape is None:
        return False
    is_same = before.shape is not None and list(shape) == list(before.shape)
    sizes = [size if _is_known(size, named=not is_same) else f"{after.name}__size_{i}" for i, size in enumerate(shape)]
    if sizes == list(shape):
        return False
    after.shape = ir.Shape(sizes)
    return True


def _is_known(size: int | ir.SymbolicDim, *, named: bool) -> bool:
    """Whether a size is a number, or has a name where names tell sizes apart."""
    return isinstance(size, int) or (named and size.value is not None)
