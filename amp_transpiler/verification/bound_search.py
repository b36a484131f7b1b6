"""The search for the cheapest candidate whose measured error keeps a bound, in a handful of measurements.

A prediction of the error orders the candidates and costs next to nothing; a measurement is a run of a model. So each
measurement corrects the prediction: the next candidate is the cheapest one whose predicted error is as much smaller, or
larger, as the last measured one was beyond or below the bound.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Trial", "turn"]

_NEARER = 0.95  # of the error that is allowed: predictions are not exact
_WARIER = 0.75  # times that, after each candidate that failed though it was predicted to hold, until one holds
_FAR = 0.25  # of the last limit, where a measurement says nothing but "too much"
_CLOSE = 1.05  # a bracket as narrow as this holds no candidate worth a run
_ASKED = 8  # candidates that are asked for, for each that may be measured: many limits have the same cheapest one


C = TypeVar("C", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class Trial(Generic[C]):
    """A candidate that was measured.

    Attributes:
        candidate: equal candidates are measured once.
        measured: its error over the error that is allowed; infinite if values became infinite or NaN.
    """

    candidate: C
    measured: float

    @property
    def holds(self) -> bool:
        """Whether the bound is kept."""
        return self.measured <= 1.0


def turn(
    cheapest: Callable[[float], C],
    predicted: Callable[[C], float],
    measure: Callable[[C], float],
    first: Trial[C],
    runs: int = 10,
    failures: int | None = None,
) -> list[Trial[C]]:
    """Measure candidates until the cheapest one that keeps the bound is found, or the runs are used up.

    Args:
        cheapest: returns the cheapest candidate whose predicted error is at most the given one; at 0 one without any
            predicted error.
        predicted: returns the predicted error of a candidate, over the error that is allowed. It may learn from what is
            measured.
        measure: runs a candidate and returns its error over the error that is allowed. NaN counts as too much.
        first: the candidate without any limit, measured already.
        runs: how many candidates may be measured.
        failures: how many of them may fail once one holds; None: all.

    Returns:
        All trials in their order, `first` included. Equal candidates are measured once.
    """
    trials, known = [first], {first.candidate: first}
    trial, asked = first, 0.0  # the largest limit whose candidate holds
    for _ in range(_ASKED * runs):
        good = max((predicted(each.candidate) for each in trials if each.holds), default=0.0)
        bad = min((predicted(each.candidate) for each in trials if not each.holds), default=math.inf)
        good = max(good, asked)
        if _is_settled(trials, good, bad) or len(trials) > runs:
            break
        if failures is not None and _failures(trials) >= failures:
            break
        is_last = len(trials) == runs and not any(each.holds for each in trials)
        failed = 0 if any(each.holds for each in trials) else len(trials) - 1
        # The last run goes to what cannot fail.
        limit = 0.0
        if not is_last:
            limit = _next_limit(predicted(trial.candidate), trial.measured, good, bad, _NEARER * _WARIER**failed)
        candidate = cheapest(limit)
        if candidate not in known:
            measured = measure(candidate)
            known[candidate] = Trial(candidate, math.inf if math.isnan(measured) else measured)
            trials.append(known[candidate])
            asked = 0.0  # predictions may be others now
        trial = known[candidate]
        if trial.holds:
            asked = max(asked, limit)
        if limit == 0.0 and is_last:
            break
    return trials


def _is_settled(trials: list[Trial[C]], good: float, bad: float) -> bool:
    if trials[0].holds:
        return True
    return any(trial.holds for trial in trials) and bad <= _CLOSE * good


def _failures(trials: list[Trial[C]]) -> int:
    """Return how many failed since one held."""
    first = next((place for place, trial in enumerate(trials) if trial.holds), len(trials))
    return sum(not trial.holds for trial in trials[first:])


def _next_limit(predicted: float, measured: float, good: float, bad: float, part: float) -> float:
    """Return the predicted error to ask for next, between what is known to hold and what is known not to.

    Args:
        predicted: the error of the last candidate.
        measured: the same as found.
        good: the largest predicted error that holds.
        bad: the least one that does not.
        part: which part of the error that is allowed is asked for.
    """
    if not math.isfinite(bad):  # nothing is predicted of what overflows, or where no error is allowed
        return max(1.0, 2.0 * good)
    if not math.isfinite(measured):
        wanted = _FAR * bad
    elif measured > 0.0:
        wanted = part * predicted / measured
    else:
        wanted = bad
    if good < wanted < bad:
        return wanted
    return math.sqrt(good * bad) if good > 0.0 else _FAR * bad
