"""Finds the best choices between error and cost, from no limit to no error: for every bound on the error the cheapest.

Each point is an exact minimum cut, where an error has a price: Lagrange's multiplier of the bound on the sum of squared
errors. The higher the price, the fewer nodes are low that the outputs feel. Multipliers give the curve's convex hull;
between two neighbours on it the nodes with the largest errors are held in float32 one after the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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

_STEPS = 24  # of a bisection for a multiplier: enough to separate a millionth of its logarithm
_LOOKS = range(6, _STEPS, 2)  # at these steps the bisection checks whether the choice still changes at several places
_SAME = 1e-9  # as a share of a cost: choices that differ by less change at one place
_BRANCHES = 40  # the most cuts that are tried around a neighbour of the hull
_WORK = 12_000  # the most items that these cuts have together, so that large programs are not searched for long
_LEAST = 1e-9  # the least worth of a node, to divide by
_LEAST_WEIGHT = 1e-3  # the least weight of an output
_REWEIGHTED = 2  # how often a limit is asked for again, with less weight for outputs that have room
_BESIDE = 16  # so many nodes of a choice are tried in float32, and as many others are tried low
_PRICES = (1 / 2, 8.0)  # prices of the error that is allowed, as shares of all costs
_HOLDS = 6  # how often regions that do not fit next to a choice are held in float32
_FEW = 4096  # a constant is looked at if it has at most so many numbers
_FORMATS = (np.float16, ml_dtypes.bfloat16)
_RANGE = 30.0  # natural logarithm of the largest multiplier, as a share of all costs; the least is its inverse


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


@dataclasses.dataclass(frozen=True, slots=True)
class _Neighbour:
    """A choice on the hull, or just off it.

    Attributes:
        point: the choice; it keeps a limit.
        cheaper: the multiplier of the neighbour on the hull that does not keep it.
        dearer: that of the one that does.
        weights: what outputs count there.
    """

    point: Point
    cheaper: float
    dearer: float
    weights: _OutputWeights


@dataclasses.dataclass(frozen=True, slots=True)
class _Turn:
    """A multiplier at which another choice becomes the best, and the choices on both sides of it."""

    at: float
    before: Point
    after: Point


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
        self._key: dict[Point, _Key] = {}
        self._solved: dict[_Key, list[bool]] = {}
        self._chosen: dict[Point, Chosen] = {}
        self._casts: dict[Point, frozenset[str]] = {}  # values that become low by a cast
        self._items = [choices.nodes(item) for item in range(len(self._plain.problem.low))]
        self.names = [str(node.name) for nodes in self._items for node in nodes]
        self._kinds = {str(node.name): operator_name(node) for nodes in self._items for node in nodes}
        moving = [node for nodes in self._items for node in nodes if _rounds_nothing(node)]
        exact = [str(node.name) for node in moving]
        self._errors = OutputErrors.of(evidence, allowed, exact, _origins(moving))
        self.open_names = frozenset(self.names)
        self._place = {name: place for place, name in enumerate(self.names)}
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
        best = self._on_hull(limit, ())
        weights: dict[str, float] = {}
        several = len(self._errors.outputs) > 1
        for _ in range(self._budget(_REWEIGHTED * _STEPS) // _STEPS if several else 0):
            weights = self._weights_of(best.point, weights)
            neighbour = self._on_hull(limit, tuple(sorted(weights.items())))
            best = min(best, neighbour, key=lambda each: _rank(each.point))
        return self._branched(best, limit)

    def widened(self, point: Point, rooms: Mapping[str, float]) -> Point:
        """Return the cheapest choice that is found which has all low nodes of another one, and little more error.

        Multipliers see no more than the hull of all choices. A choice is often off it, with room for some nodes
        more. Around each of them the cut decides, so that none costs more casts than it saves.

        Args:
            point: the choice; it is returned if nothing can be added.
            rooms: output -> by how much the square of its predicted error may grow.
        """
        weights = tuple((output, 1.0 / max(room, _LEAST)) for output, room in sorted(rooms.items()))
        most = {output: error + max(0.0, rooms.get(output, 0.0)) for output, error in self.squares(point).items()}
        best, held = point, frozenset[str]()
        steps = _STEPS // 2
        for _ in range(max(1, self._budget(_HOLDS * steps) // steps)):
            below, above = -_RANGE, _RANGE
            for _ in range(steps):
                middle = (below + above) / 2
                point_there = self._at(self._multiplier(middle), held, best.low, weights)
                if all(error <= most[output] for output, error in self.squares(point_there).items()):
                    best, above = min(best, point_there, key=_rank), middle
                else:
                    below = middle
            beyond = self._at(self._multiplier(below), held, best.low, weights).low - best.low
            if not beyond:
                break
            held |= {*self._by_error(beyond)[: (len(beyond) + 1) // 2]}
        return best

    def beside(self, point: Point) -> list[Point]:
        """Return the neighbours of a choice: with one low node less, or one more, and what is best around it.

        Of what is low without a node, only the best part stays low. With a node more, others join it that save casts
        and add little error. In a large program not every node is tried.

        Args:
            point: the choice.
        """
        outside = self.open_names - point.low
        tried = self._budget(_BESIDE)
        fewer = [self._at(0.0, {*outside, name}) for name in self._by_error(point.low)[:tried]]
        prices = [price * (self.exact.cost or 1.0) for price in _PRICES]
        added = list(reversed(self._by_error(outside)))[:tried]
        more = [self._at(price, (), {*point.low, name}) for name in added for price in prices]
        return list(dict.fromkeys((*fewer, *more)))

    def of_kinds(self) -> dict[str, Point]:
        """Return for each kind of operator the choice in which just its nodes are low, as far as they may be."""
        return {kind: self.point(names) for kind, names in self._by_kind().items()}

    def without(self, kinds: Collection[str]) -> Point:
        """Return the cheapest choice in which some kinds of operators are float32."""
        by_kind = self._by_kind()
        return self._at(0.0, [name for kind in kinds for name in by_kind[kind]])

    def _by_kind(self) -> dict[str, list[str]]:
        names_of_kind: dict[str, list[str]] = {}
        for name in self.names:
            names_of_kind.setdefault(self._kinds[name], []).append(name)
        return names_of_kind

    def worthwhile(self, most: int, least: int = 0) -> list[Point] | None:
        """Return every choice in which no nodes are low that save less than their casts cost; None if they are many.

        The best part of some nodes holds that of any fewer of them, as is known of minimum cuts. So whatever is
        best of some nodes is found from `free` down, by leaving one node after the other out.

        Args:
            most: how many there may be.
            least: nodes that are low in each.
        """
        points, waiting = {self.free: None}, [self.free]
        while waiting:
            low = waiting.pop().low
            for name in sorted(low):
                fewer = self._at(0.0, self.open_names - low | {name})
                if fewer not in points and len(fewer.low) >= least:
                    points[fewer] = None
                    waiting.append(fewer)
            if len(points) > most:
                return None
        return [point for point in points if len(point.low) >= least]

    def point(self, low: Collection[str]) -> Point:
        """Return the choice in which just these nodes are low, of those that may be either."""
        return self._point(self._choices.weighed(_Settled(self._weights, low)).solve())

    def known(self) -> list[Point]:
        """Return all choices that were looked at, the cheapest first."""
        return sorted({*self._known.values(), self.exact}, key=_rank)

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
        for cache in (self._squares, self._priced, self._known, self._key, self._solved):
            cache.clear()

    def affordable(self, searches: int) -> int:
        """Return how many searches for a multiplier may be made, `searches` at most: fewer in a large program."""
        return self._budget(searches * _STEPS) // _STEPS

    def imagined(self, count: int) -> list[OutputErrors]:
        """Return errors as they might be, in agreement with all that was measured."""
        return [self._errors.imagined(seed, self._kinds) for seed in range(count)]

    def cheapest_under(self, errors: OutputErrors, limit: float) -> Point:
        """Return the cheapest choice that is found whose error is at most `limit`, if errors are these."""
        state_before = self._errors, self._squares, self._priced, self._known, self._key, self._solved
        self._errors, self._squares, self._priced = errors, {}, {}
        self._known, self._key, self._solved = {}, {}, {}
        try:
            return self.free if self.predicted(self.free) <= limit else self._on_hull(limit, ()).point
        finally:
            self._errors, self._squares, self._priced, self._known, self._key, self._solved = state_before

    def holds_under(self, point: Point, errors: OutputErrors) -> bool:
        """Whether a choice keeps the limits if errors are these."""
        return max(errors.squares(point.low, self._casts[point]).values(), default=0.0) <= 1.0

    def curve(self, low: Collection[str]) -> list[Point]:
        """Return points of the curve, from no limit to no error; each has less error and costs more than the last.

        Args:
            low: nodes of a choice that is among them, wherever it lies.
        """
        for step in range(2 * _STEPS + 1):
            self._at(self._multiplier(_RANGE * (step / _STEPS - 1)))
        chosen = self.point(low)
        points: list[Point] = []
        for point in sorted({*self._known.values(), self.exact}, key=lambda point: (point.error, point.cost)):
            if point != chosen and (not points or point.cost < points[-1].cost):
                points.append(point)
        return sorted((*points, chosen), key=lambda point: (-point.error, point.cost))

    def _multiplier(self, logarithm: float) -> float:
        return math.exp(logarithm) * (self.exact.cost or 1.0)

    def _on_hull(self, limit: float, weights: _OutputWeights) -> _Neighbour:
        """Return the best choice that multipliers give within a limit, and what lies beyond it."""
        below, above = -_RANGE, _RANGE
        turn: _Turn | None = None
        for step in range(_STEPS):
            if turn is None and step in _LOOKS:
                turn = self._turn(self._multiplier(below), self._multiplier(above), weights)
            middle = (below + above) / 2
            if self.predicted(self._beside(turn, self._multiplier(middle), weights)) <= limit:
                above = middle
            else:
                below = middle
        unlimited = self._at(self._multiplier(above), weights=weights)
        best = unlimited if self.predicted(unlimited) <= limit else self.exact
        at = _Neighbour(best, self._multiplier(below), self._multiplier(above), weights)
        return dataclasses.replace(at, point=min(best, self._filled(at, limit), key=_rank))

    def _turn(self, cheaper: float, dearer: float, weights: _OutputWeights) -> _Turn | None:
        """Return the only place between two multipliers where another choice becomes the best; None: maybe more turn.

        What a choice costs with the price of its errors is a line over the multiplier. Where the lines of the choices
        at both ends meet, no other choice lies lower if they are the best there, too; then none does in between.

        Args:
            cheaper: the multiplier at one end.
            dearer: that at the other.
            weights: what outputs count.
        """
        none: frozenset[str] = frozenset()
        keys = [(multiplier, none, none, weights) for multiplier in (cheaper, dearer)]
        if not all(key in self._solved for key in keys):
            return None
        before, after = (self._solved[key] for key in keys)
        ahead, behind = (_cost_of(weighed, after) - _cost_of(weighed, before) for weighed in map(self._weighed, keys))
        if not ahead > 0.0 > behind:
            return None
        key = cheaper + (dearer - cheaper) * ahead / (ahead - behind), none, none, weights
        weighed = self._weighed(key)
        costs = [_cost_of(weighed, low) for low in (before, after, weighed.solve())]
        if max(costs) - min(costs) > _SAME * max(costs):
            return None
        return _Turn(key[0], self._known[keys[0]], self._known[keys[1]])

    def _beside(self, turn: _Turn | None, multiplier: float, weights: _OutputWeights) -> Point:
        """Return the cheapest choice at a price of errors, where choices may change at only one place."""
        if turn is not None:
            none: frozenset[str] = frozenset()
            best = turn.before if multiplier < turn.at else turn.after
            self._known.setdefault((multiplier, none, none, weights), best)
        return self._at(multiplier, weights=weights)

    def _weights_of(self, point: Point, weights: Mapping[str, float]) -> dict[str, float]:
        """Return what outputs count next: less where the error is less than at the worst one."""
        squares = self.squares(point)
        worst = max(squares.values(), default=0.0) or 1.0
        scaled = {output: weights.get(output, 1.0) * error / worst for output, error in squares.items()}
        most = max(scaled.values(), default=0.0) or 1.0
        return {output: max(weight / most, _LEAST_WEIGHT) for output, weight in scaled.items()}

    def _filled(self, at: _Neighbour, limit: float) -> Point:
        """Return a choice between two neighbours of the hull: some of the nodes that differ are held in float32.

        Args:
            at: the one that keeps the limit.
            limit: of the predicted error.
        """
        errors = self._prices(at.weights).nodes
        differing = self._at(at.cheaper, weights=at.weights).low - at.point.low
        largest = sorted(differing, key=lambda name: (-errors.get(name, 0.0), name))
        few, many = 0, len(largest)
        while many - few > 1:  # holding `many` of them keeps the limit, holding `few` does not
            middle = (few + many) // 2
            if self.predicted(self._at(at.cheaper, largest[:middle], weights=at.weights)) <= limit:
                many = middle
            else:
                few = middle
        filled = self._at(at.cheaper, largest[:many], weights=at.weights)
        return filled if self.predicted(filled) <= limit else at.point

    def _branched(self, at: _Neighbour, limit: float) -> Point:
        """Return the best choice off the hull that is found by holding single nodes in one precision.

        Each is again a cut, with what is best around the node that is held.

        Args:
            at: the one that keeps the limit so far.
            limit: of the predicted error.
        """
        budget, best = max(4, self._budget(_BRANCHES)), at.point
        differing = self._at(at.cheaper, weights=at.weights).low - best.low
        for name in self._by_error(differing)[: budget // 2]:
            branch = self._at(at.cheaper, (name,), weights=at.weights)
            if self.predicted(branch) <= limit and _rank(branch) < _rank(best):
                best = branch
        none: frozenset[str] = frozenset()
        multiplier, held, held_low, weights = self._key.get(best, (at.dearer, none, none, at.weights))
        for name in reversed(self._by_error(self.open_names - best.low - held)[-budget // 2 :]):
            if name in best.low:
                continue
            branch = self._at(multiplier, held, (*held_low, name), weights)
            if self.predicted(branch) <= limit and _rank(branch) < _rank(best):
                best, held_low = branch, held_low | {name}
        return best

    def _budget(self, cuts: int) -> int:
        """Return how many cuts may be solved, `cuts` at most: fewer in a large program."""
        return min(cuts, _WORK // max(1, len(self._items)))

    def _by_error(self, names: Iterable[str]) -> list[str]:
        """Return names of nodes, those with the largest error for what they are worth first.

        Where several have the same, the last of the program come first: what belongs together stays together.
        """
        errors = self._prices().nodes
        return sorted(names, key=lambda name: (-errors.get(name, 0.0) / self._worth[name], -self._place[name]))

    def _at(
        self, multiplier: float, held: Iterable[str] = (), held_low: Iterable[str] = (), weights: _OutputWeights = ()
    ) -> Point:
        """Return the cheapest choice at a price of errors, with some nodes held in float32 and others kept low."""
        key = multiplier, frozenset(held), frozenset(held_low), weights
        if key not in self._known:
            self._solved[key] = self._weighed(key).solve()
            self._known[key] = self._point(self._solved[key])
            self._key.setdefault(self._known[key], key)
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
        self._chosen[point], self._casts[point], self._squares[point] = chosen, casts, squares
        return point


def _cost_of(weighed: Choices, low: Sequence[bool]) -> float:
    return weighed.unit * weighed.problem.cost(low)


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
