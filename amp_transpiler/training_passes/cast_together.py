"""Casts many values by one cast."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

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
    """Casts values of a training step together; counts the casts that this removes.

    1. Scales and biases that stay float32 are cast to 16 bits in every step: one kernel each, for a few hundred
       numbers. Those of equal shape are joined, cast and split again instead, at most 32 at a time.
    2. Gradients that are each cast to float32 to be joined, for a group of updates, are joined first.

    All values stay the same, to the bit. The values of the model must be typed. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names = NameAllocator(model)
        count = _cast_small_ones(model, names)
        for node in list(model.graph):
            if node.op_type == "Concat" and is_standard(node):
                count += _join_first(model, node, names)
        if count:
            RemoveUnusedNodesPass()(model)
        return PassResult(model, modified=bool(count), count=count)


def _cast_small_ones(model: ir.Model, names: NameAllocator) -> int:
    groups: dict[tuple[object, ...], list[ir.Node]] = {}
    for node in model.graph:
        if _is_small_cast(node):
            source, value = node.inputs[0], node.outputs[0]
            assert source is not None  # a cast reads something
            groups.setdefault((source.dtype, value.dtype, shape_of(value)), []).append(node)
    count = 0
    for casts in groups.values():
        for start in range(0, len(casts), _MOST):
            some = casts[start : start + _MOST]
            if len(some) >= _LEAST:
                _join(model, some, names)
                count += len(some) - 1
    return count


def _join_first(model: ir.Model, node: ir.Node, names: NameAllocator) -> int:
    """Cast a Concat instead of its inputs, if each is a float32 cast that nothing else reads; return casts removed."""
    widened = [_widened(value) for value in node.inputs]
    sources = [source for source in widened if source is not None]
    result = node.outputs[0]
    if len(sources) < 2 or len(sources) < len(widened) or len({source.dtype for source in sources}) > 1:
        return 0
    if result.is_graph_output():
        return 0
    builder = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/")
    axis = {"axis": node.attributes["axis"].as_int()}
    result.replace_all_uses_with(builder.cast(builder.op("Concat", sources, axis), result.dtype))
    model.graph.remove(node, safe=True)
    return len(sources) - 1


def _widened(value: ir.Value | None) -> ir.Value | None:
    """Return the 16-bit value that is cast to float32 for only one reader; None for other values."""
    while value is not None and len(value.uses()) == 1 and not value.is_graph_output():
        node = value.producer()
        if node is None or not is_standard(node) or node.op_type not in ("Cast", "Identity"):
            return None
        source = node.inputs[0]
        if node.op_type == "Cast":
            low = source is not None and source.dtype in LOW_DTYPES and value.dtype == ir.DataType.FLOAT
            return source if low else None
        value = source
    return None


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
