"""Replaces operators whose CPU kernels are slow by operators whose kernels are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["PlainForCpu"]


class PlainForCpu(Pass[PassResult]):
    """Writes what `batch_norm_rows` makes of `com.microsoft` as float32 products and sums; counts them.

    They compute the same without a rounding in between. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names: NameAllocator | None = None
        count = 0
        for node in list(model.graph):
            form = _FORMS.get(node.op_type) if node.domain == "com.microsoft" else None
            if form is None or not all(map(_is_wide, (*node.inputs, *node.outputs))) or len(node.outputs) != 1:
                continue
            names = names or NameAllocator(model)
            metadata = node.metadata_props
            builder = GraphBuilder(model, before=node, names=names, metadata=metadata, prefix=f"{node.name}/")
            plain = form(builder, node)
            if plain is not None:
                take_over(node.outputs[0], plain, names)
                model.graph.remove(node, safe=True)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _is_wide(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT and is_static(value)


def _mixed(builder: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Write HyperConnectionPostMix of one stream plainly."""
    if len(node.inputs) != 4:  # streams, the other tensor and the factors of both
        return None
    streams, block, block_factor, stream_factor = _values(node)
    rows = _one_stream(streams, block_factor)
    if rows is None:
        return None
    first = builder.mul(builder.reshape(streams, rows), builder.reshape(stream_factor, [rows[0], 1]))
    return builder.reshape(builder.add(first, builder.mul(block, block_factor)), shape_of(streams))


def _product(builder: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Write FusedMatMul of rows with rows: the CPU computes a product with one row and one column slowly."""
    left, right = _values(node)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    shape = shape_of(left)
    supported = attributes.keys() <= {"transB", "alpha"} and attributes.get("transB") == 1
    if not supported or shape != shape_of(right) or len(shape) != 3 or shape[1] != 1:  # [rows, 1, n]
        return None
    sums = builder.sum(builder.mul(left, right), [2])
    return builder.mul(sums, float(attributes.get("alpha", 1.0)))


_FORMS: Mapping[str, Callable[[GraphBuilder, ir.Node], ir.Value | None]] = {
    "FusedMatMul": _product,
    "HyperConnectionPostMix": _mixed,
}


def _values(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _one_stream(streams: ir.Value, factor: ir.Value) -> list[int] | None:
    """Return the shape without the axis of streams; None if there are several, or the factor is not one a row."""
    shape = shape_of(streams)
    if len(shape) != 3 or shape[1] != 1 or shape_of(factor) != (shape[0], 1):  # [rows, 1, n]
        return None
    return [shape[0], shape[2]]
