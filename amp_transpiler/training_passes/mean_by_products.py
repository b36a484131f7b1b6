"""Computes means of weighted float32 rows by products with the weights."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["MeanByProducts"]

_MEANS = tuple(
    map(parse_form, ("ReduceMean(weighted:Mul(rows, weights))", "ReduceMean(Mul(weighted:Mul(rows, weights), other))"))
)


class MeanByProducts(Pass[PassResult]):
    """Writes float32 means along the last axis, of rows times a vector, as products with the vector; counts them.

    The gradient of a LayerNormalization has two such means, of `g s` and of `g s xhat`. A mean is two kernels, and the
    product of `g` and `xhat` is there already, for the gradient of the scale.

    1. The mean of `a w`, with a vector `w`, becomes `a W / n`, and that of `a w b` becomes `(a b) W / n`, with `W` the
       vector as a column.
    2. A product may be computed in TF32, which keeps as many digits as 16-bit neighbours have: the pass is for programs
       with such.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        order = {node: index for index, node in enumerate(model.graph)}
        for node in list(model.graph):
            mean = _Mean.of(node)
            if mean is not None:
                mean.rewrite(GraphBuilder(model, before=node, names=names, metadata=node.metadata_props), order)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass(frozen=True)
class _Mean:
    """A mean along the last axis.

    Attributes:
        node: the ReduceMean.
        rows: what is weighted.
        weights: the vector.
        other: what the weighted rows are multiplied with; None for nothing.
    """

    node: ir.Node
    rows: ir.Value
    weights: ir.Value
    other: ir.Value | None

    @classmethod
    def of(cls, node: ir.Node) -> _Mean | None:
        """Return the mean of weighted rows that a node computes, None if it computes none."""
        if node.op_type != "ReduceMean" or not is_standard(node) or node.outputs[0].dtype != ir.DataType.FLOAT:
            return None
        value = node.inputs[0]
        keeps = node.attributes.get("keepdims")
        if value is None or not is_static(value) or not _is_over_last_axis(node, len(shape_of(value))):
            return None
        if (keeps is not None and not keeps.as_int()) or node.outputs[0].is_graph_output():
            return None
        for mean in (mean for form in _MEANS for mean in bindings(form, node)):
            rows, weights, weighted, other = mean["rows"], mean["weights"], mean["weighted"], mean.values.get("other")
            if rows.shape != weighted.shape or (other is not None and other.shape != value.shape):
                continue
            if is_static(weights) and shape_of(weights) == shape_of(weighted)[-1:]:
                return cls(node, rows, weights, other)
        return None

    def rewrite(self, builder: GraphBuilder, order: dict[ir.Node, int]) -> None:
        """Replace the mean by a product."""
        rows, size = self.rows, shape_of(self.weights)[0]
        if self.other is not None:
            rows = self._product(builder, self.other, order)
        total = builder.matmul(rows, builder.reshape(self.weights, [size, 1]))
        self.node.outputs[0].replace_all_uses_with(builder.mul(total, 1 / size))
        node: ir.Node | None = self.node
        while node is not None and node.graph is not None and not any(map(is_used, node.outputs)):
            source = node.inputs[0]
            node.graph.remove(node, safe=True)
            node = None if source is None else source.producer()

    def _product(self, builder: GraphBuilder, other: ir.Value, order: dict[ir.Node, int]) -> ir.Value:
        """Return the rows times `other`, which may be there."""
        for use in self.rows.uses():
            node = use.node
            is_before = order.get(node, len(order)) < order[self.node]
            if node.op_type == "Mul" and is_standard(node) and is_before and node.inputs[1 - use.idx] is other:
                return node.outputs[0]
        return builder.mul(self.rows, other)


def _is_over_last_axis(node: ir.Node, rank: int) -> bool:
    listed = node.attributes.get("axes")
    if listed is not None:
        return [axis % rank for axis in listed.as_ints()] == [rank - 1]
    tensor = constant_of(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return tensor is not None and [int(axis) % rank for axis in tensor.numpy().reshape(-1)] == [rank - 1]
