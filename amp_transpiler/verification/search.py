"""The best conversion that keeps the limits: one that is not good enough is turned towards float32, by what data say.

The evidence of runs predicts what each node adds to the error; `precision/frontier.py` gives the cheapest choice for
every bound on that, and `dial.py` measures a few of them, emulated, until one keeps the limits. Float32 throughout is
the last of them, so that what is reachable is never refused.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from amp_transpiler.conversion import Conversion, convert
from amp_transpiler.graph.program import Program
from amp_transpiler.precision.assign import open_choices
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.frontier import Frontier, Point
from amp_transpiler.precision.limits import Limits
from amp_transpiler.precision.policy import Policy, Settled
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.report import OutputComparison
from amp_transpiler.report.wording import percent
from amp_transpiler.verification.accuracy import Reference
from amp_transpiler.verification.dial import Trial, turn
from amp_transpiler.verification.excess import excess, excess_of_metric
from amp_transpiler.verification.user_metric import Metric

__all__ = ["Measured", "Searched", "measure", "search"]

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A conversion that was compared.

    Attributes:
        program: the converted program.
        conversion: the record of its conversion.
        outputs: the comparison of every output.
        metric: the user's measure of it; None without one.
        excess: its error over the one that is allowed; at most 1 if every limit is kept.
    """

    program: Program
    conversion: Conversion
    outputs: dict[str, OutputComparison]
    metric: float | None
    excess: float


def measure(
    prepared: Program, policy: Policy, ranges: RangeFaults, reference: Reference, metric: Metric | None = None
) -> Measured:
    """Convert a copy of a prepared program, run it emulated, and compare it with fp32.

    Args:
        prepared: the program; not changed.
        policy: how to decide, and the limits.
        ranges: a look-up of constants.
        reference: what to compare with.
        metric: the user's own measure.

    Raises:
        CannotCompare: the emulated program does not run.
        InputError: the user's metric fails.
    """
    program = prepared.clone()
    return compared(program, convert(program, policy, ranges), policy.limits, reference, metric)


def compared(
    program: Program, conversion: Conversion, limits: Limits, reference: Reference, metric: Metric | None
) -> Measured:
    """Run a converted program emulated and compare it; see `measure`."""
    kept: list[dict[str, Any]] = []
    outputs = reference.compare(program, limits, None if metric is None else kept.append)
    found = excess(outputs.values(), reference, limits)
    if metric is None:
        return Measured(program, conversion, outputs, None, found)
    value = metric.of(reference.outputs, kept)
    return Measured(program, conversion, outputs, value, max(found, excess_of_metric(value, metric)))


@dataclasses.dataclass(frozen=True, slots=True)
class Searched:
    """The outcome of a search.

    Attributes:
        best: the cheapest conversion that keeps the limits; without one, that with the smallest error.
        point: the choice behind it.
        trials: choices and their errors over the allowed one, in their order.
        frontier: the curve that they lie on.
    """

    best: Measured
    point: Point
    trials: tuple[Trial[Point], ...]
    frontier: Frontier


def search(
    first: Measured,
    prepared: Program,
    policy: Policy,
    ranges: RangeFaults,
    evidence: Evidence,
    measured: Callable[[Policy], Measured],
) -> Searched:
    """Find the best conversion that keeps the limits.

    Args:
        first: the conversion without a limit.
        prepared: the program; not changed.
        policy: how it was made; `search_runs` is how many others may be run.
        ranges: a look-up of constants.
        evidence: what runs say about the program.
        measured: converts the program as a policy says, and compares the result.

    Raises:
        CannotCompare: an emulated program does not run.
        InputError: the user's metric fails.
    """
    opened = open_choices(prepared.model, policy, ranges)
    frontier = Frontier(opened.choices, opened.weights, evidence, _allowed(first.outputs, policy.limits))
    reasons = _reasons(first)
    best: dict[Point, Measured] = {frontier.free: first}

    def run(point: Point) -> float:
        found = measured(dataclasses.replace(policy, settled=settled(point, frontier, reasons, evidence, policy)))
        logger.info(
            "%d nodes low, predicted %.3g of what is allowed: %.3g", len(point.low), point.predicted, found.excess
        )
        [(other, known)] = best.items()
        if _rank(point, found) < _rank(other, known):  # one program in memory is enough
            best.clear()
            best[point] = found
        return found.excess

    trials = turn(frontier.cheapest, run, Trial(frontier.free, first.excess), policy.search_runs)
    [(point, found)] = best.items()
    return Searched(found, point, tuple(trials), frontier)


def _rank(point: Point, found: Measured) -> tuple[float, float]:
    """Order conversions: those that keep the limits by cost, the others by their error."""
    return (0.0, point.cost) if found.excess <= 1.0 else (1.0, found.excess)


def _allowed(outputs: Mapping[str, OutputComparison], limits: Limits) -> dict[str, float]:
    """Return the tolerance of every output; 1 for all where none has any, so that a metric can be followed."""
    found = {name: limits.for_output(name) for name in outputs}
    return found if any(map(math.isfinite, found.values())) else dict.fromkeys(found, 1.0)


def _reasons(first: Measured) -> dict[str, str]:
    decisions = first.conversion.assignment.decisions
    return {str(node.name): decision.reason for node, decision in decisions.items()}


def settled(
    point: Point, frontier: Frontier, reasons: Mapping[str, str], evidence: Evidence, policy: Policy
) -> dict[str, Settled]:
    """Return the decisions of a choice, each with its reason.

    Args:
        point: the choice.
        frontier: the curve that it lies on.
        reasons: node -> the reason of its decision without a limit.
        evidence: what runs say about the program.
        policy: has the low format and the limits.
    """
    found = {}
    for name in frontier.names:
        if name in point.low:
            found[name] = Settled("low", reasons.get(name, "in lower precision"))
        elif name in frontier.free.low:
            found[name] = Settled("high", _why_high(name, evidence, policy))
        else:
            found[name] = Settled("high", reasons.get(name, "float32"))
    return found


def _why_high(name: str, evidence: Evidence, policy: Policy) -> str:
    """Say why the limits keep a node in float32."""
    shares = {output: math.sqrt(errors.get(name, 0.0)) for output, errors in evidence.node_errors_by_output.items()}
    output = max(shares, key=lambda output: shares[output], default="")
    share = shares.get(output, 0.0)
    if share == 0.0:
        return "for the tolerance: its neighbours are float32, and casts around it would add to the error"
    kind = "about " if name in evidence.estimated else ""
    return f"for the tolerance: in {policy.low.name} it adds {kind}{percent(share)} to output '{output}'"
