"""Says what nodes of a step make of rows that are in another order: by positions instead of samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.contrib_node import CONTRIB
from amp_transpiler.ops.names import is_standard

__all__ = ["Layout", "Rows", "keeps_order"]

Layout: TypeAlias = Literal["flat", "pair", "last"]

_FIRST_ROW: Mapping[Layout, Any] = MappingProxyType(
    {"flat": (slice(1),), "pair": (slice(1), slice(1)), "last": (..., slice(1))}
)
_MOST_COMPARED = 1 << 20  # elements of a constant that is looked through


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a batch: a row for each position of each sample.

    Attributes:
        samples: how many samples there are.
        positions: how many positions each has.
    """

    samples: int
    positions: int

    @property
    def count(self) -> int:
        """All rows."""
        return self.samples * self.positions

    def layout(self, value: ir.Value | None) -> Layout | None:
        """Return how the rows lie in a value; None if it has none, or the same in all rows.

        "flat" is for the first axis, "pair" for the first two, samples and positions, "last" for a matrix's columns.
        """
        if value is None or not is_static(value):
            return None
        shape, layout = shape_of(value), None
        if shape[:2] == (self.samples, self.positions):
            layout = "pair"
        elif shape[:1] == (self.count,):
            layout = "flat"
        elif len(shape) == 2 and shape[1] == self.count:
            layout = "last"
        return None if layout is None or _is_uniform(value, layout) else layout  # type: ignore[arg-type,return-value]

    def axes(self, layout: Layout, rank: int) -> tuple[int, ...]:
        """Return the axes of a value of a rank that the rows are."""
        return {"flat": (0,), "pair": (0, 1), "last": (rank - 1,)}[layout]


def keeps_order(node: ir.Node, rows: Rows) -> bool:
    """Whether a node computes the same of rows in another order.

    If its operands with rows have them in another order, so do its results with rows, and the others stay as they are.
    A Reshape must then be to another shape, and a Transpose with other axes.
    """
    rule = _RULES.get(node.op_type)
    if rule is None or not (is_standard(node) or (node.domain == CONTRIB and node.op_type == "FusedMatMul")):
        return False
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
    return all(map(is_static, values)) and rule(node, rows)


def _is_uniform(value: ir.Value, layout: Layout) -> bool:
    """Whether a constant has the same in all rows."""
    tensor = constant_of(value)
    if tensor is None or tensor.size > _MOST_COMPARED:
        return False
    content = tensor.numpy()
    return bool(np.all(content == content[_FIRST_ROW[layout]]))


# ---- rules ----
def _layouts(values: Sequence[ir.Value | None], rows: Rows) -> list[Layout | None]:
    return [rows.layout(value) for value in values]


def _elementwise(node: ir.Node, rows: Rows) -> bool:
    """Let each operand have the rows like the result, or the same for all."""
    result = node.outputs[0]
    layout, rank = rows.layout(result), len(shape_of(result))
    if layout is None:
        return False
    return all(_fits(value, layout, rank, rows) for value in node.inputs if value is not None)


def _fits(value: ir.Value, layout: Layout, rank: int, rows: Rows) -> bool:
    shape, lies = shape_of(value), rows.layout(value)
    if lies is not None:
        return lies == layout and len(shape) == rank
    along = [axis - rank + len(shape) for axis in rows.axes(layout, rank)]
    if all(shape[axis] == 1 for axis in along if axis >= 0):
        return True
    return constant_of(value) is not None and len(shape) == rank and _is_uniform(value, layout)


def _by_row(node: ir.Node, rows: Rows) -> bool:
    """Compute each row by itself, along axes behind those of the rows."""
    data = node.inputs[0]
    layout = rows.layout(data)
    if data is None or layout not in ("flat", "pair"):
        return False
    rank = len(shape_of(data))
    axis = node.attributes.get_int("axis", -1) % rank
    others = _layouts(node.inputs[1:], rows)
    results = [rows.layout(value) for value in node.outputs if value.name]
    return axis > max(rows.axes(layout, rank)) and not any(others) and set(results) == {layout}


def _along(node: ir.Node, rows: Rows) -> bool:
    """Move within each row: all operands have the rows, or the same in all of them."""
    result = node.outputs[0]
    layout = rows.layout(result)
    if layout not in ("flat", "pair"):
        return False
    rank = len(shape_of(result))
    axis = node.attributes.get_int("axis", 0) % rank
    return axis > max(rows.axes(layout, rank)) and all(
        _fits(value, layout, rank, rows) for value in node.inputs if value is not None
    )


def _look_up(node: ir.Node, rows: Rows) -> bool:
    """Look up rows of a table."""
    table, indices = _layouts(node.inputs, rows)
    return table is None and indices is not None and indices == rows.layout(node.outputs[0])


def _summed_at(node: ir.Node, rows: Rows) -> bool:
    """Add rows to a table."""
    table, indices, updates = _layouts(node.inputs, rows)
    adds = node.attributes.get_string("reduction", "none") == "add"
    is_table = table is None and rows.layout(node.outputs[0]) is None
    return adds and is_table and indices is not None and indices == updates


def _product(node: ir.Node, rows: Rows) -> bool:
    """Multiply each row by a matrix, sum up over the rows, or multiply matrices of each row."""
    attributes = {name: node.attributes.get_int(name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")}
    if attributes["transBatchA"] or attributes["transBatchB"] or len(node.inputs) > 2:
        return False
    left, right = _layouts(node.inputs, rows)
    result = rows.layout(node.outputs[0])
    first, second = (shape_of(value) for value in node.inputs if value is not None)
    if right is None:
        return left in ("flat", "pair") and result == left and not attributes["transA"] and len(second) == 2
    if left == right == result == "pair":
        return min(len(first), len(second)) > 3
    if right != "flat" or attributes["transB"] or result is not None or len(second) != 2:
        return False
    if attributes["transA"]:
        return left == "flat" and len(first) == 2
    return left == "last" or (left is None and len(first) == 2 and first[-1] == rows.count)  # the same for all rows


def _reduced(node: ir.Node, rows: Rows) -> bool:
    """Reduce all rows, or each by itself."""
    data = node.inputs[0]
    layout = rows.layout(data)
    tensor = constant_of(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if data is None or layout is None or (tensor is None and len(node.inputs) > 1):
        return False
    rank = len(shape_of(data))
    listed = node.attributes.get_ints("axes", ()) if tensor is None else tensor.numpy().reshape(-1).tolist()
    axes = {int(axis) % rank for axis in listed or range(rank)}
    along, result = set(rows.axes(layout, rank)), rows.layout(node.outputs[0])
    return (along <= axes and result is None) or (not along & axes and result == layout != "last")


def _cut(node: ir.Node, rows: Rows) -> bool:
    """Cut all rows alike, or out the first one, which is the same in both orders."""
    data, result = node.inputs[0], node.outputs[0]
    layout = rows.layout(data)
    constants = [None if value is None else constant_of(value) for value in node.inputs[1:]]
    if data is None or layout is None or any(tensor is None for tensor in constants) or len(constants) < 3:
        return False
    starts, _, axes, *_ = (tensor.numpy().reshape(-1).tolist() for tensor in constants if tensor is not None)
    rank, sizes = len(shape_of(data)), shape_of(result)
    along = set(rows.axes(layout, rank))
    cut = {int(axis) % rank: int(start) for axis, start in zip(axes, starts, strict=True)}
    if not along & cut.keys():
        return rows.layout(result) == layout
    is_first = all(cut.get(axis) == 0 and sizes[axis] == 1 for axis in along)
    return layout == "flat" and is_first and rows.layout(result) is None


def _reshaped(node: ir.Node, rows: Rows) -> bool:
    """Reshape rows one by one."""
    before, after = rows.layout(node.inputs[0]), rows.layout(node.outputs[0])
    if before is None or after is None or (node.op_type == "Reshape" and constant_of(node.inputs[1]) is None):
        return False
    if node.op_type != "Reshape" and before != after:
        return False
    return "last" not in (before, after) or math.prod(shape_of(node.outputs[0])) == rows.count


def _transposed(node: ir.Node, rows: Rows) -> bool:
    """Transpose to rows or from rows, whatever their order, or behind them."""
    before, after = rows.layout(node.inputs[0]), rows.layout(node.outputs[0])
    order = node.attributes.get_ints("perm", ())
    if {before, after} == {"flat", "last"}:
        return True
    if {before, after} == {"pair", None}:
        return bool(order)
    return before == after == "pair" and tuple(order[:2]) == (0, 1)


_Rule: TypeAlias = Callable[[ir.Node, Rows], bool]
_ELEMENTWISE = (
    "Abs Add And Cast Clip Div Equal Erf Exp Gelu Greater GreaterOrEqual HardSigmoid IsInf IsNaN LeakyRelu Less "
    "LessOrEqual Log Max Min Mul Neg Not Or Pow Reciprocal Relu Sigmoid Sign Softplus Sqrt Sub Sum Tanh Where"
).split()
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        **dict.fromkeys(_ELEMENTWISE, _elementwise),
        **dict.fromkeys(("LayerNormalization", "LogSoftmax", "Softmax"), _by_row),
        **dict.fromkeys(("Concat", "GatherElements", "ScatterElements"), _along),
        **dict.fromkeys(("FusedMatMul", "Gemm", "MatMul"), _product),
        **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceSum"), _reduced),
        **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze"), _reshaped),
        "Gather": _look_up,
        "ScatterND": _summed_at,
        "Slice": _cut,
        "Transpose": _transposed,
    }
)
