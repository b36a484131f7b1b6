"""Slices known rows out of a table, such as those of positions, instead of looking them up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.place_casts import VIEWS

__all__ = ["SliceKnownRows"]

_BROADCASTS = frozenset({"Add", "Div", "Mul", "Sub"})


class SliceKnownRows(Pass[PassResult]):
    """Takes known rows of a table out of it by Slice, not by Gather; counts the Gathers.

    A Slice of rows that follow each other is a copy, where a Gather is a kernel that reads its indices. Slices of
    slices become one.

    1. Rows that follow each other, as of positions.
    2. One row again and again, as of the only type of tokens, where all readers broadcast: only the row.

    All values stay the same. Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for node in list(model.graph):
            rows = _known_rows(node)
            if rows is None:
                continue
            repeated = bool((rows == rows[0]).all()) and _is_broadcast(node.outputs[0])
            if not repeated and not (np.diff(rows) == 1).all():
                continue
            _write(model, names, node, int(rows[0]), 1 if repeated else len(rows), repeated=repeated)
            count += 1
        if count:
            RemoveUnusedNodesPass()(model)
        return PassResult(model, modified=bool(count), count=count)


def _known_rows(node: ir.Node) -> np.ndarray | None:
    """Return the indices of a Gather of rows in their order; None of other nodes, or if they are not known."""
    if node.op_type != "Gather" or not is_standard(node) or node.attributes.get_int("axis", 0) != 0:
        return None
    table, indices = node.inputs
    if table is None or not is_static(table) or not is_static(node.outputs[0]) or node.outputs[0].is_graph_output():
        return None
    constants = constant_array(indices)
    if constants is None or constants.size == 0:
        return None
    rows: np.ndarray = np.where(constants < 0, constants + shape_of(table)[0], constants).reshape(-1)
    return rows if rows.min() >= 0 and rows.max() < shape_of(table)[0] else None  # others are an error of the run


def _is_broadcast(value: ir.Value) -> bool:
    """Whether all readers add or multiply a value of the same shape, so that one row of it would do."""
    for use in value.uses():
        if use.node.op_type not in _BROADCASTS or not is_standard(use.node):
            return False
        other = use.node.inputs[1 - use.idx]
        if other is None or other is value or not is_static(other) or shape_of(other) != shape_of(use.node.outputs[0]):
            return False
    return True


def _write(model: ir.Model, names: NameAllocator, node: ir.Node, first: int, count: int, *, repeated: bool) -> None:
    table = node.inputs[0]
    assert table is not None
    builder = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/")
    width = math.prod(shape_of(table)[1:])
    source, start = _origin(table)
    start += first * width
    shape: Sequence[int] = shape_of(table)[1:] if repeated else shape_of(node.outputs[0])
    flat = builder.reshape(source, [-1])
    if (start, count * width) != (0, shape_of(flat)[0]):
        flat = builder.slice(flat, [start], [start + count * width], [0])
    result = builder.reshape(flat, shape)
    if repeated:
        node.outputs[0].shape = ir.Shape(shape)
    take_over(node.outputs[0], result, names)
    model.graph.remove(node, safe=True)


def _origin(value: ir.Value) -> tuple[ir.Value, int]:
    """Return the value that holds all elements of another one, and where they begin there."""
    start = 0
    while (node := value.producer()) is not None and is_standard(node) and node.inputs and node.inputs[0] is not None:
        if node.op_type in VIEWS:
            value = node.inputs[0]
        elif (skipped := _skipped(node)) is not None:
            value, start = node.inputs[0], start + skipped
        else:
            break
    return value, start


def _skipped(node: ir.Node) -> int | None:
    """Return how many elements come before those that a Slice of whole rows takes; None of other nodes."""
    source = node.inputs[0]
    if node.op_type != "Slice" or source is None or not is_static(source) or not is_static(node.outputs[0]):
        return None
    constants = [constant_array(value) for value in node.inputs[1:]]
    if len(constants) < 3 or any(array is None or array.tolist() not in ([0], [1]) for array in constants[2:]):
        return None
    first, axes = constants[0], constants[2]
    if first is None or first.size != 1 or axes is None or axes.tolist() != [0] or first.item() < 0:
        return None
    if len(constants) > 3 and constants[3] is not None and constants[3].tolist() != [1]:
        return None
    return min(int(first.item()), shape_of(source)[0]) * math.prod(shape_of(source)[1:])
