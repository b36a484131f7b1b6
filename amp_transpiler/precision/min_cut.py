"""Finds the cheapest choice between two precisions for many items at once, by an exact minimum cut. Numbers, no ONNX.

An item is low or high, at a cost each. A tensor between items costs a cast where a reader wants it in the other
precision: one for each direction, however many readers. As a cut, the source side is low and the sink side is high:

    item i           source -> i costs high[i], i -> sink costs low[i]
    cast to high     producer -> a -> each reader: paid once if the producer is low and any reader is high
    cast to low      each reader -> b -> producer: paid once if the producer is high and any reader is low

Both kinds of cast are submodular, so the minimum is exact, and the nodes that the source reaches in the residual graph
are the smallest low side of all minimum cuts: unique, whatever maximum flow was found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

__all__ = ["CutProblem", "Tensor", "minimum_cut"]

_SOURCE, _SINK = 0, 1  # places of the graph: all that is low for certain, all that is high for certain
_LARGEST = 1 << 61  # of all costs together, so that no sum leaves int64
_BITS = 30  # of a capacity: scipy computes in int32, and two opposite edges may add up in one residual
_FEW = 120  # edges: up to there paths are found in less time than scipy takes to make its matrices

_Edge: TypeAlias = tuple[int, int, int]  # from, to, capacity


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A value between items.

    Attributes:
        producer: the item that makes it in its own precision; None: it is made in a fixed one.
        made_low: whether a value of a fixed precision is made low.
        readers: items that read it in their own precision.
        read_low: whether a reader of a fixed precision wants it low.
        read_high: whether a reader of a fixed precision wants it high.
        to_low: cost of the cast to low.
        to_high: cost of the cast to high.
    """

    producer: int | None = None
    made_low: bool = False
    readers: tuple[int, ...] = ()
    read_low: bool = False
    read_high: bool = False
    to_low: int = 0
    to_high: int = 0

    def at_cost(self, to_low: int, to_high: int) -> Tensor:
        """Return the same value with costs of its casts."""
        return Tensor(self.producer, self.made_low, self.readers, self.read_low, self.read_high, to_low, to_high)


@dataclasses.dataclass(frozen=True, slots=True)
class CutProblem:
    """Items that are low or high, and the tensors between them.

    Attributes:
        low: item -> its cost if it is low; None: it cannot be.
        high: item -> its cost if it is high; None: it cannot be.
        tensors: the values between the items.
    """

    low: Sequence[int | None]
    high: Sequence[int | None]
    tensors: Sequence[Tensor] = ()

    def cost(self, low: Sequence[bool]) -> int:
        """Return the cost of a choice.

        Args:
            low: item -> whether it is low.

        Raises:
            ValueError: an item cannot be what the choice says.
        """
        total = 0
        for item, is_low in enumerate(low):
            item_cost = self.low[item] if is_low else self.high[item]
            if item_cost is None:
                raise ValueError(f"item {item} cannot be {'low' if is_low else 'high'}")
            total += item_cost
        for tensor in self.tensors:
            made_low = tensor.made_low if tensor.producer is None else low[tensor.producer]
            wants = {low[reader] for reader in tensor.readers}
            if made_low and (tensor.read_high or False in wants):
                total += tensor.to_high
            if not made_low and (tensor.read_low or True in wants):
                total += tensor.to_low
        return total


def minimum_cut(problem: CutProblem) -> list[bool]:
    """Return which items are low in the cheapest choice; of equally cheap ones, that with the fewest low items.

    Args:
        problem: the costs, none of them negative.

    Returns:
        item -> whether it is low.

    Raises:
        ValueError: an item can be neither low nor high, a cost is negative, or all costs together exceed 2**61.
    """
    _check(problem)
    places, count = _places(problem)
    network = _Network(count)
    for item, place in enumerate(places):
        if place not in (_SOURCE, _SINK):
            network.add_item(place, problem.low[item], problem.high[item])
    for tensor in problem.tensors:
        network.add_tensor(tensor, places)
    low = network.source_side()
    return [place in low for place in places]


def _check(problem: CutProblem) -> None:
    costs = [cost for side in (problem.low, problem.high) for cost in side if cost is not None]
    costs += [cost for tensor in problem.tensors for cost in (tensor.to_low, tensor.to_high)]
    if any(cost < 0 for cost in costs):
        raise ValueError(f"a cost is negative: {min(costs)}")
    if sum(costs) > _LARGEST:
        raise ValueError(f"the costs add up to {sum(costs)}, beyond {_LARGEST}: scale them down")
    for item, (low, high) in enumerate(zip(problem.low, problem.high, strict=True)):
        if low is None and high is None:
            raise ValueError(f"item {item} can be neither low nor high")


def _places(problem: CutProblem) -> tuple[list[int], int]:
    """Return the place of every item in the graph, and how many places there are.

    An item whose own costs outweigh every cast around it is decided already.
    """
    around = [0] * len(problem.low)
    for tensor in problem.tensors:
        most = max(tensor.to_low, tensor.to_high)
        for item in {*tensor.readers, *(() if tensor.producer is None else (tensor.producer,))}:
            around[item] += most
    places, count = [], 2
    for low, high, casts in zip(problem.low, problem.high, around, strict=True):
        if low is None or (high is not None and low >= high + casts):
            places.append(_SINK)
        elif high is None or high > low + casts:
            places.append(_SOURCE)
        else:
            places.append(count)
            count += 1
    return places, count


class _Network:
    """The graph whose minimum cut is wanted.

    Args:
        count: of its places so far; those inside casts are added.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._edges: list[_Edge] = []

    def add_item(self, place: int, low: int | None, high: int | None) -> None:
        """Charge an item for its precision: only the difference matters."""
        assert low is not None  # else it is decided
        assert high is not None
        if high > low:
            self._edges.append((_SOURCE, place, high - low))
        elif low > high:
            self._edges.append((place, _SINK, low - high))

    def add_tensor(self, tensor: Tensor, places: Sequence[int]) -> None:
        """Charge for the casts of a value."""
        fixed = _SOURCE if tensor.made_low else _SINK
        producer = fixed if tensor.producer is None else places[tensor.producer]
        readers = {places[reader]: None for reader in tensor.readers}
        if tensor.read_low:
            readers[_SOURCE] = None
        if tensor.read_high:
            readers[_SINK] = None
        readers.pop(producer, None)
        self._edges += self._cast(producer, readers, _SINK, tensor.to_high)
        to_low = self._cast(producer, readers, _SOURCE, tensor.to_low)
        self._edges += ((end, start, cost) for start, end, cost in to_low)

    def _cast(self, producer: int, readers: dict[int, None], wanted: int, cost: int) -> Iterator[_Edge]:
        """Yield the edges from a producer towards the readers that are on the wanted side."""
        if producer == wanted or not cost:
            return
        ends = [reader for reader in readers if reader not in (_SOURCE, _SINK)]
        if wanted in readers:  # it is needed whatever the others are
            ends = [wanted]
        if len(ends) == 1:
            yield producer, ends[0], cost
        elif ends:
            inner = self._count
            self._count += 1
            yield producer, inner, cost
            yield from ((inner, end, cost) for end in ends)  # no more can come in, so this is as good as no limit

    def source_side(self) -> set[int]:
        """Return the places that are low: those that the source reaches where a maximum flow leaves room."""
        edges = [edge for edge in self._edges if edge[0] != _SINK and edge[1] != _SOURCE and edge[0] != edge[1]]
        return _reached_by_paths(edges, self._count) if len(edges) <= _FEW else _reached_by_scipy(edges, self._count)


def _reached_by_paths(edges: list[_Edge], count: int) -> set[int]:
    """Return what the source reaches when no path to the sink has room left: shortest paths are filled one by one."""
    room: list[dict[int, int]] = [{} for _ in range(count)]
    for start, end, cost in edges:
        room[start][end] = room[start].get(end, 0) + cost
        room[end].setdefault(start, 0)
    while True:
        came = {_SOURCE: _SOURCE}  # place -> the one before it
        pending = [_SOURCE]
        for place in pending:  # it grows
            reached = [end for end, left in room[place].items() if left and end not in came]
            came.update(dict.fromkeys(reached, place))
            pending += reached
            if _SINK in came:
                break
        else:
            return set(came)
        end, path = _SINK, []
        while end != _SOURCE:
            path.append((came[end], end))
            end = came[end]
        flow = min(room[start][end] for start, end in path)
        for start, end in path:
            room[start][end] -= flow
            room[end][start] += flow


def _reached_by_scipy(edges: list[_Edge], count: int) -> set[int]:
    """Return the same for many edges."""
    from scipy.sparse import csgraph

    residual = _residual_graph(edges, count)
    reached = csgraph.breadth_first_order(residual, _SOURCE, directed=True, return_predecessors=False)
    return {_SOURCE, *reached.tolist()}


def _residual_graph(edges: list[_Edge], count: int) -> Any:
    """Return what a maximum flow leaves of every edge, as a sparse matrix.

    scipy takes capacities of int32. Larger ones are solved from their leading bits on: what flows there is taken off,
    and no more than the bits that were left out can flow through the cut that was found.
    """
    from scipy.sparse import csgraph, csr_array

    starts, ends, costs = zip(*edges, strict=True)
    at = np.array(starts, np.int32), np.array(ends, np.int32)  # older releases of scipy keep the indices' type
    residual = csr_array((np.array(costs, np.int64), at), shape=(count, count))
    limit = int(residual.data.max())
    while True:
        shift = max(0, limit.bit_length() - _BITS)
        capacity = residual.copy()
        capacity.data = (np.minimum(residual.data, limit) >> shift).astype(np.int32)
        flow = csgraph.maximum_flow(capacity, _SOURCE, _SINK).flow
        residual = csr_array(residual - flow.astype(np.int64) * (1 << shift))
        residual.eliminate_zeros()
        if not shift or not residual.nnz:
            return residual
        limit = min(int(residual.data.max()), len(edges) << shift)
