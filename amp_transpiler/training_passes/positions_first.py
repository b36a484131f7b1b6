"""Computes attention's rows position by position, so that its products read them as they lie."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.precision.min_cut import CutProblem, Tensor, minimum_cut
from amp_transpiler.training_passes.row_order import Rows, keeps_order

__all__ = ["PositionsFirst"]

_OPSET = 17  # any from which the operators have these attributes
_TO_HEADS = ((0, 2, 1, 3), (0, 2, 3, 1))  # samples, positions, heads, features -> stacks of matrices
_TAKEN_IN = ("MatMul", "Mul", "Transpose")  # what FuseProducts looks through


class PositionsFirst(Pass[PassResult]):
    """Orders the rows of a step by positions instead of samples where Transposes are saved; counts the nodes.

    Attention multiplies a matrix for each sample and head. In rows of samples' positions, those of one sample and head
    are no stack that a product steps through, so they are copied to one first. In rows of positions' samples they are:
    sample and head are next to each other, and FusedMatMul reads such operands with `transBatchA` and `transBatchB`.

    1. Which nodes have the other order is a minimum cut: Transposes in front of products that are saved, and those of
       rows between nodes of both orders, at their prices. Ids and labels are such rows as well.
    2. Numbers are the same, but for the order in which sums over rows are added up.

    Shapes must be inferred. Only the main graph is edited; a node that does more with rows than `row_order` knows keeps
    their order.
    """

    def call(self, model: ir.Model) -> PassResult:
        rows = _rows(model.graph)
        count = 0 if rows is None else _Reordering(model, rows).run()
        return PassResult(model, modified=bool(count), count=count)


def _rows(graph: ir.Graph) -> Rows | None:
    """Return the rows that most Transposes to heads have."""
    heads = [node for node in graph if node.op_type == "Transpose" and node.attributes.get_ints("perm") in _TO_HEADS]
    sizes = [shape_of(node.inputs[0])[:2] for node in heads if node.inputs[0] is not None and is_static(node.inputs[0])]
    if not sizes:
        return None
    samples, positions = collections.Counter(sizes).most_common(1)[0][0]
    return Rows(samples, positions) if samples != positions and min(samples, positions) > 1 else None


class _Reordering:
    def __init__(self, model: ir.Model, rows: Rows) -> None:
        self._model, self._rows = model, rows
        self._nodes = list(model.graph)
        self._place = {node: index for index, node in enumerate(self._nodes)}
        self._prices: dict[tuple[ir.DataType, tuple[int, ...]], int] = {}

    def run(self) -> int:
        """Edit the graph; return how many nodes have the other order."""
        values = self._values()
        readers = {value: self._readers(value) for value in values}
        chosen = minimum_cut(self._problem(readers))
        moved = {node: None for node, is_moved in zip(self._nodes, chosen, strict=True) if is_moved}
        if not moved:
            return 0
        builder = GraphBuilder(self._model, prefix="rows/")
        for node in moved:
            self._edit(node, builder)
        for value in values:
            is_moved = value.producer() in moved
            uses = [(node, index) for node, index in value.uses() if (node in moved) != is_moved]
            if is_moved and self._rows.layout(value) == "pair":
                value.shape = ir.Shape(_exchanged(shape_of(value)))
            self._swap(builder, value, uses, back=is_moved)
        self._model.graph.sort()
        return len(moved)

    # ---- deciding ----
    def _values(self) -> list[ir.Value]:
        """Return the values that have rows."""
        outside = [*self._model.graph.inputs, *self._model.graph.initializers.values()]
        computed = [value for node in self._nodes for value in node.outputs]
        return [value for value in dict.fromkeys((*outside, *computed)) if self._rows.layout(value) is not None]

    def _readers(self, value: ir.Value) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self._place[use.node] for use in value.uses() if use.node in self._place))

    def _problem(self, readers: Mapping[ir.Value, Sequence[int]]) -> CutProblem:
        """Return the choice as a cut: low is the other order."""
        low: list[int | None] = [0 if self._may_move(node) else None for node in self._nodes]
        high: list[int | None] = [self._saved(node) for node in self._nodes]
        tensors = []
        for value, places in readers.items():
            producer, price = value.producer(), self._price(value)
            place = None if producer is None else self._place.get(producer)
            is_read_inside = any(use.node not in self._place for use in value.uses())
            tensors.append(Tensor(place, readers=tuple(places), read_high=is_read_inside, to_low=price, to_high=price))
        return CutProblem(low, high, tensors)

    def _may_move(self, node: ir.Node) -> bool:
        is_handed = any(value.is_graph_output() for value in node.outputs)
        return not is_handed and not has_bodies(node) and keeps_order(node, self._rows)

    def _saved(self, node: ir.Node) -> int:
        """Return the price of a Transpose that products take in once rows have the other order; 0 of other nodes."""
        if node.op_type != "Transpose" or not is_standard(node) or node.attributes.get_ints("perm") not in _TO_HEADS:
            return 0
        value, result = node.inputs[0], node.outputs[0]
        is_taken_in = all(use.node.op_type in _TAKEN_IN for use in result.uses())
        return self._price(value) if value is not None and self._rows.layout(value) == "pair" and is_taken_in else 0

    def _price(self, value: ir.Value) -> int:
        """Return the nanoseconds that it takes to bring a value's rows into the other order."""
        assert value.dtype is not None  # its shape is known
        key = value.dtype, shape_of(value)
        if key not in self._prices:
            rows = self._rows

            def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
                _exchange(builder, inputs[0], rows, back=False)

            self._prices[key] = round(1e9 * seconds_of_form(write, [key], _OPSET))
        return self._prices[key]

    # ---- editing ----
    def _edit(self, node: ir.Node, builder: GraphBuilder) -> None:
        """Let a node read and make rows in the other order."""
        result = node.outputs[0]
        before, after = self._rows.layout(node.inputs[0]), self._rows.layout(result)
        if node.op_type == "Reshape" and after == "pair":
            builder.before = node
            node.replace_input_with(1, builder.constant(np.array(_exchanged(shape_of(result)), np.int64)))
        elif node.op_type == "Transpose" and {before, after} == {"pair", None}:
            order = node.attributes.get_ints("perm", ())
            other = [{0: 1, 1: 0}.get(axis, axis) for axis in order] if before == "pair" else _exchanged(order)
            node.attributes["perm"] = ir.AttrInt64s("perm", other)

    def _swap(self, builder: GraphBuilder, value: ir.Value, uses: Sequence[tuple[ir.Node, int]], *, back: bool) -> None:
        """Let nodes read a value with its rows in the other order."""
        if not uses:
            return
        first = min((node for node, _ in uses), key=lambda node: self._place.get(node, 0))
        builder.before, builder.metadata = first, dict(first.metadata_props)
        result = _exchange(builder, value, self._rows, back=back)
        for node, index in uses:
            node.replace_input_with(index, result)


def _exchanged(sizes: Sequence[int]) -> list[int]:
    """Return sizes with the first two in the other order."""
    return [sizes[1], sizes[0], *sizes[2:]]


def _exchange(builder: GraphBuilder, value: ir.Value, rows: Rows, *, back: bool) -> ir.Value:
    """Bring rows that are ordered by samples into the order by positions, or `back`."""
    shape = shape_of(value)
    pair = (rows.positions, rows.samples) if back else (rows.samples, rows.positions)
    if shape[:2] == pair:
        return builder.transpose(value, [1, 0, *range(2, len(shape))])
    if shape[0] == rows.count:
        turned = builder.transpose(builder.reshape(value, [*pair, *shape[1:]]), [1, 0, *range(2, len(shape) + 1)])
    else:
        turned = builder.transpose(builder.reshape(value, [shape[0], *pair]), [0, 2, 1])
    return builder.reshape(turned, list(shape))
