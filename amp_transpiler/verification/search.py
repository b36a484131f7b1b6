"""Searches for the cheapest conversion that keeps the limits; runs on data say which nodes must be float32 for that.

The evidence of runs predicts what each node adds to the error; `precision/frontier.py` gives the cheapest choice for
every bound on that, and `bound_search.py` measures a few of them, emulated, until one keeps the limits. Float32
throughout is the last candidate, so the search refuses no bound that float32 keeps.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.conversion import Conversion, candidate_of, convert
from amp_transpiler.errors import ModelError
from amp_transpiler.precision.assign import open_choices
from amp_transpiler.precision.assignment import Assignment, low_names
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.frontier import Frontier, Point
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.settled_decisions import settled_by
from amp_transpiler.precision.thresholds import masks_limited
from amp_transpiler.program.program import Program
from amp_transpiler.report import FrontierPoint, OutputComparison
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.targets.arithmetic import CUDA_TABLE
from amp_transpiler.verification.amplifier import ancestors_of
from amp_transpiler.verification.bound_search import Trial, turn
from amp_transpiler.verification.calibrate import calibrate
from amp_transpiler.verification.conversions import Conversions, Found, Measured
from amp_transpiler.verification.evidence_cache import Outcome, Outcomes, remembered_evidence
from amp_transpiler.verification.sensitivity import collect_evidence, low_forms

__all__ = ["Found", "best_conversion", "worst_error"]

logger = logging.getLogger(__name__)

_FAILURES = 2  # the search for the bound stops after so many failing runs, once a choice holds
_WORTH = 0.001  # the least gain that is worth a run, as a share of all costs
_NEARLY = 0.8  # the share of the room below a limit that low nodes may fill
_LEAST_WRONG = 0.1  # measured over predicted error is taken for at least this: new nodes may be predicted better
_CONFIRMATIONS = 4  # how many choices that hold in one draw are judged by all draws
_REPAIR_RUNS = 12  # the most runs of the last repair
_AGAIN = 8  # the most runs for another choice, where the best one fails in another draw

_NOT_RUN: tuple[type[Exception], ...] = (*RUN_ERRORS, ModelError)


def best_conversion(
    conversions: Conversions, notes: list[str], *, frontier: bool, cache: bool, limited: bool = False
) -> Found:
    """Return the cheapest conversion that keeps the limits; without one, that with the smallest error.

    On the user's data, what is unsafe by its nature may be low where ranges with headroom speak for it: if the user
    names limits, or the conversion by the rules does not keep them. A comparison has the last word.

    Args:
        conversions: the program, the policy and the data.
        notes: what the user should know; gets more.
        frontier: whether the curve is wanted even if the first conversion keeps the limits.
        cache: whether what runs have shown may be kept, and found again.
        limited: there are limits, so that choices which hold are worth a search.

    Raises:
        CannotCompare: an emulated program does not run.
        InputError: the user's metric fails.
    """
    conversions = _with_thresholds(conversions, notes)
    policy, evidence = conversions.policy, None
    decides = policy.objective != "rules"
    # A training step scales its gradients up to the edge of the range, and skips what overflows.
    is_step = conversions.prepared.step is not None
    outcomes = None
    if cache and decides and policy.search_runs and not (frontier or is_step or conversions.metric):
        words = (str(conversions.reference.given), str(limited))
        outcomes = Outcomes(conversions.prepared, conversions.feeds(), policy, words)
        if (known := outcomes.find()) and (remembered := _repeated(known, conversions, notes)):
            return remembered
    if decides and conversions.reference.given and policy.search_runs and not is_step:
        with conversions.phase("calibrate"):
            evidence = _ranges_seen(conversions, notes)
            policy = dataclasses.replace(policy, evidence=evidence)
        if evidence is not None and (fuller := _fuller(conversions, policy, limited=limited)):
            return Found(fuller, evidence)
    tried = [conversions.measured(policy, confirm=True)]
    holds = tried[0].excess <= 1.0 or not policy.search_runs
    if not holds:
        conversions = conversions.beside_worst(tried[0])
    if evidence is not None and (limited or not holds):
        policy = dataclasses.replace(policy, numerics="shown")
        if holds and _allows_more(conversions, policy, tried[0]):
            more = conversions.measured(policy, confirm=True)
            if more.excess > 1.0 or not _is_slower(more, tried[0], policy):
                tried.insert(0, more)
                holds = more.excess <= 1.0
    if not decides or (holds and not frontier):
        return Found(conversions.confirmed(tried[0]), evidence)
    with conversions.phase("find errors"):
        evidence = _evidence(conversions, notes, cache=cache)
    if evidence.ranges and not is_step:
        policy = dataclasses.replace(policy, evidence=evidence)
    search = _Search(tried, conversions, policy, evidence)
    best = conversions.confirmed(tried[0]) if holds else search.turned()
    repaired, shown = search.repaired(best), policy.numerics == "shown"
    if outcomes is not None:
        outcomes.keep(Outcome(best.settled, repaired, shown, best.excess))
    curve = tuple(search.curve(best)) if frontier else ()
    return Found(best, evidence, repaired, curve, not holds, shown, search.curve if frontier else None)


def _repeated(known: Outcome, conversions: Conversions, notes: list[str]) -> Found | None:
    """Carry the outcome of an equal search out and compare it; None if it is worse than it was then."""
    before = len(notes)
    with conversions.phase("find errors"):
        evidence = _evidence(conversions, notes, cache=True)
    policy = dataclasses.replace(conversions.policy, evidence=evidence if evidence.ranges else None)
    if known.shown:
        policy = dataclasses.replace(policy, numerics="shown")
    best = conversions.confirmed(conversions.measured(dataclasses.replace(policy, settled=known.settled), confirm=True))
    if best.excess <= max(1.0, known.excess):
        logger.info("the outcome of an equal search comes from the cache")
        return Found(best, evidence, known.repaired, searched=True, shown=known.shown)
    del notes[before:]
    return None


def _allows_more(conversions: Conversions, policy: Policy, than: Measured) -> bool:
    """Whether a policy would choose other low nodes than those of a conversion."""
    opened = open_choices(conversions.prepared.model, policy, conversions.ranges)
    return low_names(opened.assignment(opened.choices.solve())) != low_names(than.conversion.assignment)


def _is_slower(measured: Measured, other: Measured, policy: Policy) -> bool:
    """Whether a conversion is predicted to take longer than another, where that is what counts."""
    return policy.objective == "time" and _milliseconds(measured.program, policy) > _milliseconds(other.program, policy)


def _milliseconds(program: Program, policy: Policy) -> float:
    return candidate_of(program, policy).milliseconds


def _low_share(assignment: Assignment) -> float:
    """Return the share of the nodes with a float32 tensor that are low."""
    decided = [decision.precision for decision in assignment.decisions.values() if decision.precision != "untouched"]
    return decided.count("low") / max(1, len(decided))


def _with_thresholds(conversions: Conversions, notes: list[str]) -> Conversions:
    """Return the same with the ranges that a threshold of magnitudes is held against, where there is one."""
    if not conversions.policy.thresholds.needs_data:
        return conversions
    with conversions.phase("calibrate"):
        ranges = _ranges_seen(conversions, notes)
    policy = conversions.policy
    seen = {} if ranges is None else masks_limited(conversions.prepared.model, ranges.ranges, policy.low)
    thresholds = dataclasses.replace(policy.thresholds, seen=seen)
    return dataclasses.replace(conversions, policy=dataclasses.replace(policy, thresholds=thresholds))


def _fuller(conversions: Conversions, policy: Policy, *, limited: bool) -> Measured | None:
    """Return a conversion with more low nodes than that by the rules, for a target that builds engines."""
    if not policy.target.builds_engines:
        return None
    from amp_transpiler.verification.fullest import fullest  # for few targets

    return fullest(conversions, policy, limited=limited)


def _ranges_seen(conversions: Conversions, notes: list[str]) -> Evidence | None:
    """Return the ranges of the program's values on the user's data; None, and a note, if they cannot be had."""
    try:
        calibration = calibrate(conversions.prepared, conversions.policy.low, conversions.samples())
    except _NOT_RUN as error:
        notes.append(f"ranges are not known: {error_text(error)}")
        return None
    return Evidence(ranges=calibration.ranges, samples=calibration.samples, given=True)


def _evidence(conversions: Conversions, notes: list[str], *, cache: bool) -> Evidence:
    """Return what runs say about the program; nothing, and a note, if that cannot be had."""
    policy, samples = conversions.policy, conversions.samples()

    def collect() -> Evidence:
        is_given = conversions.reference.given
        return collect_evidence(conversions.prepared, policy.target, policy.low, samples, given=is_given)

    words = (policy.low.name, policy.target.name, policy.target.ort, str(conversions.reference.given))
    try:
        feeds = conversions.feeds()
        evidence = remembered_evidence(conversions.prepared, feeds, words, collect) if cache else collect()
        return _as_on_device(evidence, conversions, feeds)
    except _NOT_RUN as error:
        notes.append(f"what each node adds to the error is not known: {error_text(error)}")
        return Evidence()


def _as_on_device(evidence: Evidence, conversions: Conversions, feeds: Sequence[Mapping[str, Any]]) -> Evidence:
    """Return evidence with the sums that overflow inside, on a device that adds up in the low format."""
    arithmetic, policy = conversions.arithmetic, conversions.policy
    if arithmetic is None or arithmetic.table == CUDA_TABLE:
        return evidence
    from amp_transpiler.verification.inner_sums import with_overflows_inside  # for few targets

    forms = low_forms(conversions.prepared.model, policy.target, policy.low)
    return with_overflows_inside(evidence, conversions.prepared, policy.low, forms, feeds, arithmetic)


class _Search:
    """One search, from the conversion without a limit towards float32.

    Args:
        tried: conversions that were measured before.
        conversions: the program, and the data to compare on.
        policy: how to decide, with the ranges that were seen.
        evidence: what runs say about the program.
    """

    def __init__(
        self,
        tried: Sequence[Measured],
        conversions: Conversions,
        policy: Policy,
        evidence: Evidence,
    ) -> None:
        first = tried[-1]
        self._tried, self._conversions, self._policy, self._evidence = tried, conversions, policy, evidence
        opened = open_choices(conversions.prepared.model, policy, conversions.ranges)
        self._frontier = Frontier(opened.choices, opened.weights, evidence, _allowed(first.outputs, policy))
        free = opened.assignment(opened.choices.solve())
        self._reasons = {str(node.name): decision.reason for node, decision in free.decisions.items()}
        self._fixed = low_names(free) - self._frontier.open_names
        decided = first.conversion.assignment.decisions
        self._was_low = [str(node.name) for node, decision in decided.items() if decision.precision == "low"]
        self._best: tuple[Point, Measured] | None = None
        self._costs: dict[Point, float] = {}  # of those that keep the limits
        self._errors: dict[Point, float] = {}
        self._excesses: dict[Point, float] = {}
        self._by_all_draws = False
        self._deciding: int | None = None

    def turned(self) -> Measured:
        """Turn the conversion towards float32 until it keeps the limits, then add what they leave room for.

        The page `docs/precision.md` says the same in words, step by step.
        """
        frontier, conversions = self._frontier, self._conversions
        for measured in self._tried:
            low = low_names(measured.conversion.assignment)
            point = frontier.point(low & frontier.open_names)
            if point.low | self._fixed == low:  # or the ranges that were seen since forbid some
                self._note(point, measured)
        runs, first = self._policy.search_runs, Trial(frontier.free, self._excess_of(frontier.free))
        turn(frontier.cheapest, frontier.predicted, self._run, first, runs, _FAILURES)
        assert self._best is not None
        if self._policy.objective == "time" and frontier.exact not in self._excesses:
            exact = (0.0, _milliseconds(conversions.prepared, self._policy))
            if exact < self._rank(*self._best):
                self._run(frontier.exact)
        self._judge_by_all_draws()
        self._repair(_REPAIR_RUNS)
        logger.info("%d conversions were run", len(self._excesses))
        return conversions.confirmed(self._best[1])

    def _judge_by_all_draws(self) -> None:
        """Hold the best choice against the worst draw, and look for another one if it is beyond the limits there.

        Runs before were judged by one draw. Where another draw of the best choice is beyond the limits, that of others
        may be, too: from then on every run is judged by all draws. Float32 throughout is the last resort.
        """
        assert self._best is not None
        point, measured = self._best
        confirmed = self._conversions.confirmed(measured)
        logger.info("%d nodes low: %.3g of what is allowed in the worst draw", len(point.low), confirmed.excess)
        self._by_all_draws, self._best = True, (point, confirmed)
        self._note(point, confirmed)
        if measured.excess <= 1.0 < confirmed.excess:
            self._deciding = confirmed.failing_turn  # others may fail there, too
            self._another(point, confirmed)

    def _another(self, point: Point, confirmed: Measured) -> None:
        """Find a choice that keeps the limits in all draws, to replace one that does not."""
        likely = [known for known, excess in self._excesses.items() if excess <= 1.0]
        likely.sort(key=lambda known: (known.cost, sorted(known.low)))
        for known in likely[:_CONFIRMATIONS]:
            if not self._holds():
                self._run(known)
        if not self._holds():
            first = Trial(point, confirmed.excess)
            turn(self._frontier.cheapest, self._frontier.predicted, self._run, first, _AGAIN, _FAILURES)
        cost = self._best[0].cost if self._best is not None and self._holds() else math.inf
        conditioned = self._before_amplifier(point, confirmed)
        if conditioned is not None and conditioned.cost < cost:
            self._run(conditioned)
        if not self._holds():
            self._run(self._frontier.exact)

    def _holds(self) -> bool:
        """Whether a choice keeps the limits."""
        return self._best is not None and self._best[1].excess <= 1.0

    def _before_amplifier(self, point: Point, confirmed: Measured) -> Point | None:
        """Return a choice with float32 up to the node at which draws of another choice come apart."""
        draws = confirmed.draws
        if draws is None or not draws.amplifier:
            return None
        graph = self._conversions.prepared.model.graph
        amplifier = next((node for node in graph if node.name == draws.amplifier), None)
        if amplifier is None:
            return None
        high = {str(node.name) for node in ancestors_of(amplifier)}
        return self._frontier.point(point.low - high)

    def _repair(self, runs: int) -> None:
        """Add low nodes to the best choice, as long as the limits leave room for them.

        Those that are predicted to fit are added. If they do not, a few of them may be due to it: they are found by
        bisection and stay float32, and the others are asked for again. Where none is predicted to fit, they are looked
        for in the nearest choice that fails, and at last in all others. Every turn takes a run or finds a culprit: so
        it ends.

        Args:
            runs: how many conversions may be run.
        """
        frontier, last, culprits = self._frontier, len(self._excesses) + runs, frozenset[str]()
        while len(self._excesses) < last:
            assert self._best is not None
            best, measured = self._best
            if measured.excess >= 1.0:
                return
            candidate = frontier.widened(best, self._rooms(), culprits)
            if not self._is_worth(candidate):
                others = frontier.extended(best, frontier.open_names - culprits)
                candidate = self._nearest_failing(culprits) or others
            if not self._is_worth(candidate):
                return
            if self._excess_of(candidate) > 1.0:
                culprits |= self._culprits(candidate, last)

    def _is_worth(self, candidate: Point) -> bool:
        """Whether a choice costs so much less than the best one that it is worth a run, or why it fails."""
        assert self._best is not None
        if self._excesses.get(candidate, math.inf) <= 1.0:
            return False  # it is not the best one, as its result is slower
        return self._best[0].cost - candidate.cost >= _WORTH * self._frontier.exact.cost

    def _nearest_failing(self, culprits: frozenset[str]) -> Point | None:
        """Return the failing choice that has the fewest low nodes besides those of the best one; None without any."""
        assert self._best is not None
        low = self._best[0].low
        failing = [
            point
            for point, excess in self._excesses.items()
            if excess > 1.0 and point.low - low and not point.low & culprits and self._is_worth(point)
        ]
        return min(failing, key=lambda point: (len(point.low - low), point.cost), default=None)

    def _culprits(self, failing: Point, last: int) -> frozenset[str]:
        """Bisect what a failing choice has low besides the best one; return the few nodes because of which it fails.

        Args:
            failing: the choice.
            last: how many conversions may be known at the end.
        """
        assert self._best is not None
        suspects = [name for name in self._frontier.names if name in failing.low - self._best[0].low]
        while len(suspects) > 1 and len(self._excesses) < last:
            middle = len(suspects) // 2
            halves = suspects[:middle], suspects[middle:]
            candidates = [self._frontier.extended(self._best[0], half) for half in halves]
            chosen = min((0, 1), key=lambda place: self._frontier.predicted(candidates[place]))
            holds = self._excess_of(candidates[chosen]) <= 1.0
            suspects = halves[1 - chosen] if holds else halves[chosen]
        return frozenset(suspects)

    def _rooms(self) -> dict[str, float]:
        """Return by how much the predicted square of every output may grow, if predictions stay as wrong."""
        assert self._best is not None
        best, measured = self._best
        beside = measured.excess if measured.metric is not None else 0.0
        rooms = {}
        for output, predicted in self._frontier.squares(best).items():
            square = max(measured.excesses.get(output, 0.0), beside) ** 2
            wrong = square / predicted if predicted > 0.0 and square > 0.0 else 1.0
            rooms[output] = _NEARLY * (1.0 - square) / max(wrong, _LEAST_WRONG)
        return rooms

    def repaired(self, best: Measured) -> tuple[str, ...]:
        """Return the nodes that were low at first and are float32 in another conversion."""
        high = {name for name, decision in best.settled.items() if decision.precision == "high"}
        return tuple(name for name in self._was_low if name in high)

    def curve(self, best: Measured) -> list[FrontierPoint]:
        """Return the points of the curve, those with the largest errors first; the chosen one is measured."""
        frontier = self._frontier
        chosen_low = low_names(best.conversion.assignment) & frontier.open_names
        points = []
        for point in frontier.curve(chosen_low):
            is_chosen = point.low == chosen_low
            program, conversion = (best.program, best.conversion) if is_chosen else self._carried_out(point)
            measured = self._errors.get(point)
            error = point.error if measured is None else measured
            points.append(
                FrontierPoint(
                    error=worst_error(best.outputs) if is_chosen else error,
                    milliseconds=self._priced(program),
                    low_share=_low_share(conversion.assignment),
                    casts=conversion.casts,
                    measured=is_chosen or measured is not None,
                    chosen=is_chosen,
                )
            )
        return sorted(points, key=lambda point: (-point.error, point.casts))

    def _priced(self, program: Program) -> float | None:
        """Return the predicted time of a program; None: the target has no prices, or none of its nodes has one."""
        return (_milliseconds(program, self._policy) or None) if self._policy.target.has_prices else None

    def _carried_out(self, point: Point) -> tuple[Program, Conversion]:
        """Convert a copy of the program as a choice says: what passes make of it is known only then."""
        program = self._conversions.prepared.clone()
        with self._conversions.phase("convert"):
            return program, convert(program, self._policy_of(point), self._conversions.ranges)

    def _policy_of(self, point: Point) -> Policy:
        settled = settled_by(point, self._frontier, self._reasons, self._evidence, self._policy.low)
        return dataclasses.replace(self._policy, settled=settled)

    def _excess_of(self, point: Point) -> float:
        """Return the error of a choice over the one that is allowed; it is run unless it was before."""
        excess = self._excesses.get(point)
        return self._run(point) if excess is None else excess

    def _run(self, point: Point) -> float:
        chosen = self._policy_of(point)
        measured = self._conversions.measured(chosen, confirm=self._by_all_draws, deciding=self._deciding)
        logger.info(
            "%d nodes low: predicted %.3g of what is allowed, %.3g found",
            len(point.low),
            point.predicted,
            measured.excess,
        )
        self._note(point, measured)
        return measured.excess

    def _note(self, point: Point, measured: Measured) -> None:
        self._errors[point], self._excesses[point] = worst_error(measured.outputs), measured.excess
        self._frontier.learn(point, _felt(measured))
        if self._best is None or self._rank(point, measured) < self._rank(*self._best):
            self._best = point, measured  # one program in memory is enough

    def _rank(self, point: Point, measured: Measured) -> tuple[float, float]:
        """Order conversions: those that keep the limits by cost, the others by their error."""
        if measured.excess > 1.0:
            return 1.0, measured.excess
        if point not in self._costs:
            timed = self._policy.objective == "time"
            self._costs[point] = _milliseconds(measured.program, self._policy) if timed else point.cost
        return 0.0, self._costs[point]


def _felt(measured: Measured) -> dict[str, float]:
    """Return the error of every output over the one that is allowed; a metric is of them all."""
    return {
        name: measured.excess if measured.metric is not None else error for name, error in measured.excesses.items()
    }


def worst_error(outputs: Mapping[str, OutputComparison]) -> float:
    """Return the largest relative error of an output; infinite if one became infinite or NaN."""
    return max((math.inf if row.nonfinite else row.relative for row in outputs.values()), default=0.0)


def _allowed(outputs: Mapping[str, OutputComparison], policy: Policy) -> dict[str, float]:
    """Return the tolerance of every output; 1 for all where none has any, so that a metric can be followed."""
    tolerances = {name: policy.limits.for_output(name) for name in outputs}
    return tolerances if any(map(math.isfinite, tolerances.values())) else dict.fromkeys(tolerances, 1.0)
