"""Finds the whole numbers that make a sum of small tables least, exactly: by eliminating one unknown after the other.

A table gives a cost for every combination of the few unknowns that it is about. An unknown is eliminated by adding up
the tables about it and keeping, for every combination of its neighbours, its best number and the cost of that. In
programs most unknowns have few neighbours, so the tables stay small. Where they do not, an unknown with many neighbours
is set to what a local search gives it; so is one whose tables would be too large.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

__all__ = ["Table", "least"]

_MOST_CELLS = 1 << 20  # of a table
_SWEEPS = 20  # of the local search


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Costs.

    Attributes:
        scope: the unknowns that it is about, in ascending order.
        costs: one axis an unknown, in this order; infinite where a combination is impossible.
    """

    scope: tuple[int, ...]
    costs: np.ndarray


def least(unknowns: Iterable[int], numbers: range, tables: Sequence[Table]) -> dict[int, int]:
    """Return the number of each unknown, so that the sum of all tables is least.

    Args:
        unknowns: names of the unknowns.
        numbers: those that an unknown may be; 0 is among them, and all unknowns at 0 are possible.
        tables: the costs, with an axis of these numbers for each unknown.
    """
    return _Elimination(set(unknowns), numbers, tables).solved()


class _Elimination:
    def __init__(self, unknowns: set[int], numbers: range, tables: Sequence[Table]) -> None:
        self._unknowns, self._numbers = unknowns, numbers
        self._all = list(tables)
        self._about: dict[int, dict[int, Table]] = {unknown: {} for unknown in unknowns}
        self._next = 0
        self._searched: dict[int, int] | None = None  # indices by the local search, once one is needed
        for table in tables:
            self._put(table)

    def _put(self, table: Table) -> None:
        for unknown in table.scope:
            self._about[unknown][self._next] = table
        self._next += 1

    def _take(self, unknown: int) -> list[Table]:
        """Take the tables about an unknown out, and return them."""
        taken = self._about.pop(unknown)
        for number, table in taken.items():
            for other in table.scope:
                if other != unknown:
                    del self._about[other][number]
        return list(taken.values())

    def _neighbours(self, unknown: int) -> set[int]:
        return {other for table in self._about[unknown].values() for other in table.scope} - {unknown}

    def solved(self) -> dict[int, int]:
        index: dict[int, int] = {}
        steps: list[tuple[int, Callable[[Mapping[int, int]], int]]] = []
        queue = [(len(self._neighbours(unknown)), unknown) for unknown in self._unknowns]
        heapq.heapify(queue)
        while queue:
            degree, unknown = heapq.heappop(queue)
            if unknown not in self._about:
                continue
            neighbours = self._neighbours(unknown)
            if len(neighbours) != degree:  # it has changed since
                heapq.heappush(queue, (len(neighbours), unknown))
                continue
            if len(self._numbers) ** (degree + 1) > _MOST_CELLS:
                fixed = max(neighbours, key=lambda other: (len(self._neighbours(other)), -other))
                index[fixed] = self._local()[fixed]
                changed = self._fix(fixed, index[fixed])
                heapq.heappush(queue, (len(self._neighbours(unknown)), unknown))
            else:
                steps.append((unknown, self._eliminate(unknown)))
                changed = neighbours
            for other in changed:
                heapq.heappush(queue, (len(self._neighbours(other)), other))
        for unknown, best in reversed(steps):
            index[unknown] = best(index)
        return {unknown: self._numbers[at] for unknown, at in index.items()}

    def _eliminate(self, unknown: int) -> Callable[[Mapping[int, int]], int]:
        """Replace the tables about an unknown by one about its neighbours; return what its best number is."""
        joint = _sum(self._take(unknown), unknown, len(self._numbers))
        axis = joint.scope.index(unknown)
        scope = tuple(other for other in joint.scope if other != unknown)
        choices = joint.costs.argmin(axis=axis)
        if scope:
            self._put(Table(scope, joint.costs.min(axis=axis)))
        return lambda index: int(choices[tuple(index[other] for other in scope)])

    def _fix(self, unknown: int, at: int) -> set[int]:
        changed = self._neighbours(unknown)
        for table in self._take(unknown):
            scope = tuple(other for other in table.scope if other != unknown)
            if scope:
                self._put(Table(scope, table.costs.take(at, axis=table.scope.index(unknown))))
        return changed

    def _local(self) -> dict[int, int]:
        """Return what a local search finds: unknowns are improved one by one, from 0 on, while that helps."""
        if self._searched is None:
            about: dict[int, list[Table]] = {unknown: [] for unknown in self._unknowns}
            for table in self._all:
                for unknown in table.scope:
                    about[unknown].append(table)
            zero = self._numbers.index(0)
            self._searched = dict.fromkeys(sorted(self._unknowns), zero)
            for _ in range(_SWEEPS):
                improved = [self._improve(unknown, about[unknown]) for unknown in self._searched]
                if not any(improved):
                    break
        return self._searched

    def _improve(self, unknown: int, tables: Sequence[Table]) -> bool:
        assert self._searched is not None
        costs = np.zeros(len(self._numbers))
        for table in tables:
            at = tuple(slice(None) if other == unknown else self._searched[other] for other in table.scope)
            costs = costs + table.costs[at]
        before, best = self._searched[unknown], int(costs.argmin())
        if costs[best] < costs[before]:
            self._searched[unknown] = best
            return True
        return False


def _sum(tables: Sequence[Table], unknown: int, size: int) -> Table:
    """Return the sum of tables as one; without any, that of an unknown that costs nothing."""
    scope = tuple(sorted({other for table in tables for other in table.scope} | {unknown}))
    total = np.zeros((size,) * len(scope))
    for table in tables:
        shape = [size if other in table.scope else 1 for other in scope]
        total = total + table.costs.reshape(shape)
    return Table(scope, total)
