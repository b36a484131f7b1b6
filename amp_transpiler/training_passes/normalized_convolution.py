"""Finds the convolution whose result a BatchNormalization normalises, with its gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, rank_of, shape_of
from amp_transpiler.graph.marked_gradients import MarkedGradient
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.ops.names import is_standard
from amp_transpiler.training_passes.batch_norm_forms import ConvolutionSizes

__all__ = ["NormalizedConvolution"]

_WEIGHT = 1  # the input of a convolution


@dataclasses.dataclass(frozen=True, slots=True)
class NormalizedConvolution:
    """A convolution in front of a BatchNormalization.

    Attributes:
        node: the Conv, of one group.
        to_result: the gradient of its result, as its own gradients read it. Nothing else reads it.
        to_weight: the marked gradient of the weight; None if it is not wanted.
        to_data: the ConvTranspose that makes the gradient of the data, or in bfloat16, which CUDA has none for, a Conv
            by the weight turned round, or a float32 one; None if it is not wanted.
    """

    node: ir.Node
    to_result: ir.Value
    to_weight: MarkedGradient | None
    to_data: ir.Node | None

    @classmethod
    def of(cls, x: ir.Value, to_x: ir.Value, gradients: Iterable[MarkedGradient]) -> NormalizedConvolution | None:
        """Return the convolution that makes `x`, whose gradient is `to_x`; None if other nodes read that."""
        node, to_result = x.producer(), _as_read(to_x, x.dtype)
        if node is None or node.op_type != "Conv" or not is_standard(node) or to_result is None:
            return None
        if node.attributes.get_int("group", 1) != 1 or not all(map(_has_sizes, node.inputs[:2])):
            return None
        to_weight: MarkedGradient | None = None
        to_data: ir.Node | None = None
        by_node = {inner: marked for marked in gradients for inner in marked.nodes}
        for use in to_result.uses():
            marked = by_node.get(use.node)
            if marked is not None and to_weight in (None, marked) and _is_of_weight(marked, node, to_result):
                to_weight = marked
            elif to_data is None and (adjoint := _adjoint(use.node, node, to_result)) is not None:
                to_data = adjoint
            else:
                return None
        return None if to_weight is None and to_data is None else cls(node, to_result, to_weight, to_data)

    @property
    def data(self) -> ir.Value:
        """What is convolved."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def weight(self) -> ir.Value:
        """The kernels, [M, C, ...]."""
        value = self.node.inputs[_WEIGHT]
        assert value is not None
        return value

    @property
    def sizes(self) -> ConvolutionSizes:
        """What the choice of a form depends on."""
        return ConvolutionSizes(
            data=shape_of(self.data),
            weight=shape_of(self.weight),
            is_pointwise=self._is_pointwise,
            with_data=self.to_data is not None,
            with_weight=self.to_weight is not None,
        )

    def apply_slope(self, slope: ir.Value, builder_at: Callable[[ir.Node | None, ir.Node], GraphBuilder]) -> None:
        """Apply factors of the channels of `to_result`, [M] in float32, to the weight and to its gradient instead.

        Args:
            slope: the factors.
            builder_at: gives a builder that writes before a node, or at the end, in the name of another.
        """
        if self.to_data is not None:
            builder, weight = builder_at(self.to_data, self.to_data), self.to_data.inputs[_WEIGHT]
            assert weight is not None
            axis = 1 if self.to_data.op_type == "Conv" else 0
            self.to_data.replace_input_with(_WEIGHT, builder.mul(weight, _column(builder, slope, weight, axis)))
        if self.to_weight is not None:
            gradient = self.to_weight.results[_WEIGHT]
            uses = [(use.node, use.idx) for use in gradient.uses()]
            last = self.to_weight.nodes[-1]
            builder = builder_at(_following(last), self.node)
            scaled = builder.mul(gradient, _column(builder, slope, gradient))
            for reader, index in uses:
                reader.replace_input_with(index, scaled)

    def remove_to_data(self) -> None:
        """Remove the node that makes the gradient of the data, which nothing reads any more."""
        if self.to_data is not None:
            remove_unread(self.to_data)

    @property
    def _is_pointwise(self) -> bool:
        """Whether each element of the result is computed from one place of the data, and of each place is one."""
        attributes = self.node.attributes
        is_dense = not any(attributes.get_ints("pads", ())) and set(attributes.get_ints("strides", ())) <= {1}
        return is_dense and len(self.node.inputs) == _WEIGHT + 1 and set(shape_of(self.weight)[2:]) == {1}


def _column(builder: GraphBuilder, factors: ir.Value, weight: ir.Value, axis: int = 0) -> ir.Value:
    sides = [1] * rank_of(weight)
    sides[axis] = -1
    return builder.reshape(builder.cast(factors, weight.dtype), sides)


def _following(node: ir.Node) -> ir.Node | None:
    nodes = iter(node.graph or ())
    while next(nodes) is not node:
        pass
    return next(nodes, None)


def _as_read(gradient: ir.Value, dtype: ir.DataType | None) -> ir.Value | None:
    """Return a gradient, or the one cast of it to the type of the data; None if it is read otherwise."""
    if gradient.is_graph_output():
        return None
    if gradient.dtype == dtype:
        return gradient
    casts = [use.node for use in gradient.uses()]
    if len(casts) != 1 or casts[0].op_type != "Cast" or not is_standard(casts[0]):
        return None
    value = casts[0].outputs[0]
    return value if value.dtype == dtype and not value.is_graph_output() else None


def _has_sizes(value: ir.Value | None) -> bool:
    return value is not None and is_static(value)


def _is_of_weight(marked: MarkedGradient, node: ir.Node, to_result: ir.Value) -> bool:
    if list(marked.results) != [_WEIGHT] or marked.results[_WEIGHT].is_graph_output():
        return False
    return _has_sizes(marked.results[_WEIGHT]) and marked.reads == {to_result, node.inputs[0]}


def _adjoint(reader: ir.Node, node: ir.Node, to_result: ir.Value) -> ir.Node | None:
    """Return the node that makes the gradient of a convolution's data, perhaps behind a cast that reads `to_result`."""
    weight, g, source = node.inputs[_WEIGHT], to_result, reader
    if source.op_type == "Cast" and is_standard(source) and len(source.outputs[0].uses()) == 1:
        g = source.outputs[0]
        source = next(use.node for use in g.uses())
    if not is_standard(source) or list(source.inputs[:_WEIGHT]) != [g] or len(source.inputs) != _WEIGHT + 1:
        return None
    if source.op_type == "ConvTranspose":
        return source if _is_made_of(source.inputs[_WEIGHT], weight, ("Cast",)) else None
    is_turned = source.op_type == "Conv" and _exchanges_first_two(source.inputs[_WEIGHT])
    return source if is_turned and _is_made_of(source.inputs[_WEIGHT], weight, ("Transpose", "Slice")) else None


def _exchanges_first_two(value: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    is_transpose = node is not None and node.op_type == "Transpose" and is_standard(node)
    return is_transpose and node is not None and tuple(node.attributes.get_ints("perm", ())[:2]) == (1, 0)


def _is_made_of(value: ir.Value | None, first: ir.Value | None, passed: Sequence[str]) -> bool:
    """Whether a value is another one, or made of it by operators of these types, the last one first, each once."""
    for op_type in passed:
        node = None if value is None or value is first else value.producer()
        if node is not None and node.op_type == op_type and is_standard(node):
            value = node.inputs[0]
    return value is first
