"""Turns a program into the numbers of a minimum cut, and its answer back into nodes and values.

An item is what has one precision: a node that may be either, the nodes of one operator that is written out as several,
or a port through which control flow passes values on. A value is a tensor between items. Casts that the source has
itself are kept apart from those that would be inserted:

- a cast from float32 to float32 is no more than its input, and the second of two equal ones no more than the first;
- one to the low format is a reader that wants it low, whose cast is shared with others;
- one from the low format hands a low value on: it is needed only if somebody reads float32;
- one from integers, or another 16-bit format, is needed once for each precision that is read (`passes/clean_casts.py`
  makes two casts in a row one).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import INTEGER_DTYPES, LOW_DTYPES, LowFormat
from amp_transpiler.graph.walk import ControlPort, control_ports, has_bodies, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.min_cut import CutProblem, Tensor, minimum_cut
from amp_transpiler.precision.ports import is_float32_port, may_pass_low

__all__ = ["Casting", "Choices", "Chosen", "Island", "Reads", "Weights", "choices", "is_cast", "origin_of"]

_PRECISE = 40  # bits of the cost of the best of two plain choices; the rest is room for the sum of all costs


_Reader: TypeAlias = "int | Literal['low', 'high'] | None"  # an item, a precision that is wanted, or any
Reads: TypeAlias = Callable[[ir.Value, Sequence[ir.Node]], float]


class Weights(Protocol):
    """What nodes and casts cost. An infinite cost forbids."""

    def low(self, node: ir.Node) -> float:
        """Return the cost of a node that is low."""

    def high(self, node: ir.Node) -> float:
        """Return the cost of a node that is float32."""

    def cast_to_low(self, value: ir.Value) -> float:
        """Return the cost of casting a float32 value to the low format."""

    def cast_to_high(self, value: ir.Value) -> float:
        """Return the cost of casting a low value to float32."""


@dataclasses.dataclass(frozen=True, slots=True)
class Casting:
    """A cast that a choice needs.

    Attributes:
        value: what is cast.
        target: the format that it is cast to.
    """

    value: ir.Value
    target: Literal["low", "high"]


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """An answer, in terms of the program.

    Attributes:
        low: the nodes with a choice that are low.
        ports: the ports whose values are low.
        casts: all casts that are needed then, those of the source between float32 and the low format included.
    """

    low: frozenset[ir.Node]
    ports: tuple[ControlPort, ...]
    casts: tuple[Casting, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Island:
    """Connected nodes that may be low and are not.

    Attributes:
        nodes: the nodes.
        casts: how many casts there would be more if all of them were low.
    """

    nodes: tuple[ir.Node, ...]
    casts: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """What has one precision.

    Attributes:
        nodes: its nodes.
        port: or the port that it is.
        held: a float32 node that it shares its precision with; None: there is a choice.
    """

    nodes: tuple[ir.Node, ...] = ()
    port: ControlPort | None = None
    held: ir.Node | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Link:
    """A value between items. Its tensor costs nothing yet."""

    value: ir.Value
    tensor: Tensor

    @property
    def items(self) -> frozenset[int]:
        """The items that it connects."""
        producer = self.tensor.producer
        return frozenset((*self.tensor.readers, *(() if producer is None else (producer,))))

    @property
    def is_open(self) -> bool:
        """Whether a choice matters to the value: whether it connects any item."""
        return bool(self.tensor.readers) or self.tensor.producer is not None

    def casting(self, is_low: Callable[[int], bool]) -> Casting | None:
        """Return the cast of the value that a choice needs."""
        tensor = self.tensor
        made_low = tensor.made_low if tensor.producer is None else is_low(tensor.producer)
        wants = set(map(is_low, tensor.readers))
        if made_low:
            return Casting(self.value, "high") if tensor.read_high or False in wants else None
        return Casting(self.value, "low") if tensor.read_low or True in wants else None


@dataclasses.dataclass(frozen=True, slots=True)
class Choices:
    """What may be chosen in a program, and what each choice costs.

    Attributes:
        problem: the numbers.
        unit: what one of these numbers stands for, in the unit of the weights.
    """

    problem: CutProblem
    unit: float
    _items: tuple[_Item, ...]
    _links: tuple[_Link, ...]

    def nodes(self, item: int) -> tuple[ir.Node, ...]:
        """Return the nodes of an item; none for a port."""
        return self._items[item].nodes

    @property
    def open_nodes(self) -> frozenset[ir.Node]:
        """The nodes with a choice."""
        return frozenset(node for item in self._items for node in item.nodes)

    def held(self) -> Iterator[tuple[ir.Node, ir.Node]]:
        """Yield the nodes that must be float32 because they share their precision with another, each with that one."""
        return ((node, item.held) for item in self._items if item.held is not None for node in item.nodes)

    def weighed(self, weights: Weights, reads: Reads | None = None) -> Choices:
        """Return the same choices under other weights.

        Args:
            weights: what nodes and casts cost.
            reads: returns what it costs, besides the cast, that nodes read a float32 value low.
        """
        return _weighed(self._items, self._links, weights, reads)

    def solve(self) -> list[bool]:
        """Return which items are low in the cheapest choice."""
        return minimum_cut(self.problem)

    def decide(self, low: Sequence[bool]) -> Chosen:
        """Return an answer in terms of the program.

        Args:
            low: item -> whether it is low.
        """
        items = itertools.compress(self._items, low)
        nodes = frozenset(node for item in items for node in item.nodes)
        casts = (link.casting(low.__getitem__) for link in self._links)
        return Chosen(nodes, self.low_ports(low), tuple(cast for cast in casts if cast is not None))

    def low_ports(self, low: Sequence[bool]) -> tuple[ControlPort, ...]:
        """Return the ports whose values are low in an answer.

        Args:
            low: item -> whether it is low.
        """
        return tuple(item.port for item in itertools.compress(self._items, low) if item.port is not None)

    def islands(self, low: Sequence[bool]) -> list[Island]:
        """Return the connected groups of items that might be low and are not.

        Args:
            low: item -> whether it is low.
        """
        members: dict[int, list[int]] = {}
        group_of = _connected(
            [item for item, is_low in enumerate(low) if self._items[item].held is None and not is_low], self._links
        )
        if not group_of:
            return []
        for item, group in group_of.items():
            members.setdefault(group, []).append(item)
        around: dict[int, list[_Link]] = {}
        for link in self._links:
            for group in {group_of[item] for item in link.items if item in group_of}:
                around.setdefault(group, []).append(link)
        return [self._island(low, items, around.get(group, [])) for group, items in members.items()]

    def _island(self, low: Sequence[bool], items: list[int], links: list[_Link]) -> Island:
        inside = set(items)
        before = sum(link.casting(low.__getitem__) is not None for link in links)
        after = sum(link.casting(lambda item: low[item] or item in inside) is not None for link in links)
        return Island(tuple(node for item in items for node in self._items[item].nodes), after - before)


def choices(
    model: ir.Model,
    forms: Mapping[ir.Node, LowForm],
    fixed: Mapping[ir.Node, Decision],
    together: Iterable[Collection[ir.Node]],
    weights: Weights,
    low_io: Collection[str] = (),
    *,
    low: LowFormat,
    outputs_as_computed: bool = False,
) -> Choices:
    """Return what may be chosen in a program.

    Args:
        model: a typed program, its functions inlined.
        forms: the low form of every node that may be either.
        fixed: the decision about every other node.
        together: nodes that share one precision. Where one of them is float32 for certain, all are.
        weights: what nodes and casts cost.
        low_io: names of graph inputs and outputs that are low themselves.
        low: the low format.
        outputs_as_computed: the outputs of the program may have any precision.
    """
    reading = _Reading(model, forms, fixed, low, low_io, outputs_as_computed)
    reading.add_nodes(together)
    reading.add_ports()
    return _weighed(tuple(reading.items), tuple(reading.links()), weights)


class _Reading:
    """A program as items and links.

    Attributes:
        items: what has one precision, in the order of execution; ports last.
    """

    def __init__(
        self,
        model: ir.Model,
        forms: Mapping[ir.Node, LowForm],
        fixed: Mapping[ir.Node, Decision],
        low: LowFormat,
        low_io: Collection[str],
        outputs_as_computed: bool,
    ) -> None:
        self.items: list[_Item] = []
        self._model, self._forms, self._fixed = model, forms, fixed
        self._low, self._low_io, self._outputs_as_computed = low, low_io, outputs_as_computed
        self._item_of: dict[ir.Node, int] = {}
        self._port_of: dict[ir.Value, int] = {}  # values that are born with the type of a port
        self._first_cast: dict[tuple[ir.Value | None, ir.Graph | None], ir.Value] = {}
        self._port_read: dict[tuple[ir.Node | ir.Graph, int], int] = {}  # places that expect it

    def add_nodes(self, together: Iterable[Collection[ir.Node]]) -> None:
        """Make an item of every node that may be either, or of those that share one precision."""
        group: dict[ir.Node, tuple[ir.Node, ...]] = {}
        held: dict[ir.Node, ir.Node] = {}
        for whole in _merged(together):
            free = tuple(node for node in whole if node in self._forms)
            group.update(dict.fromkeys(free, free))
            others = [node for node in whole if node not in self._forms]
            high = next((node for node in others if self._fixed[node].precision == "high"), None)
            if high is not None and all(self._fixed[node].form is None for node in others):
                held.update(dict.fromkeys(free, high))
        for node in self._forms:
            if node not in self._item_of:
                nodes = group.get(node, (node,))
                self._item_of.update(dict.fromkeys(nodes, len(self.items)))
                self.items.append(_Item(nodes, held=held.get(node)))

    def add_ports(self) -> None:
        """Make an item of every float32 port whose operator may pass the low format on."""
        for node in [node for scope in scopes(self._model) for node in scope.graph if has_bodies(node)]:
            if not may_pass_low(self._model, node, self._low):
                continue
            for port in control_ports(node):
                if port.kind != "opaque" and is_float32_port(port):
                    self._port_of.update(dict.fromkeys(port.definitions, len(self.items)))
                    self._port_read.update(dict.fromkeys(((use.user, use.index) for use in port.uses), len(self.items)))
                    self.items.append(_Item(port=port))

    def links(self) -> Iterator[_Link]:
        """Yield the values that may need a cast."""
        readers: dict[ir.Value, dict[_Reader, None]] = {}
        for scope in scopes(self._model):
            for node in scope.graph:
                for index, value in enumerate(node.inputs):
                    if is_float32(value):
                        readers.setdefault(self._origin(value), {})[self._reader(node, index)] = None
            for index, value in enumerate(scope.graph.outputs):
                if is_float32(value):
                    reader = self._output_reader(scope.graph, index, value)
                    readers.setdefault(self._origin(value), {})[reader] = None
        for value, its_readers in readers.items():
            if constant_of(value) is None:
                yield from self._links_of(value, its_readers)

    def _links_of(self, value: ir.Value, readers: Collection[_Reader]) -> Iterator[_Link]:
        items = tuple(reader for reader in readers if isinstance(reader, int))
        read_low, read_high = "low" in readers, "high" in readers
        if not (items or read_low or read_high):
            return
        if (producer := self._producer_item(value)) is not None:
            yield _Link(value, Tensor(producer, False, items, read_low, read_high))
            return
        for made_low in self._fixed_forms(value):
            yield _Link(value, Tensor(None, made_low, items, read_low, read_high))

    def _origin(self, value: ir.Value) -> ir.Value:
        """The value that the source's own casts from float32 hand on, or the first of equal casts of one graph."""
        if _source_cast(value) is None:
            return value
        value = origin_of(value)
        node = _source_cast(value)
        return value if node is None else self._first_cast.setdefault((node.inputs[0], node.graph), value)

    def _producer_item(self, value: ir.Value) -> int | None:
        if value in self._port_of:
            return self._port_of[value]
        node = value.producer()
        if node is None or node not in self._item_of or value.index() not in self._forms[node].outputs:
            return None
        return self._item_of[node]

    def _fixed_forms(self, value: ir.Value) -> tuple[bool, ...]:
        """Whether a value of a fixed precision is made low; both where each precision takes a cast of its own."""
        node = value.producer()
        if node is None:
            return (value.name in self._low_io and _is_input(value),)
        if (cast := _source_cast(value)) is not None and cast.inputs[0] is not None:
            before = cast.inputs[0].dtype
            if before == self._low.dtype:
                return (True,)
            return (True, False) if before in _COMPOSED else (False,)
        decision = self._fixed.get(node)
        if decision is None:
            return (False,)
        outputs = decision.rounded if decision.form is None else decision.form.outputs
        return (value.index() in outputs,)

    def _reader(self, node: ir.Node, index: int) -> _Reader:
        """The item that reads a value as an input, or the precision that a node wants; None if it takes any."""
        if self._port_read and (port := self._port_read.get((node, index))) is not None:
            return port
        if (item := self._item_of.get(node)) is not None:
            return item if index in self._forms[node].inputs else "high"
        decision = self._fixed.get(node)
        if decision is None or not decision.takes_any:
            return "low" if decision is not None and decision.form and index in decision.form.inputs else "high"
        is_cast = node.op_type == "Cast" and is_standard(node)
        return "low" if is_cast and node.outputs[0].dtype == self._low.dtype else None

    def _output_reader(self, graph: ir.Graph, index: int, value: ir.Value) -> _Reader:
        """The item that a value leaves a graph through, or the precision that is wanted there; None for any."""
        if (port := self._port_read.get((graph, index))) is not None:
            return port
        if graph is not self._model.graph:
            return "high"
        if value.name in self._low_io:
            return "low"
        return None if self._outputs_as_computed else "high"


_COMPOSED = INTEGER_DTYPES | LOW_DTYPES  # casts of these to float32, and on to the low format, become one


def _is_input(value: ir.Value) -> bool:
    """Whether a value is an input of the program, not of a body."""
    return value.is_graph_input() and isinstance(value.graph, ir.Graph) and bool(value.graph.opset_imports)


def _source_cast(value: ir.Value) -> ir.Node | None:
    """Return the cast of the source that makes a value float32."""
    node = value.producer()
    return node if node is not None and node.op_type == "Cast" and is_standard(node) else None


def is_cast(value: ir.Value) -> bool:
    """Whether a cast of the source makes a value."""
    return _source_cast(value) is not None


def origin_of(value: ir.Value) -> ir.Value:
    """Return the value that the source's own casts from float32 to float32 hand on."""
    while (node := _source_cast(value)) is not None and is_float32(node.inputs[0]) and is_float32(value):
        value = node.inputs[0]
    return value


def _merged(together: Iterable[Collection[ir.Node]]) -> list[list[ir.Node]]:
    """Return the groups, those that share a node as one."""
    merged: dict[ir.Node, list[ir.Node]] = {}
    for whole in together:
        groups = {id(group): group for node in whole if (group := merged.get(node)) is not None}
        joined = list(dict.fromkeys((*(node for group in groups.values() for node in group), *whole)))
        merged.update(dict.fromkeys(joined, joined))
    return list({id(group): group for group in merged.values()}.values())


def _connected(items: Iterable[int], links: Iterable[_Link]) -> dict[int, int]:
    """Return each of the items with a number that it shares with those it is connected to (union-find)."""
    parent = {item: item for item in items}
    if not parent:
        return {}

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for link in links:
        members = [item for item in link.items if item in parent]
        for first, second in itertools.pairwise(members):
            parent[root(first)] = root(second)
    return {item: root(item) for item in parent}


def _weighed(
    items: tuple[_Item, ...], links: tuple[_Link, ...], weights: Weights, reads: Reads | None = None
) -> Choices:
    """Weigh all choices, in whole numbers.

    A cost beyond that of a choice which is there anyway is never paid. So no number needs to be larger, and a cost that
    forbids does not blur the others.
    """
    low = [sum(map(weights.low, item.nodes)) if item.held is None else math.inf for item in items]
    high = [sum(map(weights.high, item.nodes)) for item in items]
    casts = [(weights.cast_to_low(link.value), weights.cast_to_high(link.value)) for link in links]
    felt = [
        [reads(link.value, items[reader].nodes) if reads else 0.0 for reader in link.tensor.readers] for link in links
    ]
    best = min(_plain_cost(costs, is_low, links, casts, felt) for costs, is_low in ((low, True), (high, False)))
    unit = 2.0 ** (math.frexp(best)[1] - _PRECISE) if 0 < best < math.inf else 1.0
    most = 2 << _PRECISE

    @functools.cache  # many nodes cost the same
    def whole(cost: float) -> int:
        return round(cost / unit) if cost / unit < most else most

    tensors = [
        link.tensor.at_cost(whole(to_low), whole(to_high))
        for link, (to_low, to_high) in zip(links, casts, strict=True)
        if link.is_open
    ]
    tensors += [
        Tensor(link.tensor.producer, link.tensor.made_low, (reader,), to_low=cost)
        for link, of_readers in zip(links, felt, strict=True)
        for reader, of_reader in zip(link.tensor.readers, of_readers, strict=True)
        if (cost := whole(of_reader))
    ]
    lows = [None if math.isinf(cost) else whole(cost) for cost in low]
    return Choices(CutProblem(lows, [whole(cost) for cost in high], tensors), unit, items, links)


def _plain_cost(
    costs: Sequence[float],
    is_low: bool,
    links: tuple[_Link, ...],
    casts: Sequence[tuple[float, float]],
    felt: Sequence[Sequence[float]],
) -> float:
    """Return what it costs to make all items low, or none."""
    total = sum(costs)
    for link, (to_low, to_high), of_readers in zip(links, casts, felt, strict=True):
        if link.is_open:
            tensor = link.tensor
            made_low = tensor.made_low if tensor.producer is None else is_low
            if made_low:
                total += to_high if tensor.read_high or (tensor.readers and not is_low) else 0
            else:
                total += to_low if tensor.read_low or (tensor.readers and is_low) else 0
                total += sum(of_readers) if is_low else 0
    return total
