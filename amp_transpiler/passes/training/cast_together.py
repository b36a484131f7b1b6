"""Casts of many small parameters done by one cast."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["CastTogether"]

_SMALL = 1 << 16  # elements: below that, starting a kernel takes longer than the kernel
_LEAST = 4  # casts: joining, casting and splitting take three kernels
_MOST = 32  # tensors that one kernel of ONNX Runtime joins or splits without a table in the device's memory


class CastTogether(Pass[PassResult]):
    """Casts small float32 inputs of equal shape to 16 bits together; counts the casts that this removes.

    Scales and biases that stay float32 are cast in every step: one kernel each, for a few hundred numbers. They are
    joined, cast and split again instead, at most 32 at a time. Only the main graph of a training step is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        groups: dict[tuple[object, ...], list[ir.Node]] = {}
        for node in model.graph:
            if _is_small_cast(node):
                value = node.outputs[0]
                groups.setdefault((value.dtype, shape_of(value)), []).append(node)
        names, count = NameAllocator(model), 0
        for casts in groups.values():
            for start in range(0, len(casts), _MOST):
                some = casts[start : start + _MOST]
                if len(some) >= _LEAST:
                    _join(model, some, names)
                    count += len(some) - 1
        return PassResult(model, modified=bool(count), count=count)


def _is_small_cast(node: ir.Node) -> bool:
    if node.op_type != "Cast" or not is_standard(node):
        return False
    source, value = node.inputs[0], node.outputs[0]
    if source is None or not source.is_graph_input() or value.is_graph_output() or value.dtype not in LOW_DTYPES:
        return False
    return is_static(value) and len(shape_of(value)) > 0 and 0 < math.prod(shape_of(value)) <= _SMALL


def _join(model: ir.Model, casts: list[ir.Node], names: NameAllocator) -> None:
    first = casts[0]
    builder = GraphBuilder(model, before=next(iter(model.graph)), names=names, prefix="cast_together/")
    sources = [cast.inputs[0] for cast in casts]
    low = builder.cast(builder.op("Concat", sources, {"axis": 0}), first.outputs[0].dtype)
    sizes = builder.constant(np.full(len(casts), shape_of(first.outputs[0])[0], np.int64))
    parts = builder.nodes("Split", [low, sizes], {"axis": 0}, outputs=len(casts))
    for cast, part in zip(casts, parts, strict=True):
        value = cast.outputs[0]
        part.shape = value.shape
        value.replace_all_uses_with(part)
        assert cast.graph is not None
        cast.graph.remove(cast, safe=True)
