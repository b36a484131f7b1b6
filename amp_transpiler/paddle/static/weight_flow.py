"""Follows constants of a model to the data: what is computed only from them, and where they meet learnt values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.constants import read
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import has_bodies, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.paddle.static.signal_filters import is_signal_filter

__all__ = ["THROUGH", "Read", "WeightFlow"]

THROUGH = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_PARTS = frozenset({"Concat", "Gather", "GatherElements", "GatherND", "Slice", "Split"})
# What a weight is computed with before a layer reads it: weight normalisation, standardised convolutions.
_ARITHMETIC = frozenset(
    {"Abs", "Add", "BatchNormalization", "Div", "Exp", "LayerNormalization", "Mul", "Neg", "Pow", "Reciprocal"}
    | {"ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Sqrt", "Sub", "InstanceNormalization"}
)
_LAYERS = frozenset(
    {"BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "GRU", "Gemm"}
    | {"GroupNormalization", "InstanceNormalization", "LSTM", "LayerNormalization", "MatMul", "MatMulInteger"}
    | {"PRelu", "QLinearConv", "QLinearMatMul", "RMSNormalization", "RNN"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """Describes where a node reads, beside data, a constant or what is computed only from constants.

    Attributes:
        node: the node.
        index: its input.
        value: the value there.
        tensor: the constant that the value comes from.
        is_moved: the value is the constant itself, moved or retyped; not the result of arithmetic with others.
        flow: all of the model's.
    """

    node: ir.Node
    index: int
    value: ir.Value
    tensor: ir.TensorProtocol
    is_moved: bool
    flow: WeightFlow

    @property
    def other(self) -> ir.Value | None:
        """The other operand of a node with two."""
        return self.node.inputs[1 - self.index] if len(self.node.inputs) == 2 else None


class WeightFlow:
    """Tells which values of a model are fixed, and which come from a layer with weights."""

    def __init__(self, model: ir.Model) -> None:
        self._fixed: set[ir.Value] = set()
        self._deep: set[ir.Value] = set()
        self._filters: dict[ir.Value, bool] = {}
        for scope in scopes(model):
            graph = scope.graph
            self._fixed.update(graph.initializers.values())
            self._fixed.difference_update(graph.inputs)
            if scope.owner is not None:
                self._deep.update(graph.inputs)
            for node in graph:
                self._add(node)

    def _add(self, node: ir.Node) -> None:
        inputs = [value for value in node.inputs if value is not None]
        if has_bodies(node):
            self._deep.update(node.outputs)
        elif node.op_type == "Constant" or (inputs and all(value in self._fixed for value in inputs)):
            self._fixed.update(node.outputs)
        elif any(value in self._deep for value in inputs) or self._is_layer(node):
            self._deep.update(node.outputs)

    def _is_layer(self, node: ir.Node) -> bool:
        if node.op_type == "Gather":
            return node.inputs[0] in self._fixed
        if node.op_type not in _LAYERS and is_standard(node):
            return False
        return any(value in self._fixed and not self.is_signal_filter(value) for value in _weights(node))

    def is_signal_filter(self, value: ir.Value, tensor: ir.TensorProtocol | None = None) -> bool:
        """Whether a value holds a filter or a transform's basis that a formula made. Each is looked at once.

        Args:
            value: the value.
            tensor: the constant that it comes from; without one, the value's own.
        """
        if value not in self._filters:
            constant = tensor if tensor is not None else constant_of(value)
            self._filters[value] = constant is not None and read(constant, is_signal_filter)
        return self._filters[value]

    def is_fixed(self, value: ir.Value | None) -> bool:
        """Whether a value is computed only from constants."""
        return value in self._fixed

    def is_deep(self, value: ir.Value | None) -> bool:
        """Whether a value depends on data and comes from a layer with weights, not only from inputs."""
        return value in self._deep

    @property
    def signal_filters(self) -> list[str]:
        """The names of the filters and bases that were found so far."""
        return [str(value.name) for value, is_one in self._filters.items() if is_one]

    def reads(self, value: ir.Value, tensor: ir.TensorProtocol) -> Iterator[Read]:
        """Yield where a constant meets data, past nodes that move it or compute weights from it."""
        stack: list[tuple[ir.Value, bool]] = [(value, True)]
        seen: set[tuple[ir.Value, bool]] = set()
        while stack:
            here, moved = stack.pop()
            for use in here.uses():
                following = self._following(use.node, use.idx, moved)
                if following is None:
                    # A convolution of constants is a layer of learnt positions: its weights are learnt.
                    if use.node.op_type == "Conv" or not self.is_fixed(next(iter(use.node.outputs), None)):
                        yield Read(use.node, use.idx, here, tensor, moved, self)
                    continue
                for output in use.node.outputs:
                    if (output, following) not in seen:
                        seen.add((output, following))
                        stack.append((output, following))

    def _following(self, node: ir.Node, index: int, moved: bool) -> bool | None:
        """Return whether a constant is still only moved behind a node; None if its way ends there."""
        if not is_standard(node):
            return None
        if index == 0 and node.op_type in THROUGH:
            return moved
        if not node.outputs or not self.is_fixed(node.outputs[0]):
            return None
        if node.op_type in _PARTS:
            return moved
        return False if node.op_type in _ARITHMETIC else None


def _weights(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a layer that tell whether it has learnt: a convolution's filters, without its bias."""
    inputs = list(node.inputs)[1:2] if node.op_type in ("Conv", "ConvTranspose") else list(node.inputs)
    return [value for value in inputs if value is not None]
