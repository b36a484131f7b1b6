"""Recognises padding with zeros along one axis, and pads 16-bit values in 16 bits."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.update_passes.update_chains import low_source

__all__ = ["PadInLow", "ZeroPadding"]

_LARGE = 1 << 20  # zeros


@dataclasses.dataclass(frozen=True)
class ZeroPadding:
    """Says what a Pad does that puts zeros at the ends of one axis.

    Attributes:
        source: what is padded.
        axis: where.
        before, after: how many.
    """

    source: ir.Value
    axis: int
    before: int
    after: int

    @classmethod
    def of(cls, node: ir.Node | None) -> ZeroPadding | None:
        """Return what a node does; None if it is no such Pad, or if it is not known before it runs."""
        if node is None or node.op_type != "Pad" or not is_standard(node) or len(node.inputs) > 3:
            return None
        source, widths = node.inputs[0], constant_array(node.inputs[1])
        if source is None or not is_static(source) or widths is None:
            return None
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        number = constant_array(fill)
        has_zeros = fill is None or (number is not None and not number.any() and not np.signbit(number).any())
        if not has_zeros or node.attributes.get_string("mode", "constant") != "constant":
            return None
        before, after = (np.asarray(half) for half in np.split(widths, 2))
        padded = np.flatnonzero((before != 0) | (after != 0))
        if padded.size != 1 or min(before.min(), after.min()) < 0:
            return None
        axis = int(padded[0])
        return cls(source, axis, int(before[axis]), int(after[axis]))

    @property
    def zeros(self) -> int:
        """How many elements of zero there are."""
        shape = shape_of(self.source)
        return (self.before + self.after) * math.prod(shape[: self.axis]) * math.prod(shape[self.axis + 1 :])


class PadInLow(Pass[PassResult]):
    """Joins 16-bit values with zeros where they are cast to float32 to be padded, and back; counts the Pads.

    The CUDA provider pads no bfloat16. Gradients of slices are padded by an element or two: three kernels, each of
    them over all of a tensor of twice the size, where one Concat does.

    All values stay the same, to the bit. Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for node in list(model.graph):
            padding = ZeroPadding.of(node)
            low = None if padding is None else low_source(padding.source)
            if padding is None or low is None or padding.zeros > _LARGE or not _is_cast_back(node.outputs[0], low):
                continue
            _write(model, names, node, padding, low)
            count += 1
        return PassResult(model, modified=bool(count), count=count)


def _is_cast_back(value: ir.Value, low: ir.Value) -> bool:
    """Whether all that reads a value is casts to the type of another one."""
    if value.is_graph_output() or not value.uses():
        return False
    casts = [node for node, _ in value.uses()]
    return all(cast.op_type == "Cast" and is_standard(cast) and cast.outputs[0].dtype == low.dtype for cast in casts)


def _write(model: ir.Model, names: NameAllocator, node: ir.Node, padding: ZeroPadding, low: ir.Value) -> None:
    builder = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/")
    assert low.dtype is not None
    zero = builder.constant(np.zeros((), low.dtype.numpy()), low.dtype)

    def zeros(count: int) -> list[ir.Value]:
        shape = [count if axis == padding.axis else size for axis, size in enumerate(shape_of(padding.source))]
        return [builder.op("Expand", [zero, builder.constant(np.array(shape, np.int64))])] if count else []

    parts = [*zeros(padding.before), low, *zeros(padding.after)]
    padded = builder.op("Concat", parts, {"axis": padding.axis})
    for cast in [reader for reader, _ in node.outputs[0].uses()]:
        cast.outputs[0].replace_all_uses_with(padded, replace_graph_outputs=True)
        model.graph.remove(cast, safe=True)
    widening = padding.source.producer()
    model.graph.remove(node, safe=True)
    if widening is not None and not is_used(padding.source):
        model.graph.remove(widening, safe=True)
