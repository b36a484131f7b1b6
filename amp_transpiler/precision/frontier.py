"""The curve of best choices between error and cost: one dial, from no limit to no error.

Each point is an exact minimum cut, where an error has a price: Lagrange's multiplier of the bound on the sum of squared
errors. The higher the price, the fewer nodes are low that the outputs feel. Multipliers give the curve's convex hull;
between two neighbours on it the nodes with the largest errors are held in float32 one after the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.precision.choices import Choices, Chosen, Reads, Weights
from amp_transpiler.precision.cost.prices import Prices
from amp_transpiler.precision.evidence import Evidence, read_key
from amp_transpiler.precision.objectives import WithErrors

__all__ = ["Frontier", "Point"]

_STEPS = 24  # of a search for a multiplier: enough to tell a millionth of its logarithm apart
_BRANCHES = 40  # cuts that are tried around a neighbour of the hull
_WORK = 12_000  # items that they may have together, so that large programs are not searched for long
_FAR_OFF = 3.0  # times the predicted error: more has another cause than what was not exact
_LEAST = 1e-9  # of what a node is worth, to divide by
_RANGE = 30.0  # natural logarithm of the largest multiplier, as a share of all costs; the least is its inverse


_Key: TypeAlias = tuple[float, frozenset[str], frozenset[str]]  # a multiplier, nodes that are held, nodes that are kept


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One choice. Two with the same low nodes are equal.

    Attributes:
        low: names of the nodes that are low, of those that may be.
        predicted: the error of the worst output as predicted, over the one that is allowed there.
        error: the error of the worst output as predicted, a fraction of its norm.
        cost: in the unit of the weights, without the price of errors.
        casts: how many are needed.
    """

    low: frozenset[str]
    predicted: float = dataclasses.field(compare=False)
    error: float = dataclasses.field(compare=False)
    cost: float = dataclasses.field(compare=False)
    casts: int = dataclasses.field(compare=False)


class Frontier:
    """The best choices of a program, for every bound on the error.

    Args:
        choices: what may be chosen.
        weights: what it costs, whatever its errors.
        evidence: the errors.
        allowed: output -> the relative error that is allowed there. Outputs that are not named may have any.

    Attributes:
        names, open_names: the nodes that may be either, in the order of execution and as a set.
        free: the cheapest choice of all.
        exact: float32 wherever there is a choice.
    """

    def __init__(self, choices: Choices, weights: Weights, evidence: Evidence, allowed: Mapping[str, float]) -> None:
        self._choices, self._weights = choices, weights
        self._plain = choices.weighed(weights)
        self._evidence = evidence
        self._found: dict[frozenset[str], float] = {}  # low nodes -> the square of an error beyond any prediction
        self._unexplained: dict[str, float] = {}
        self._node_errors = _shares(evidence.node_errors_by_output, allowed)
        self._cast_errors = _shares(evidence.cast_errors_by_output, allowed)
        places = _shares(evidence.read_errors_by_output, allowed)
        self._read_errors = {output: _by_value(found) for output, found in places.items()}
        self._sum()
        self._known: dict[_Key, Point] = {}
        self._key: dict[Point, _Key] = {}
        self._chosen: dict[Point, Chosen] = {}
        self._items = [choices.nodes(item) for item in range(len(self._plain.problem.low))]
        self.names = [str(node.name) for nodes in self._items for node in nodes]
        self.open_names = frozenset(self.names)
        self._worth = {
            str(node.name): max(weights.high(node) - weights.low(node), _LEAST)
            for nodes in self._items
            for node in nodes
        }
        self.exact = self._point([False] * len(self._plain.problem.low))
        self.free = self._at(0.0)

    def cheapest(self, limit: float) -> Point:
        """Return the cheapest choice that is found whose predicted error is at most `limit`; at 0 `exact`."""
        if limit <= 0.0:
            return self.exact
        if self.predicted(self.free) <= limit:
            return self.free
        below, above = -_RANGE, _RANGE
        for _ in range(_STEPS):
            middle = (below + above) / 2
            if self.predicted(self._at(self._multiplier(middle))) <= limit:
                above = middle
            else:
                below = middle
        found = self._at(self._multiplier(above))
        best = found if self.predicted(found) <= limit else self.exact
        cheaper = self._multiplier(below)
        best = min(best, self._filled(best, cheaper, limit), key=_rank)
        return self._branched(best, cheaper, self._multiplier(above), limit)

    def point(self, low: Collection[str]) -> Point:
        """Return the choice in which just these nodes are low, of those that may be either."""
        return self._point(self._choices.weighed(_Settled(self._weights, low)).solve())

    def known(self) -> list[Point]:
        """Return all choices that were looked at, the cheapest first."""
        return sorted({*self._known.values(), self.exact}, key=_rank)

    def overlap(self, one: Point, other: Point) -> float:
        """Return the share of two choices' predicted errors that comes from nodes which both have low."""
        return self._error_of(one.low & other.low) / (self._error_of(one.low | other.low) or 1.0)

    def predicted(self, point: Point) -> float:
        """Return the predicted error of a choice over the one that is allowed, as far as it is known by now."""
        extra = math.fsum(self._unexplained.get(name, 0.0) for name in point.low)
        return math.sqrt(point.predicted**2 + extra)

    def learn(self, point: Point, measured: float) -> None:
        """Note the error of a choice. If it is far more than predicted, the low nodes share what is not explained.

        Roundings that cancel as long as both of two readers take part make such errors, for one. What a smaller choice
        explains is taken off larger ones first.

        Args:
            point: the choice.
            measured: its error over the one that is allowed.
        """
        if not math.isfinite(measured) or measured <= _FAR_OFF * point.predicted or not point.low:
            return
        self._found[point.low] = measured**2 - point.predicted**2
        self._unexplained.clear()
        self._known.clear()
        self._key.clear()
        for low, square in sorted(self._found.items(), key=lambda item: (len(item[0]), sorted(item[0]))):
            rest = square - math.fsum(self._unexplained.get(name, 0.0) for name in low)
            if rest > square / 2:
                for name in low:
                    self._unexplained[name] = self._unexplained.get(name, 0.0) + rest / len(low)
        self._sum()

    def curve(self, low: Collection[str]) -> list[Point]:
        """Return points of the curve, from no limit to no error; each has less error and costs more than the last.

        Args:
            low: nodes of a choice that is among them, wherever it lies.
        """
        for step in range(2 * _STEPS + 1):
            self._at(self._multiplier(_RANGE * (step / _STEPS - 1)))
        own = self.point(low)
        kept: list[Point] = []
        for point in sorted({*self._known.values(), self.exact}, key=lambda point: (point.error, point.cost)):
            if point != own and (not kept or point.cost < kept[-1].cost):
                kept.append(point)
        return sorted((*kept, own), key=lambda point: (-point.error, point.cost))

    def seconds(self, point: Point, prices: Prices) -> float:
        """Return the predicted time of a choice.

        Args:
            point: the choice.
            prices: of the program that it is made in.
        """
        chosen = self._chosen[point]
        fixed = sum(seconds for node, seconds in prices.high.items() if node.name not in self.open_names)
        own = sum(
            (prices.low if node in chosen.low else prices.high).get(node, 0.0)
            for nodes in self._items
            for node in nodes
        )
        return fixed + own + sum(prices.cast(cast.value) for cast in chosen.casts)

    def _sum(self) -> None:
        """Add the errors of all outputs up, which is no less than the worst one."""
        self._nodes = _summed([*self._node_errors.values(), self._unexplained])
        self._casts = _summed(self._cast_errors.values())
        self._reads: dict[str, dict[str, float]] = {}
        for value, places in _by_value(_summed(map(_flat, self._read_errors.values()))).items():
            total = math.fsum(places.values())
            if value in self._casts and 0.0 < total < math.inf and math.isfinite(self._casts[value]):
                # They add up to the error of the cast, in which what cancels between readers is gone.
                scale = self._casts[value] / total
                self._reads[value] = {node: scale * error for node, error in places.items()}
        self._shared = {value: error for value, error in self._casts.items() if value not in self._reads}

    def _multiplier(self, logarithm: float) -> float:
        return math.exp(logarithm) * (self.exact.cost or 1.0)

    def _filled(self, best: Point, cheaper: float, limit: float) -> Point:
        """Return a choice between two neighbours of the hull: some of the nodes that differ are held in float32.

        Args:
            best: the one that keeps the limit.
            cheaper: the multiplier of the other one.
            limit: of the predicted error.
        """
        differing = self._at(cheaper).low - best.low
        largest = sorted(differing, key=lambda name: (-self._nodes.get(name, 0.0), name))
        few, many = 0, len(largest)
        while many - few > 1:  # holding `many` of them keeps the limit, holding `few` does not
            middle = (few + many) // 2
            if self.predicted(self._at(cheaper, largest[:middle])) <= limit:
                many = middle
            else:
                few = middle
        found = self._at(cheaper, largest[:many])
        return found if self.predicted(found) <= limit else best

    def _branched(self, best: Point, cheaper: float, dearer: float, limit: float) -> Point:
        """Return the best choice beside the hull that is found by holding single nodes in one precision.

        Each is again a cut, with what is best around the node that is held.

        Args:
            best: the one that keeps the limit so far.
            cheaper: the multiplier of the neighbour on the hull that does not keep it.
            dearer: that of the one that does.
            limit: of the predicted error.
        """
        budget = max(4, min(_BRANCHES, _WORK // max(1, len(self._items))))
        differing = self._at(cheaper).low - best.low
        for name in self._by_error(differing)[: budget // 2]:
            found = self._at(cheaper, (name,))
            if self.predicted(found) <= limit and _rank(found) < _rank(best):
                best = found
        multiplier, held, kept = self._key.get(best, (dearer, frozenset(), frozenset()))
        for name in reversed(self._by_error(self.open_names - best.low - held)[-budget // 2 :]):
            if name in best.low:
                continue
            found = self._at(multiplier, held, (*kept, name))
            if self.predicted(found) <= limit and _rank(found) < _rank(best):
                best, kept = found, kept | {name}
        return best

    def _by_error(self, names: Iterable[str]) -> list[str]:
        """Return names of nodes, those with the largest error for what they are worth first."""
        return sorted(names, key=lambda name: (-self._nodes.get(name, 0.0) / self._worth[name], name))

    def _error_of(self, names: Iterable[str]) -> float:
        return math.fsum(error for name in names if math.isfinite(error := self._nodes.get(name, 0.0)))

    def _at(self, multiplier: float, held: Iterable[str] = (), kept: Iterable[str] = ()) -> Point:
        """Return the cheapest choice at a price of errors, with some nodes held in float32 and others kept low."""
        key = multiplier, frozenset(held), frozenset(kept)
        if key not in self._known:
            priced = WithErrors(self._weights, self._nodes, self._shared, multiplier)
            # More than anything else costs, yet finite: infinite costs on both sides would leave numbers no unit.
            much = 2.0 * (self.exact.cost + multiplier * self._error_of(self.open_names))
            self._known[key] = self._point(
                self._choices.weighed(_Holding(priced, key[1], key[2], much), self._read_at(multiplier)).solve()
            )
            self._key.setdefault(self._known[key], key)
        return self._known[key]

    def _read_at(self, multiplier: float) -> Reads:
        """Return the price of the errors where nodes read a value low."""

        def price(value: ir.Value, nodes: Sequence[ir.Node]) -> float:
            places = self._reads.get(str(value.name))
            if places is None:
                return 0.0
            # A port has no node of its own: it takes the whole.
            found = [places.get(str(node.name), 0.0) for node in nodes] or places.values()
            return multiplier * math.fsum(found)

        return price

    def _cast_error(self, output: str, value: str, low: Collection[str]) -> float:
        """Return what a cast adds to an output: that of the nodes which read it low, unless all do."""
        places = self._read_errors.get(output, {}).get(value, {})
        felt = [error for node, error in places.items() if node in low]
        if not felt or len(felt) == len(places):
            return self._cast_errors.get(output, {}).get(value, 0.0)
        return math.fsum(felt)

    def _point(self, low: list[bool]) -> Point:
        chosen = self._plain.decide(low)
        nodes = frozenset(str(node.name) for node in chosen.low)
        casts = frozenset(str(cast.value.name) for cast in chosen.casts if cast.target == "low")
        squares = (
            _total(self._node_errors[name], nodes) + math.fsum(self._cast_error(name, value, nodes) for value in casts)
            for name in self._node_errors
        )
        point = Point(
            nodes,
            predicted=math.sqrt(max(squares, default=0.0)),
            error=self._evidence.predicted(nodes, casts),
            cost=self._plain.problem.cost(low) * self._plain.unit,
            casts=len(chosen.casts),
        )
        self._chosen[point] = chosen
        return point


@dataclasses.dataclass(frozen=True, slots=True)
class _Holding:
    """Weights that hold some nodes in float32, and keep others low."""

    weights: Weights
    held: Collection[str]
    kept: Collection[str]
    much: float

    def low(self, node: ir.Node) -> float:
        return math.inf if node.name in self.held else self.weights.low(node)

    def high(self, node: ir.Node) -> float:
        return self.much + self.weights.high(node) if node.name in self.kept else self.weights.high(node)

    def cast_to_low(self, value: ir.Value) -> float:
        return self.weights.cast_to_low(value)

    def cast_to_high(self, value: ir.Value) -> float:
        return self.weights.cast_to_high(value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Settled:
    """Weights that leave no choice but where control flow passes values on."""

    weights: Weights
    names: Collection[str]

    def low(self, node: ir.Node) -> float:
        return self.weights.low(node) if node.name in self.names else math.inf

    def high(self, node: ir.Node) -> float:
        return math.inf if node.name in self.names else self.weights.high(node)

    def cast_to_low(self, value: ir.Value) -> float:
        return self.weights.cast_to_low(value)

    def cast_to_high(self, value: ir.Value) -> float:
        return self.weights.cast_to_high(value)


def _shares(errors: Mapping[str, Mapping[str, float]], allowed: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return squared errors as shares of those that are allowed, of the outputs that have a limit."""
    return {
        output: {name: _share(error, allowed[output]) for name, error in found.items()}
        for output, found in errors.items()
        if math.isfinite(allowed.get(output, math.inf))
    }


def _share(error: float, allowed: float) -> float:
    if error == 0.0:
        return 0.0
    return error / allowed**2 if allowed > 0.0 else math.inf


def _summed(errors: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for of_output in errors:
        for name, error in of_output.items():
            found[name] = found.get(name, 0.0) + error
    return found


def _by_value(places: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return errors of places where values are read (`read_key`): value -> node -> error."""
    found: dict[str, dict[str, float]] = {}
    for place, error in places.items():
        value, node = place.split("\n", 1)
        found.setdefault(value, {})[node] = error
    return found


def _flat(by_value: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {read_key(value, node): error for value, found in by_value.items() for node, error in found.items()}


def _total(errors: Mapping[str, float], names: Iterable[str]) -> float:
    return math.fsum(errors.get(name, 0.0) for name in names)


def _rank(point: Point) -> tuple[float, float]:
    return point.cost, point.predicted
