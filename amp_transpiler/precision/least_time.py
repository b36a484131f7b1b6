"""Minimises the predicted time of a run, in which the host asks for kernels ahead of the device that computes them.

A kernel begins when it was asked for and the one before it has ended. So the time of a run is the longest of many: for
each place, the calls of the host up to there and the kernels' seconds from there on. Every one of these is a sum, as a
minimum cut needs; the longest of them is none. It is approached from both sides: the choice that is best for one place
shows the place that is longest for it, which counts the next time, too. What is best by the true time is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.cost.node_prices import Prices
from amp_transpiler.cost.prediction import Kernel
from amp_transpiler.precision.cut_network import Choices, Weights, is_cast
from amp_transpiler.precision.cut_weights import TimeWeights

__all__ = ["LEAST_GAIN", "fastest"]

_ROUNDS = 8  # choices that are tried for places
LEAST_GAIN = 1e-4
"""The part of the time that a choice must save to be preferred to one with fewer casts."""


def fastest(
    choices: Choices,
    priced: Prices,
    with_casts: Sequence[Collection[ir.Node]],
    fixed: Collection[ir.Node],
    others: Sequence[Weights] = (),
) -> Weights:
    """Return weights under which the cheapest choice is the fastest one that is found.

    Args:
        choices: what may be chosen.
        priced: kernels and casts.
        with_casts: see `TimeWeights`.
        fixed: nodes without a choice that are low.
        others: weights whose choice is looked at, too.
    """
    run = _Run(choices, priced, TimeWeights(priced, with_casts), frozenset(fixed))
    first: list[Weights] = [_Float32(), run.plain, *others]
    trials = [run.tried(weights) for weights in first]
    places = [min(trials, key=lambda trial: trial.seconds).place]
    for _ in range(_ROUNDS):
        trials.append(run.tried(TimeWeights(_Places(priced, run.order, places), with_casts)))
        if trials[-1].place in places[-2:]:  # nothing new, or it swings between two, which both count by now
            break
        places.append(trials[-1].place)
    least = min(trial.seconds for trial in trials)
    return min(
        (trial for trial in trials if trial.seconds <= (1 + LEAST_GAIN) * least),
        key=lambda trial: (trial.casts, trial.low, trial.seconds),
    ).weights


@dataclasses.dataclass(frozen=True, slots=True)
class _Tried:
    """A choice.

    Attributes:
        weights: that it is best for.
        seconds: its time.
        place: the number of the node from which on the device's seconds count.
        casts, low: how many there are.
    """

    weights: Weights
    seconds: float
    place: int
    casts: int
    low: int


class _Run:
    """One run of a program, whatever is chosen.

    Attributes:
        plain: the weights by which every kernel counts by itself.
        order: node -> its number in the order of execution.
    """

    def __init__(self, choices: Choices, priced: Prices, plain: TimeWeights, fixed: frozenset[ir.Node]) -> None:
        self._choices, self._priced, self._fixed = choices, priced, fixed
        self.plain = plain
        self.order = {node: number for number, node in enumerate(priced.costs_high)}

    def tried(self, weights: Weights) -> _Tried:
        """Return the best choice by some weights, with its true time."""
        chosen = self._choices.decide(self._choices.weighed(weights).solve())
        low = chosen.low | self._fixed
        kernels: list[list[Kernel]] = [[] for _ in range(len(self.order) + 1)]
        for node, number in self.order.items():
            kernels[number + 1].append(self._priced.kernel(node, is_low=node in low))
        casts = [cast for cast in chosen.casts if not self.plain.takes_in(cast.value, cast.target)]
        counted: set[ir.Value] = set()
        for cast in casts:
            if is_cast(cast.value) and cast.value not in counted:  # the source's own, which counts as a node
                counted.add(cast.value)
                continue
            kernels[_place(cast.value, self.order) + 1].append(self._priced.cast_kernel(cast.value))
        seconds, place = _longest(kernels, self._priced.device.launch)
        return _Tried(weights, seconds, place, len(casts), len(low))


def _longest(kernels: Sequence[Sequence[Kernel]], launch: float) -> tuple[float, int]:
    """Return the time of a run, and from which node on the device's seconds count in it.

    Args:
        kernels: of the casts of inputs; then, node by node, its own and those of the casts of its results.
        launch: seconds of a call.
    """
    asked = done = 0.0
    place = -1
    for number, node_kernels in enumerate(kernels):
        for kernel in node_kernels:
            asked += kernel.calls * launch
            if kernel.calls and asked >= done:  # the device waits for the host
                done, place = asked, number - 1
            done += kernel.seconds
            asked = max(asked, done) if kernel.waits else asked
    return done, place


def _place(value: ir.Value, order: Mapping[ir.Node, int]) -> int:
    """Return the number of the node that makes a value; -1 for an input."""
    producer = value.producer()
    return -1 if producer is None else order.get(producer, -1)


class _Places:
    """Prices by which the host's calls count up to some places, and the device's seconds from there on, on average."""

    def __init__(self, priced: Prices, order: Mapping[ir.Node, int], places: Collection[int]) -> None:
        self._priced, self._order = priced, order
        self._launch = priced.device.launch
        numbers = range(-1, len(order))
        self._calls = [sum(place >= number for place in places) / len(places) for number in numbers]
        self._seconds = [sum(place <= number for place in places) / len(places) for number in numbers]
        self.low = {node: self._of(priced.kernel(node, is_low=True), number) for node, number in order.items()}
        self.high = {node: self._of(priced.kernel(node, is_low=False), number) for node, number in order.items()}

    def cast(self, value: ir.Value) -> float:
        """Return what a cast adds."""
        return self._of(self._priced.cast_kernel(value), _place(value, self._order))

    def _of(self, kernel: Kernel, number: int) -> float:
        return self._calls[number + 1] * kernel.calls * self._launch + self._seconds[number + 1] * kernel.seconds


class _Float32:
    """Weights by which float32 is best wherever there is a choice."""

    def low(self, node: ir.Node) -> float:  # noqa: ARG002 - part of the interface
        return 1.0

    def high(self, node: ir.Node) -> float:  # noqa: ARG002
        return 0.0

    def cast_to_low(self, value: ir.Value) -> float:  # noqa: ARG002
        return 0.0

    def cast_to_high(self, value: ir.Value) -> float:  # noqa: ARG002
        return 0.0
