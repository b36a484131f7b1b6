"""The best conversion that keeps the limits: one that is not good enough is turned towards float32, by what data say.

The evidence of runs predicts what each node adds to the error; `precision/frontier.py` gives the cheapest choice for
every bound on that, and `dial.py` measures a few of them, emulated, until one keeps the limits. Float32 throughout is
the last of them, so that what is reachable is never refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from amp_transpiler.conversion import Conversion, convert
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.program import Program
from amp_transpiler.precision.assign import open_assignment
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.frontier import Frontier, Point
from amp_transpiler.precision.policy import Policy, Settled
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.report import OutputComparison, Report
from amp_transpiler.report.wording import percent
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.verification.accuracy import Reference
from amp_transpiler.verification.calibrate import NamedSample, calibrate
from amp_transpiler.verification.child import RUN_ERRORS
from amp_transpiler.verification.dial import Trial, turn
from amp_transpiler.verification.excess import excess, excess_of_metric
from amp_transpiler.verification.remembered import remembered_evidence
from amp_transpiler.verification.sensitivity import collect_evidence
from amp_transpiler.verification.user_metric import Metric

__all__ = ["Conversions", "Measured", "best_conversion"]

logger = logging.getLogger(__name__)

Phase = Callable[[str], contextlib.AbstractContextManager[None]]

_NOT_RUN: tuple[type[Exception], ...] = (*RUN_ERRORS, ModelError)


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A conversion that was compared.

    Attributes:
        program: the converted program.
        conversion: the record of its conversion.
        outputs: the comparison of every output.
        metric: the user's measure of it; None without one.
        excess: its error over the one that is allowed; at most 1 if every limit is kept.
        settled: the decisions that were made before it, by a search.
    """

    program: Program
    conversion: Conversion
    outputs: dict[str, OutputComparison]
    metric: float | None
    excess: float
    settled: Mapping[str, Settled]


@dataclasses.dataclass(frozen=True, slots=True)
class Conversions:
    """The conversions of one program, each compared with fp32.

    Attributes:
        prepared: the program; it is not changed.
        policy: how to decide, and the limits.
        ranges: a look-up of constants.
        reference: what to compare with.
        metric: the user's own measure, or None.
        phase: times a block.
    """

    prepared: Program
    policy: Policy
    ranges: RangeFaults
    reference: Reference
    metric: Metric | None
    phase: Phase

    def measured(self, policy: Policy) -> Measured:
        """Convert a copy as a policy says, run it emulated, and compare it.

        Raises:
            CannotCompare: the emulated program does not run.
            InputError: the user's metric fails.
        """
        program = self.prepared.clone()
        with self.phase("convert"):
            conversion = convert(program, policy, self.ranges)
        with self.phase("compare"):
            kept: list[dict[str, Any]] = []
            outputs = self.reference.compare(program, policy.limits, None if self.metric is None else kept.append)
            found, value = excess(outputs.values(), self.reference, policy.limits), None
            if self.metric is not None:
                value = self.metric.of(self.reference.outputs, kept)
                found = max(found, excess_of_metric(value, self.metric))
        return Measured(program, conversion, outputs, value, found, policy.settled)

    def samples(self) -> list[NamedSample]:
        """Return the samples for the prepared program, each with its name."""
        feeds = self.reference.feeds(str(value.name) for value in self.prepared.model.graph.inputs)
        return [(f"sample {number}", sample) for number, sample in enumerate(feeds, start=1)]


def best_conversion(conversions: Conversions, report: Report, *, frontier: bool, cache: bool) -> Measured:
    """Return the cheapest conversion that keeps the limits; without one, that with the smallest error.

    Args:
        conversions: the program, the policy and the data.
        report: gets notes, the nodes that a search made float32, and what the curve is drawn from.
        frontier: whether the curve is wanted even if the first conversion keeps the limits.
        cache: whether what runs have shown may be kept, and found again.

    Raises:
        CannotCompare: an emulated program does not run.
        InputError: the user's metric fails.
    """
    policy = conversions.policy
    decides = policy.objective != "rules"
    if decides and conversions.reference.given and policy.search_runs:
        with conversions.phase("calibrate"):
            policy = dataclasses.replace(policy, evidence=_ranges_seen(conversions, report))
    first = conversions.measured(policy)
    wanted = first.excess > 1.0 and policy.search_runs > 0
    if not decides or not (wanted or frontier):
        return first
    with conversions.phase("find errors"):
        evidence = _evidence(conversions, report, cache=cache)
    if evidence.ranges:
        policy = dataclasses.replace(policy, evidence=dataclasses.replace(evidence, given=conversions.reference.given))
    return _turned(first, conversions, policy, evidence, report) if wanted else first


def _ranges_seen(conversions: Conversions, report: Report) -> Evidence | None:
    """Return the ranges of the program's values on the user's data; None, and a note, if they cannot be had."""
    try:
        found = calibrate(conversions.prepared, conversions.policy.low, conversions.samples())
    except _NOT_RUN as error:
        report.notes = (*report.notes, f"ranges are not known: {error_text(error)}")
        return None
    return Evidence(ranges=found.ranges, samples=found.samples, given=True)


def _evidence(conversions: Conversions, report: Report, *, cache: bool) -> Evidence:
    """Return what runs say about the program; nothing, and a note, if that cannot be had."""
    policy, samples = conversions.policy, conversions.samples()

    def collect() -> Evidence:
        given = conversions.reference.given
        return collect_evidence(conversions.prepared, policy.target, policy.low, samples, given=given)

    words = (policy.low.name, policy.target.name, policy.target.ort, str(conversions.reference.given))
    try:
        feeds = [sample for _, sample in samples]
        return remembered_evidence(conversions.prepared, feeds, words, collect) if cache else collect()
    except _NOT_RUN as error:
        report.notes = (*report.notes, f"what each node adds to the error is not known: {error_text(error)}")
        return Evidence()


def _turned(
    first: Measured, conversions: Conversions, policy: Policy, evidence: Evidence, report: Report
) -> Measured:
    """Turn a conversion towards float32 until it keeps the limits."""
    opened = open_assignment(conversions.prepared.model, policy, conversions.ranges)
    frontier = Frontier(opened.choices, opened.weights, evidence, _allowed(first.outputs, policy))
    reasons = {str(node.name): decision.reason for node, decision in first.conversion.assignment.decisions.items()}
    best: list[tuple[Point, Measured]] = [(frontier.free, first)]

    def run(point: Point) -> float:
        chosen = dataclasses.replace(policy, settled=_settled(point, frontier, reasons, evidence, policy))
        found = conversions.measured(chosen)
        logger.info(
            "%d nodes low: predicted %.3g of what is allowed, %.3g found", len(point.low), point.predicted, found.excess
        )
        if _rank(point, found) < _rank(*best[0]):  # one program in memory is enough
            best[:] = [(point, found)]
        return found.excess

    trials = turn(frontier.cheapest, run, Trial(frontier.free, first.excess), policy.search_runs)
    [(point, found)] = best
    report.repaired = tuple(name for name in frontier.names if name in frontier.free.low and name not in point.low)
    logger.info("%d conversions were run", len(trials))
    return found


def _rank(point: Point, found: Measured) -> tuple[float, float]:
    """Order conversions: those that keep the limits by cost, the others by their error."""
    return (0.0, point.cost) if found.excess <= 1.0 else (1.0, found.excess)


def _allowed(outputs: Mapping[str, OutputComparison], policy: Policy) -> dict[str, float]:
    """Return the tolerance of every output; 1 for all where none has any, so that a metric can be followed."""
    found = {name: policy.limits.for_output(name) for name in outputs}
    return found if any(map(math.isfinite, found.values())) else dict.fromkeys(found, 1.0)


def _settled(
    point: Point, frontier: Frontier, reasons: Mapping[str, str], evidence: Evidence, policy: Policy
) -> dict[str, Settled]:
    """Return the decisions of a choice, each with its reason: that of the first conversion where it is the same."""
    found = {}
    for name in frontier.names:
        is_low = name in point.low
        is_new = not is_low and name in frontier.free.low
        reason = _why_high(name, evidence, policy) if is_new else reasons.get(name, "")
        found[name] = Settled("low" if is_low else "high", reason)
    return found


def _why_high(name: str, evidence: Evidence, policy: Policy) -> str:
    """Say why the limits keep a node in float32."""
    shares = {output: math.sqrt(errors.get(name, 0.0)) for output, errors in evidence.node_errors_by_output.items()}
    output = max(shares, key=lambda output: shares[output], default="")
    share = shares.get(output, 0.0)
    if share == 0.0:
        return "for the tolerance: its neighbours are float32, and casts around it would add to the error"
    about = "about " if name in evidence.estimated else ""
    return f"for the tolerance: in {policy.low.name} it adds {about}{percent(share)} to output '{output}'"
