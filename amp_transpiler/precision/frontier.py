"""Finds the best choices between error and cost, from no limit to no error: for every bound on the error the cheapest.

Each point is an exact minimum cut, where an error has a price: Lagrange's multiplier of the bound on the sum of squared
errors. The higher the price, the fewer nodes are low that the outputs feel. Of the choices that multipliers give, two
neighbours lie on both sides of a bound: the search for them takes the price at which two choices cost the same, and
replaces one of the two by what is best there, until nothing is better (Handler and Zang 1980, "LARAC" in routing).
Between the neighbours lie choices that no multiplier gives: there nodes with the largest errors are held in float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.ops.kinds import EXACT, MOVEMENT
from amp_transpiler.ops.names import operator_name
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.precision.cut_network import Choices, Chosen, Reads, Weights
from amp_transpiler.precision.cut_weights import WithErrors
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.output_errors import OutputErrors, PricedErrors

__all__ = ["Frontier", "Point"]

_LEAST = 1e-9  # the least room of an output, to divide by
_HOLDS = 6  # how often nodes that do not fit next to a choice are held in float32
_FEW = 4096  # a constant is looked at if it has at most so many numbers
_FORMATS = (np.float16, ml_dtypes.bfloat16)
_CURVE = np.exp(np.linspace(-30.0, 30.0, 49))  # multipliers of the curve, as shares of all costs: all that change it


_OutputWeights: TypeAlias = tuple[tuple[str, float], ...]  # output -> what its error counts, if not all count alike
# A multiplier, nodes that are held, nodes that are kept, and what outputs count.
_Key: TypeAlias = tuple[float, frozenset[str], frozenset[str], _OutputWeights]


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One choice. Two with the same low nodes are equal.

    Attributes:
        low: names of the nodes that are low, of those that may be.
        predicted: the error of the worst output, as predicted when the choice was looked at, over the one that is
            allowed there.
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
        self._squares: dict[Point, dict[str, float]] = {}
        self._priced: dict[_OutputWeights, PricedErrors] = {}
        self._known: dict[_Key, Point] = {}
        self._casts: dict[Point, frozenset[str]] = {}  # values that become low by a cast
        self._items = [choices.nodes(item) for item in range(len(self._plain.problem.low))]
        self.names = [str(node.name) for nodes in self._items for node in nodes]
        moving = [node for nodes in self._items for node in nodes if _rounds_nothing(node)]
        exact = [str(node.name) for node in moving]
        self._errors = OutputErrors.of(evidence, allowed, exact, _origins(moving))
        self.open_names = frozenset(self.names)
        self.exact = self._point([False] * len(self._plain.problem.low))
        self.free = self._at(0.0)

    def cheapest(self, limit: float) -> Point:
        """Return the cheapest choice that is found whose predicted error is at most `limit`; at 0 `exact`."""
        if limit <= 0.0:
            return self.exact
        return self._within(lambda point: self.predicted(point) <= limit, self.exact)

    def widened(self, point: Point, rooms: Mapping[str, float], held: frozenset[str] = frozenset()) -> Point:
        """Return the cheapest choice that is found which has all low nodes of another one, and little more error.

        Around the nodes that are added the cut decides, so that none costs more casts than it saves.

        Args:
            point: the choice; it is returned if nothing can be added.
            rooms: output -> by how much the square of its predicted error may grow.
            held: nodes that stay float32.
        """
        weights = tuple((output, 1.0 / max(room, _LEAST)) for output, room in sorted(rooms.items()))
        most = {output: error + max(0.0, rooms.get(output, 0.0)) for output, error in self.squares(point).items()}

        def holds(other: Point) -> bool:
            return all(error <= most[output] for output, error in self.squares(other).items())

        return self._within(holds, point, point.low, weights, held)

    def extended(self, point: Point, names: Iterable[str]) -> Point:
        """Return the cheapest choice with all low nodes of another one, in which only named ones may be low besides."""
        return self._at(0.0, self.open_names - point.low.union(names), point.low)

    def point(self, low: Collection[str]) -> Point:
        """Return the choice in which just these nodes are low, of those that may be either."""
        return self._point(self._choices.weighed(_Settled(self._weights, low)).solve())

    def predicted(self, point: Point) -> float:
        """Return the predicted error of a choice over the one that is allowed, as far as it is known by now."""
        return math.sqrt(max(self.squares(point).values(), default=0.0))

    def squares(self, point: Point) -> dict[str, float]:
        """Return the square of the predicted error of every output, over the one that is allowed."""
        if point not in self._squares:
            self._squares[point] = self._errors.squares(point.low, self._casts[point])
        return self._squares[point]

    def learn(self, point: Point, errors: Mapping[str, float]) -> None:
        """Note the errors of a choice. Those that were predicted for its nodes and casts are corrected by them.

        Args:
            point: the choice.
            errors: output -> its error over the one that is allowed.
        """
        if not point.low or not all(map(math.isfinite, errors.values())):
            return  # of what overflows nothing can be divided among nodes
        self._errors.learn(point.low, self._casts[point], {output: error**2 for output, error in errors.items()})
        for cache in (self._squares, self._priced, self._known):
            cache.clear()

    def curve(self, low: Collection[str]) -> list[Point]:
        """Return points of the curve, from no limit to no error; each has less error and costs more than the last.

        Args:
            low: nodes of a choice that is among them, wherever it lies.
        """
        for multiplier in _CURVE:
            self._at(float(multiplier) * (self.exact.cost or 1.0))
        chosen = self.point(low)
        points: list[Point] = []
        for point in sorted({*self._known.values(), self.exact}, key=lambda point: (point.error, point.cost)):
            if point != chosen and (not points or point.cost < points[-1].cost):
                points.append(point)
        return sorted((*points, chosen), key=lambda point: (-point.error, point.cost))

    def _within(
        self,
        holds: Callable[[Point], bool],
        best: Point,
        held_low: frozenset[str] = frozenset(),
        weights: _OutputWeights = (),
        held: frozenset[str] = frozenset(),
    ) -> Point:
        """Return the cheapest choice that is found which keeps a bound.

        Prices lead to the neighbours of the bound on the hull. Of the nodes that are low in the one beyond it, and not
        in the best choice so far, the fewest of the largest errors are held in float32; then prices may lead on.

        Args:
            holds: whether a choice keeps the bound.
            best: a choice that does.
            held_low: nodes that stay low.
            weights: what outputs count.
            held: nodes that stay float32.
        """
        errors = self._prices(weights).nodes
        for _ in range(_HOLDS):
            multiplier, best = self._neighbours(holds, best, held, held_low, weights)
            beyond = self._at(multiplier, held, held_low, weights).low - best.low
            if not beyond:
                break
            largest = sorted(beyond, key=lambda name: (-errors.get(name, 0.0), name))
            few, many = 0, len(largest)
            while many - few > 1:  # holding `many` of them keeps the bound, holding `few` does not
                middle = (few + many) // 2
                if holds(self._at(multiplier, held | {*largest[:middle]}, held_low, weights)):
                    many = middle
                else:
                    few = middle
            held |= {*largest[:many]}
            filled = self._at(multiplier, held, held_low, weights)
            best = min(best, filled, key=_rank) if holds(filled) else best
        return best

    def _neighbours(
        self,
        holds: Callable[[Point], bool],
        dear: Point,
        held: frozenset[str],
        held_low: frozenset[str],
        weights: _OutputWeights,
    ) -> tuple[float, Point]:
        """Return the neighbours of a bound on the hull: the price of the one beyond it, and the one that keeps it.

        Args:
            holds: whether a choice keeps the bound.
            dear: a choice that does.
            held: nodes that stay float32.
            held_low: nodes that stay low.
            weights: what outputs count.
        """
        price, cheap = 0.0, self._at(0.0, held, held_low, weights)
        if holds(cheap):
            return price, min(cheap, dear, key=_rank)
        while (between_both := self._price_between(cheap, dear, weights)) is not None:
            between = self._at(between_both, held, held_low, weights)
            cost, error = between.cost, self._error(between, weights)
            if holds(between) and (cost, error) < (dear.cost, self._error(dear, weights)):
                dear = between
            elif not holds(between) and (error, cost) < (self._error(cheap, weights), cheap.cost):
                price, cheap = between_both, between
            else:  # it is one of both, or no better
                break
        return price, dear

    def _price_between(self, cheap: Point, dear: Point, weights: _OutputWeights) -> float | None:
        """Return the multiplier at which two choices cost the same with their errors; None if there is none."""
        saved = self._error(cheap, weights) - self._error(dear, weights)
        return (dear.cost - cheap.cost) / saved if saved > 0.0 and dear.cost > cheap.cost else None

    def _error(self, point: Point, weights: _OutputWeights) -> float:
        """Return the error of a choice as the cut counts it."""
        return self._prices(weights).of_choice(point.low, self._casts[point])

    def _at(
        self, multiplier: float, held: Iterable[str] = (), held_low: Iterable[str] = (), weights: _OutputWeights = ()
    ) -> Point:
        """Return the cheapest choice at a price of errors, with some nodes held in float32 and others kept low."""
        key = multiplier, frozenset(held), frozenset(held_low), weights
        if key not in self._known:
            self._known[key] = self._point(self._weighed(key).solve())
        return self._known[key]

    def _weighed(self, key: _Key) -> Choices:
        """Return the choices with a price on errors."""
        multiplier, held, held_low, weights = key
        errors = self._prices(weights)
        priced = WithErrors(self._weights, errors.nodes, errors.shared, multiplier)
        # More than anything else costs, yet finite: infinite costs on both sides would leave numbers no unit.
        much = 2.0 * (self.exact.cost + multiplier * errors.of_nodes(self.open_names))
        reads: Reads = lambda value, nodes: multiplier * errors.of_reads(value, nodes)  # noqa: E731
        return self._choices.weighed(_Holding(priced, held, held_low, much), reads)

    def _prices(self, weights: _OutputWeights = ()) -> PricedErrors:
        if weights not in self._priced:
            self._priced[weights] = self._errors.priced(dict(weights))
        return self._priced[weights]

    def _cost(self, chosen: Chosen) -> float:
        """Return the cost of a choice. That of a cut caps what its best choice never pays."""
        weights = self._weights
        nodes = (node for nodes in self._items for node in nodes)
        own_costs = (weights.low(node) if node in chosen.low else weights.high(node) for node in nodes)
        casts = (
            (weights.cast_to_low if cast.target == "low" else weights.cast_to_high)(cast.value) for cast in chosen.casts
        )
        return math.fsum((*own_costs, *casts))

    def _point(self, low: list[bool]) -> Point:
        chosen = self._plain.decide(low)
        nodes = frozenset(str(node.name) for node in chosen.low)
        casts = frozenset(str(cast.value.name) for cast in chosen.casts if cast.target == "low")
        squares = self._errors.squares(nodes, casts)
        point = Point(
            nodes,
            predicted=math.sqrt(max(squares.values(), default=0.0)),
            error=self._evidence.predicted(nodes, casts),
            cost=self._cost(chosen),
            casts=len(chosen.casts),
        )
        self._casts[point], self._squares[point] = casts, squares
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


def _rounds_nothing(node: ir.Node) -> bool:
    """Whether an operator only moves numbers, or also compares them with constants that low formats hold."""
    if operator_name(node) in MOVEMENT or operator_name(node) not in EXACT:
        return operator_name(node) in MOVEMENT
    constants = (constant_of(value) for value in node.inputs if value is not None and is_float32(value))
    return all(tensor is None or _is_held(tensor) for tensor in constants)


def _is_held(tensor: ir.TensorProtocol) -> bool:
    """Whether rounding changes nothing in a few constants."""
    if tensor.size > _FEW:
        return False
    numbers = tensor.numpy()
    with np.errstate(over="ignore"):
        return all(np.array_equal(numbers, numbers.astype(low).astype(numbers.dtype)) for low in _FORMATS)


def _origins(moving: Iterable[ir.Node]) -> dict[str, str]:
    """Return value -> the value that its numbers come from, through operators that only move them."""
    origins: dict[str, str] = {}
    for node in moving:
        read = [
            value for value in node.inputs if value is not None and is_float32(value) and constant_of(value) is None
        ]
        if len(read) == 1:
            origin = origins.get(str(read[0].name), str(read[0].name))
            origins |= {str(value.name): origin for value in node.outputs if is_float32(value)}
    return origins


def _rank(point: Point) -> tuple[float, float]:
    return point.cost, point.predicted
