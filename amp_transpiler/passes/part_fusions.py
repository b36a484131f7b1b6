"""Views between nodes that ONNX Runtime would fuse into a kernel that computes them worse."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.silu import is_silu_gate
from amp_transpiler.graph.value_ranks import rank_of
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder
from amp_transpiler.precision.device_faults import QUICK_GELU, SKIP_NORMS

__all__ = ["PartFusions"]

logger = logging.getLogger(__name__)

_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_WRITTEN_OUT = ("ReduceMean", "Sub", "Pow", "Mul", "Div")  # what reads the input of a normalisation
_BEGINS = ("ReduceMean", "Pow")


class PartFusions(Pass[PassResult]):
    """Puts a view between 16-bit nodes that ONNX Runtime would fuse; counts the views.

    1. `x * Sigmoid(x)` and `x * Sigmoid(c * x)` become a QuickGelu, which rounds every step. In float16 a Sigmoid and
       a Mul, one launch more, have half its error on normally distributed numbers, and less below zero.
    2. An Add before a LayerNormalization becomes a SkipLayerNormalization. Up to 1.26 its sums are 16-bit.

    The view is a Reshape to the shape that the value has: no kernel computes it, and ONNX Runtime's optimizer keeps
    it, as it does not an Identity. It was seen so in releases 1.24 to 1.31.

    Args:
        kernels: which kernels nothing may be fused into, named as in `targets/data/arithmetic.txt`.
    """

    def __init__(self, kernels: Collection[str]) -> None:
        self._kernels = kernels

    def call(self, model: ir.Model) -> PassResult:
        values = list(self._fused(model))
        names = NameAllocator(model) if values else None
        for value in values:
            assert names is not None, "there are values"
            _add_view(value, names)
        if values:
            logger.info("%d views keep ONNX Runtime from fusing 16-bit nodes into a kernel that errs", len(values))
        return PassResult(model, modified=bool(values), count=len(values))

    def _fused(self, model: ir.Model) -> Iterator[ir.Value]:
        """Yield the 16-bit values that would be fused away."""
        quick, skips = QUICK_GELU in self._kernels, not SKIP_NORMS.isdisjoint(self._kernels)
        for node in all_nodes(model) if quick or skips else ():
            value = node.outputs[0] if is_standard(node) and node.outputs else None
            if value is None or value.dtype not in LOW_DTYPES or value.is_graph_output():
                continue
            if (quick and is_silu_gate(node)) or (skips and node.op_type == "Add" and _is_normalised(value)):
                yield value


def _is_normalised(value: ir.Value) -> bool:
    """Whether only one normalisation reads a sum: as one node, or written out, perhaps in float32."""
    readers = [use.node for use in value.uses()]
    if len(readers) == 1 and readers[0].op_type == "Cast":
        readers = [use.node for use in readers[0].outputs[0].uses()]
    kinds = [reader.op_type for reader in readers]
    if kinds and all(kind in _NORMS for kind in kinds):
        return len(kinds) == 1
    return len(kinds) > 1 and all(kind in _WRITTEN_OUT for kind in kinds) and any(kind in _BEGINS for kind in kinds)


def _add_view(value: ir.Value, names: NameAllocator) -> None:
    rank = rank_of(value)
    if rank == 0:
        return
    for use in list(value.uses()):
        builder = NodeBuilder(use.node, names)
        if rank is None:
            shape = builder.node("Shape", [value], dtype=ir.DataType.INT64)
        else:
            shape = builder.constant(np.zeros(rank, np.int64))  # 0: as it is
        view = builder.node("Reshape", [value, shape], dtype=value.dtype)
        view.shape = value.shape
        use.node.replace_input_with(use.idx, view)
