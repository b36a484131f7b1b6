"""Writing operands of attention in the form that an operator reads, and its result where others read it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_operands import BATCH_FIRST, End, Operand
from amp_transpiler.fusion.attention_values import turns
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["OperandWriter", "can_end", "replace_end", "reshaped"]


class OperandWriter:
    """Writes operands; what layers have in common is written once."""

    def __init__(self) -> None:
        self._rearranged: dict[tuple[object, ...], ir.Value] = {}

    def alone(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        """Return an operand with an axis each for batch and rows, in its own order, apart from those beside it."""
        value = self.in_three_axes(builder, operand)
        if operand.parts == 1:
            return value
        if (value, operand.part) not in self._rearranged:
            widths = builder.constant(np.full(operand.parts, operand.width, np.int64))
            values = builder.nodes("Split", [value, widths], operand.parts, {"axis": 2}, ir.DataType.FLOAT)
            self._rearranged |= {(value, part): each for part, each in enumerate(values)}
        return self._rearranged[(value, operand.part)]

    def in_three_axes(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        """Return the whole of an operand with its axes of batch and rows, and one for all else."""
        whole, places = operand.whole, operand.places
        if not places and not operand.is_flat:
            return whole
        key = (whole, places, operand.order, operand.batch)
        if key not in self._rearranged:
            value, wanted = whole, [0, 0, operand.width]
            if places:
                batch, heads, rows, size = places
                value = self.turned(builder, value, (batch, rows, heads, size))
            else:
                outer = [operand.batch, operand.rows] if operand.order == BATCH_FIRST else [operand.rows, operand.batch]
                wanted = [dim if isinstance(dim, int) else -1 for dim in (*outer, operand.width * operand.parts)]
            self._rearranged[key] = reshaped(builder, value, wanted)
        return self._rearranged[key]

    def turned(self, builder: NodeBuilder, value: ir.Value, order: tuple[int, ...]) -> ir.Value:
        """Return a value with its axes in another order."""
        if order == tuple(range(len(order))):
            return value
        if (value, "turned", order) not in self._rearranged:
            turned = builder.node("Transpose", [value], {"perm": list(order)}, value.dtype)
            self._rearranged[(value, "turned", order)] = turned
        return self._rearranged[(value, "turned", order)]

    def batch_first(self, builder: NodeBuilder, value: ir.Value, order: tuple[int, int]) -> ir.Value:
        """Return a value in three axes whose axes of batch and rows are in another order, with batch first."""
        if order == BATCH_FIRST:
            return value
        maker = value.producer()
        if maker is not None and turns(maker, (1, 0, 2)) and maker.inputs[0] is not None:
            return maker.inputs[0]
        return self.turned(builder, value, (1, 0, 2))

    def rows_of(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        """Return how many rows an operand has, as a list of one."""
        if operand.places:
            value, axis = operand.whole, operand.places[2]
        else:
            value, axis = self.in_three_axes(builder, operand), operand.order[1]
        return self.size_of(builder, value, axis)

    def size_of(self, builder: NodeBuilder, value: ir.Value, axis: int) -> ir.Value:
        """Return the size of an axis, as a list of one."""
        shape = builder.node("Shape", [value], None, ir.DataType.INT64)
        return builder.node("Gather", [shape, builder.constant(np.asarray([axis], np.int64))], None, ir.DataType.INT64)


def can_end(end: End) -> bool:
    """Whether a value can be replaced: by a new one, or by that of its Reshape of a new one."""
    reshape = end.value.producer()
    is_reshape = reshape is not None and reshape.op_type == "Reshape"
    return is_reshape or not (end.is_flat or end.value.is_graph_output())


def replace_end(builder: NodeBuilder, end: End, result: ir.Value, width: int) -> None:
    """Let those that read the result of an attention read a new one.

    Args:
        builder: where it is put.
        end: the result.
        result: the new one, in three axes in the order of the end.
        width: of all heads together.
    """
    if end.is_flat or end.value.is_graph_output():
        reshape = end.value.producer()
        assert reshape is not None, "attention makes it"
        reshape.replace_input_with(0, result)
        wanted = [-1, width] if end.is_flat else [0, 0, width]
        reshape.replace_input_with(1, builder.constant(np.asarray(wanted, np.int64)))
        reshape.attributes.pop("allowzero", None)  # it asks for sizes of 0
        return
    for use in list(end.value.uses()):
        use.node.replace_input_with(use.idx, result)


def reshaped(builder: NodeBuilder, value: ir.Value, sizes: Sequence[object]) -> ir.Value:
    """Return a value in another shape, as Reshape reads it."""
    return builder.node("Reshape", [value, builder.constant(np.asarray(sizes, np.int64))], dtype=value.dtype)
