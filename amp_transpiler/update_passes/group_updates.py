"""Computes the updates of many parameters together, by one chain of operators."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.infer_outputs import infer_outputs
from amp_transpiler.graph.roles import ROLE_KEY, role_of
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.program.packed_state import Stack
from amp_transpiler.update_passes.group_plan import MOST_INPUTS, Group, Worth, plan_groups, runs_of
from amp_transpiler.update_passes.update_chains import (
    Chain,
    Ref,
    find_chains,
    is_elementwise,
    is_scalar,
    optimizer_nodes,
    source_of,
)

__all__ = ["GroupUpdates", "Grouped", "group_members"]

logger = logging.getLogger(__name__)

_SPLIT_OPSET = 18  # Split takes the number of parts from here on
_LARGE = 1 << 20  # elements that are better copied once than by a Slice and a Split
_FEW = 8  # times: rows that are no more than this part of a matrix are cast without the others
_MEMBERS_KEY = "amp_transpiler.members"  # of a Concat that joins gradients: it is one of a group


@dataclasses.dataclass
class Grouped(PassResult):
    """The result of `GroupUpdates`.

    Attributes:
        stacks: the persistable values that are rows of a matrix now.
        updates: persistable name, or name of a stack -> output that replaces it.
    """

    stacks: tuple[Stack, ...] = ()
    updates: Mapping[str, str] = dataclasses.field(default_factory=dict)


class GroupUpdates(Pass[Grouped]):
    """Computes the updates of many parameters together; counts the groups.

    An operator of an optimizer takes a GPU far less time than its launch. So parameters become rows of matrices:

    1. Nodes of the optimizer that are joined by tensors are a chain; chains that compute the same of other tensors are
       a group, if that saves more than it costs. One node stands for the nodes at the same place of each chain. A
       tensor of elements that are a multiple of a row's has several rows.
    2. Gradients are joined by Concat, in 16 bits if they come from there. Results that something else needs, such as
       the parameters that the forward pass reads, come out of Slice and Split.
    3. States that a chain replaces, such as moments, masters and the parameters themselves, stay matrices between runs:
       `stacks`. The rest of the step gets its rows of them, cast together if it casts them.
    4. Scalars that differ between the members are columns [rows, 1]; those of all groups are computed together.
    5. A sum of one scalar per member, such as that of the check for infinity, is a sum over the matrix.

    Elementwise results are the same to the bit. Sums over a tensor may add in another order.

    The values of the model must be typed, and have shapes.

    Args:
        updates: persistable name -> output that replaces it.
        fetched: names of outputs that the caller reads.
        worth: when a group pays.
    """

    def __init__(self, updates: Mapping[str, str], fetched: Collection[str], worth: Worth) -> None:
        self._updates = dict(updates)
        self._fetched = frozenset(fetched)
        self._worth = worth

    def call(self, model: ir.Model) -> Grouped:
        unchanged = Grouped(model, modified=False, updates=self._updates)
        if not self._updates or opset_of(model, "") < _SPLIT_OPSET:
            return unchanged
        nodes = optimizer_nodes(model.graph)
        chains = find_chains(nodes, self._updates, read_elsewhere=self._worth.merges)
        groups = plan_groups(chains, self._worth)
        if not groups:
            return unchanged
        order = _order(nodes, groups)
        if order is None:
            logger.debug("GroupUpdates: chains of a group depend on each other, so none are grouped")
            return unchanged
        writing = _Writing(model, groups, self._updates, self._fetched)
        writing.write(order)
        return Grouped(
            model, modified=True, count=len(groups), stacks=tuple(writing.stacks), updates=dict(writing.updates)
        )


def group_members(model: ir.Model) -> dict[str, tuple[str, ...]]:
    """Return the groups' gradients of a step that `GroupUpdates` has edited: name of the joined value -> its parts.

    The parts are names of gradients, whose elements follow each other in the joined value.
    """
    return {
        str(node.outputs[0].name): tuple(str(part.name) for value in node.inputs for part in _parts_of(value))
        for node in model.graph
        if _MEMBERS_KEY in node.metadata_props
    }


def _parts_of(value: ir.Value | None) -> Iterator[ir.Value]:
    node = None if value is None else value.producer()
    if node is not None and role_of(node) == "optimize" and node.op_type in ("Concat", "Reshape"):
        for part in node.inputs if node.op_type == "Concat" else node.inputs[:1]:
            yield from _parts_of(part)
    elif value is not None:
        yield value


_Unit = tuple[int, int]  # a group and a place in its chains


def _order(nodes: Sequence[ir.Node], groups: Sequence[Group]) -> list[_Unit | ir.Node] | None:
    """Return the optimizer's nodes, with units for those that are grouped: each just before the first that reads it.

    So little is kept at a time. None if a unit depends on itself: a chain needs another one of its group.
    """
    unit_of: dict[ir.Node, _Unit | ir.Node] = {node: node for node in nodes}
    for number, group in enumerate(groups):
        for chain in group.chains:
            unit_of.update((node, (number, place)) for place, node in enumerate(chain.nodes))
    needs: dict[_Unit | ir.Node, dict[_Unit | ir.Node, None]] = {}
    for node in nodes:
        needed = needs.setdefault(unit_of[node], {})
        for value in node.inputs:
            maker = None if value is None else value.producer()
            if maker is not None and maker in unit_of:
                needed[unit_of[maker]] = None
    return _sorted(needs)


def _sorted(needs: Mapping[_Unit | ir.Node, Iterable[_Unit | ir.Node]]) -> list[_Unit | ir.Node] | None:
    """Return units in an order in which each follows what it needs; None if there is none."""
    order: list[_Unit | ir.Node] = []
    entered: set[_Unit | ir.Node] = set()
    done: set[_Unit | ir.Node] = set()
    needed = {other for others in needs.values() for other in others}
    for last in (unit for unit in needs if unit not in needed):
        stack = [last]
        while stack:
            unit = stack[-1]
            if unit in done:
                stack.pop()
                continue
            missing = [other for other in needs[unit] if other not in done]
            if not missing:
                done.add(stack.pop())
                order.append(unit)
            elif unit in entered:
                return None
            else:
                entered.add(unit)
                stack += reversed(missing)
    return order if len(order) == len(needs) else None


class _Writing:
    """Writes the nodes of groups in place of those of their chains."""

    def __init__(
        self, model: ir.Model, groups: Sequence[Group], updates: Mapping[str, str], fetched: Collection[str]
    ) -> None:
        self._model, self._graph, self._groups = model, model.graph, groups
        self._builder = GraphBuilder(model, metadata={ROLE_KEY: "optimize"}, prefix="group/")
        self.updates = dict(updates)
        self.stacks: list[Stack] = []
        self._stacked: dict[tuple[int, Ref], ir.Value] = {}  # a group's leaf or result -> matrix or column
        self._joined: dict[tuple[ir.Value, ...], ir.Value] = {}
        self._columns: dict[tuple[tuple[ir.Value, ...], tuple[int, ...]], ir.Value] = {}
        self._wide: dict[tuple[tuple[ir.Value, ...], tuple[ir.Value, ...]], ir.Value] = {}
        first = next((node for node in model.graph if role_of(node) != "optimize"), None)
        self._head = GraphBuilder(model, before=first, names=self._builder.names, prefix="group/", shares=self._builder)
        self._views: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
        self._replaced: list[ir.Value] = []  # casts of members' values that are parts of a matrix that was cast
        self._passed: dict[ir.Value, None] = {}  # gradients whose casts may be of no use any more
        self._row: dict[ir.Value, tuple[ir.Value, int]] = {}  # scalar of a member -> column, row
        self._grouped = {node for group in groups for chain in group.chains for node in chain.nodes}
        states = [str(chain.leaves[leaf].name) for group in groups for chain in group.chains for leaf in chain.states]
        gone = {name: updates[name] for name in states}
        needed = {output for name, output in updates.items() if name not in gone} | set(fetched)
        self._no_outputs = set(gone.values()) - needed  # outputs that only a stack replaces

    def write(self, order: Iterable[_Unit | ir.Node]) -> None:
        """Append the units in this order; the nodes that they stand for are removed."""
        order = list(order)
        outputs = [value for value in self._graph.outputs if value.name not in self._no_outputs]
        self._graph.outputs.clear()
        self._graph.outputs.extend(outputs)
        self._graph.remove([unit for unit in order if isinstance(unit, ir.Node)])  # one by one takes far longer
        for unit in order:
            if isinstance(unit, ir.Node):
                self._graph.append(unit)
            else:
                self._write_unit(*unit)
        for value in self._replaced:
            self._drop_unread(value)
        dropped = [node for group in self._groups for chain in group.chains for node in chain.nodes]
        self._graph.remove(dropped, safe=True)
        states = {leaf for group in self._groups for chain in group.chains for leaf in _states(chain)}
        for value in [value for value in self._graph.inputs if value in states]:
            self._graph.inputs.remove(value)
        for value in self._passed:
            self._drop_unread(value)

    def _drop_unread(self, value: ir.Value) -> None:
        """Remove the casts of values that are cast together after all."""
        node = value.producer()
        while node is not None and node.op_type in ("Cast", "Identity") and not is_used(node.outputs[0]):
            source = node.inputs[0]
            assert source is not None  # they have one input
            assert node.graph is not None
            node.graph.remove(node, safe=True)
            node = source.producer()

    def _write_unit(self, number: int, place: int) -> None:
        group = self._groups[number]
        like = group.first.nodes[place]
        inputs = [self._operand(number, place, index) for index in range(len(like.inputs))]
        outputs = group.made(place)
        if like.op_type == "ReduceSum":
            assert inputs[0] is not None
            if (total := self._is_total(outputs)) is not None:
                self._add_total(
                    total, outputs, self._builder.reduce("ReduceSum", inputs[0], None, keepdims=False, low=True)
                )
                return
            result = self._builder.reduce("ReduceSum", inputs[0], [1], low=True)
        else:
            result = self._copy(like, inputs)
        self._stacked[number, ("node", place)] = result
        if place in group.first.states.values():
            self._replace_state(number, place, result)
        self._hand_out(group, outputs, result, self._builder)

    # What a unit reads.

    def _operand(self, number: int, place: int, index: int) -> ir.Value | None:
        group = self._groups[number]
        ref = group.first.refs[place][index]
        if ref is None:
            return None
        kind, which = ref[0], ref[1]
        if kind == "constant":
            return group.first.nodes[place].inputs[index]
        if (number, ref) not in self._stacked:
            assert isinstance(which, int)  # nodes' results are there: they come before
            self._stacked[number, ref] = (
                self._column(group.scalar(which), group.rows) if kind == "scalar" else self._leaf(group, which)
            )
        return self._stacked[number, ref]

    def _leaf(self, group: Group, index: int) -> ir.Value:
        values = group.leaf(index)
        if index not in group.first.states:
            return self._join(group, values)
        names = tuple(str(value.name) for value in values)
        label = f"{names[0]}@stack{len(names)}_{zlib.crc32(repr((names, group.shapes)).encode()):08x}"
        stack = Stack(label, names, group.shapes, values[0].dtype or ir.DataType.FLOAT)
        self.stacks.append(stack)
        matrix = ir.Value(name=label, type=ir.TensorType(stack.dtype), shape=ir.Shape(stack.stacked_shape))
        self._graph.inputs.append(matrix)
        if not is_scalar(values[0]):
            self._hand_out(group, values, matrix, self._head)
        return matrix

    def _join(self, group: Group, values: tuple[ir.Value, ...]) -> ir.Value:
        """Return the matrix of tensors that are joined in each run."""
        sources = tuple(source_of(value) for value in values)
        if len({value.dtype for value in sources}) > 1:
            sources = values
        if sources not in self._joined:
            alike = len(set(group.shapes)) == 1
            parts = list(sources) if alike else [self._builder.reshape(value, [-1]) for value in sources]
            joined = self._concat(parts)
            node = joined.producer()
            if node is not None and not sources[0].is_graph_input():
                node.metadata_props[_MEMBERS_KEY] = str(len(values))
            self._joined[sources] = self._builder.reshape(joined, [sum(group.rows), group.width])
        if (values, sources) not in self._wide:
            self._wide[values, sources] = self._builder.cast(self._joined[sources], values[0].dtype)
            self._passed.update(dict.fromkeys(values))
        return self._wide[values, sources]

    def _concat(self, parts: list[ir.Value]) -> ir.Value:
        """Return tensors joined, the small ones, which are the first, in several kernels if there are many."""
        while (surplus := len(parts) - MOST_INPUTS) > 0:
            first = min(MOST_INPUTS, surplus + 1)
            parts = [self._builder.op("Concat", parts[:first], {"axis": 0}), *parts[first:]]
        return self._builder.op("Concat", parts, {"axis": 0})

    def _column(self, values: tuple[ir.Value, ...], rows: tuple[int, ...]) -> ir.Value:
        """Return the scalars of each member: one scalar if all have the same, else a column with one for each row."""
        if len(set(values)) == 1 and values[0] not in self._row:
            return values[0]
        if (values, rows) not in self._columns:
            self._columns[values, rows] = self._made_column(values, rows)
        return self._columns[values, rows]

    def _made_column(self, values: tuple[ir.Value, ...], rows: tuple[int, ...]) -> ir.Value:
        sources = {self._row[value][0] for value in values if value in self._row}
        if len(sources) == 1 and all(value in self._row for value in values):
            column, places = sources.pop(), [self._row[value][1] for value in values]
        else:
            distinct = list(dict.fromkeys(values))
            parts = [self._as_column(value) for value in distinct]
            column = parts[0] if len(parts) == 1 else self._concat(parts)
            place_of = {value: place for place, value in enumerate(distinct)}
            places = [place_of[value] for value in values]
        assert column.shape is not None
        places = [place for place, count in zip(places, rows, strict=True) for _ in range(count)]
        if places == list(range(int(column.shape[0]))):  # type: ignore[arg-type]  # it is a number
            return column
        return self._builder.op("Gather", [column, self._builder.constant(np.array(places, np.int32))], {"axis": 0})

    def _as_column(self, value: ir.Value) -> ir.Value:
        if value in self._row:
            column, row = self._row[value]
            return self._builder.op("Gather", [column, self._builder.constant(np.array([row], np.int64))], {"axis": 0})
        return self._builder.reshape(value, [1, 1])

    # What a unit makes.

    def _copy(self, like: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
        names = self._builder.names
        result = ir.Value(name=names.fresh(f"group/{like.op_type}_out0"))
        node = ir.Node(
            "",
            like.op_type,
            inputs,
            list(like.attributes.values()),
            outputs=[result],
            name=names.fresh(f"group/{like.op_type}"),
            metadata_props=dict(like.metadata_props),
        )
        infer_outputs(self._model, node)
        self._graph.append(node)
        return result

    def _replace_state(self, number: int, place: int, result: ir.Value) -> None:
        chain = self._groups[number].first
        for leaf in (leaf for leaf, maker in chain.states.items() if maker == place):
            members = [str(value.name) for value in self._groups[number].leaf(leaf)]
            for name in members:
                del self.updates[name]
            matrix = self._stacked[number, ("leaf", leaf)]
            self.updates[str(matrix.name)] = str(result.name)
            if not result.is_graph_output():
                self._graph.outputs.append(result)

    def _hand_out(self, group: Group, values: Sequence[ir.Value], matrix: ir.Value, builder: GraphBuilder) -> None:
        """Give what is not grouped the members' values that it reads, out of their matrix."""
        if is_scalar(values[0]):
            self._row.update((value, (matrix, row)) for row, value in enumerate(values))
            self._hand_out_scalars([value for value in values if self._is_wanted(value)], builder)
            return
        reads: dict[ir.DataType | None, dict[int, list[ir.Value]]] = {}  # type it is cast to -> member -> what to make
        for index, value in enumerate(values):
            for cast in [use.node for use in value.uses() if use.node not in self._grouped and _narrows(use.node)]:
                result = cast.outputs[0]
                reads.setdefault(result.dtype, {}).setdefault(index, []).append(result)
            if self._is_wanted(value):
                reads.setdefault(None, {}).setdefault(index, []).append(value)
        for dtype, members in reads.items():
            source, begin = matrix, 0
            if dtype is not None:
                source, begin = _cast_rows(builder, group, matrix, members, dtype)
            for index, part in self._split(builder, group, source, members, begin).items():
                for value in members[index]:
                    self._take_over(value, part)

    def _hand_out_scalars(self, values: Sequence[ir.Value], builder: GraphBuilder) -> None:
        """Give what is not grouped the scalars that it reads, out of their column: many by one Split."""
        for start in range(0, len(values), MOST_INPUTS):
            some = tuple(values[start : start + MOST_INPUTS])
            column = builder.reshape(self._column(some, (1,) * len(some)), [len(some)])
            parts: tuple[ir.Value, ...] = (column,)
            if len(some) > 1:
                parts = builder.nodes("Split", parts, {"axis": 0, "num_outputs": len(some)}, outputs=len(some))
            for value, part in zip(some, parts, strict=True):
                self._take_over(value, part if self._is_broadcast(value) else builder.reshape(part, []))

    def _is_broadcast(self, value: ir.Value) -> bool:
        """Whether what reads a scalar outside of groups computes the same of one element with a dimension."""
        others = [use.node for use in value.uses() if use.node not in self._grouped]
        return not value.is_graph_output() and all(
            is_elementwise(node) and node.outputs[0].shape is not None and len(node.outputs[0].shape) > 0
            for node in others
        )

    def _is_wanted(self, value: ir.Value) -> bool:
        """Whether something that is not grouped reads a value as it is."""
        others = [use.node for use in value.uses() if use.node not in self._grouped]
        return value.is_graph_output() or any(not _narrows(node) for node in others)

    def _split(
        self,
        builder: GraphBuilder,
        group: Group,
        matrix: ir.Value,
        members: Collection[int],
        begin: int = 0,
    ) -> dict[int, ir.Value]:
        """Return members' values, those of equal shape that follow each other at once.

        `matrix` has the rows of the group's from `begin` on.
        """
        values: dict[int, ir.Value] = {}
        starts = [start - begin for start in (0, *itertools.accumulate(group.rows))]
        for first, last in runs_of(group.shapes):
            some = [index for index in range(first, last) if index in members]
            shape, count = group.shapes[first], last - first
            together = 2 * len(some) > count > 1 and (count == len(group.chains) or group.sizes[first] < _LARGE)
            for a, b in [(first, last)] if together else [(index, index + 1) for index in some]:
                rows = self._rows_of(builder, matrix, (starts[a], starts[b]), [(b - a) * shape[0], *shape[1:]])
                if not together:
                    values[a] = rows
            if together:
                parts = builder.nodes("Split", [rows], {"axis": 0, "num_outputs": count}, outputs=count)
                values.update((index, parts[index - first]) for index in some)
        return values

    def _rows_of(self, builder: GraphBuilder, matrix: ir.Value, rows: tuple[int, int], shape: list[int]) -> ir.Value:
        """Return rows of a matrix in another shape.

        The first are sliced of the matrix, others of a view of it: ONNX Runtime makes one Split of unequal sizes of
        Slices that are all of a tensor, and that copies a table as long as the tensor to the device in each run. The
        view has rows as the result has, if they fit: a result of the step that is a view would be copied.
        """
        start, end = rows
        length, width = shape_of(matrix)
        if (start, end) == (0, length):
            return builder.reshape(matrix, shape)
        inner, count = math.prod(shape[1:]), length * width
        if start == 0 or inner == width or start * width % inner or count % inner:
            view = matrix if start == 0 else self._view(builder, matrix, [*shape_of(matrix), 1])
            return builder.reshape(builder.slice(view, [start], [end], [0]), shape)
        view = self._view(builder, matrix, [count // inner, *shape[1:]])
        first = start * width // inner
        return builder.slice(view, [first], [first + shape[0]], [0])

    def _view(self, builder: GraphBuilder, matrix: ir.Value, shape: list[int]) -> ir.Value:
        key = (matrix, tuple(shape))
        if key not in self._views:
            self._views[key] = builder.reshape(matrix, shape)
        return self._views[key]

    def _take_over(self, value: ir.Value, part: ir.Value) -> None:
        """Let `part` stand for a member's value wherever that is read outside of groups, under its name."""
        for use in list(value.uses()):
            if use.node not in self._grouped and not (_narrows(use.node) and use.node.outputs[0] is not value):
                use.node.replace_input_with(use.idx, part)
        for index, output in enumerate(self._graph.outputs if value.is_graph_output() else ()):
            if output is value:
                self._graph.outputs[index] = part
        if value.producer() is None:
            return  # the name of a state
        if value.producer() not in self._grouped:
            self._replaced.append(value)
        name = value.name
        value.name = self._builder.names.fresh(f"{name}__single")
        part.name = name

    # Sums over all members.

    def _is_total(self, members: Sequence[ir.Value]) -> ir.Node | None:
        """Return the Sum that adds up what the members make, and is all that reads it; None if there is none."""
        readers = {use.node for value in members for use in value.uses()}
        if len(readers) != 1 or any(value.is_graph_output() or len(value.uses()) != 1 for value in members):
            return None
        reader = readers.pop()
        return reader if reader.op_type == "Sum" and reader not in self._grouped else None

    def _add_total(self, node: ir.Node, members: Sequence[ir.Value], total: ir.Value) -> None:
        gone = set(members)
        inputs = [*(value for value in node.inputs if value not in gone), total]
        if len(inputs) == 1 and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(total)
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            node.replace_input_with(index, value)


def _cast_rows(
    builder: GraphBuilder, group: Group, matrix: ir.Value, members: Collection[int], dtype: ir.DataType
) -> tuple[ir.Value, int]:
    """Return a matrix, or some rows of it, in another type; and the first of these rows.

    The rows are whole runs of members of equal shape, for one Split may take a run apart.
    """
    starts = [0, *itertools.accumulate(group.rows)]
    runs = [run for run in runs_of(group.shapes) if any(index in members for index in range(*run))]
    begin, end = starts[runs[0][0]], starts[runs[-1][1]]
    if _FEW * (end - begin) > starts[-1]:
        return builder.cast(matrix, dtype), 0
    return builder.cast(builder.slice(matrix, [begin], [end], [0]), dtype), begin


def _narrows(node: ir.Node) -> bool:
    """Whether a node is a cast from float32 to 16 bits."""
    return node.op_type == "Cast" and is_standard(node) and node.outputs[0].dtype in LOW_DTYPES


def _states(chain: Chain) -> list[ir.Value]:
    return [chain.leaves[leaf] for leaf in chain.states]
