"""The search over candidates with a predicted and a true error: what it finds, and in how many runs."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from amp_transpiler.verification.bound_search import Trial, turn


@dataclasses.dataclass(frozen=True)
class Row:
    """A candidate of a made-up frontier."""

    predicted: float
    cost: float


def frontier(size: int, seed: int = 0) -> list[Row]:
    """Candidates, from the most accurate, which has no error, to the cheapest."""
    chance = random.Random(seed)
    errors = sorted(10.0 ** chance.uniform(-3, 1) for _ in range(size - 1))
    return [Row(0.0, float(size)), *(Row(error, float(size - 1 - place)) for place, error in enumerate(errors))]


def predicted(row: Row) -> float:
    return row.predicted


def cheapest_of(rows: list[Row]):
    return lambda limit: min((row for row in rows if row.predicted <= limit), key=lambda row: row.cost)


# How the true error follows from the predicted one.
TRUTHS = {
    "exact": lambda error: error,
    "twice": lambda error: 2.0 * error,
    "a tenth": lambda error: 0.1 * error,
    "grows faster": lambda error: error**1.5,
    "grows more slowly": lambda error: 0.7 * math.sqrt(error),
    "infinite above a half": lambda error: math.inf if error > 0.5 else error,
    "not a number above a half": lambda error: math.nan if error > 0.5 else error,
    "always too much but for none": lambda error: 5.0 if error else 0.0,
}


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("seed", range(12))
def test_the_bound_is_kept_in_ten_runs_close_to_the_best(truth, seed):
    rows = frontier(60, seed)
    asked: list[Row] = []

    def measure(row: Row) -> float:
        asked.append(row)
        return truth(row.predicted)

    first = rows[-1]
    trials = turn(
        cheapest_of(rows), predicted, measure, Trial(first, math.inf if math.isnan(x := truth(first.predicted)) else x)
    )
    holding = [trial for trial in trials if trial.holds]
    assert len(asked) <= 10
    assert len(set(asked)) == len(asked)
    cheapest = min(holding, key=lambda trial: trial.candidate.cost).candidate
    best = min((row for row in rows if truth(row.predicted) <= 1.0), key=lambda row: row.cost)
    assert cheapest.cost <= best.cost + 3


def test_nothing_is_run_if_the_first_candidate_holds():
    rows = frontier(9)
    [trial] = turn(cheapest_of(rows), predicted, lambda row: pytest.fail("it ran"), Trial(rows[-1], 1.0))
    assert trial.candidate is rows[-1]


def test_the_last_run_goes_to_what_has_no_error():
    rows = frontier(40)
    trials = turn(
        cheapest_of(rows), predicted, lambda row: 9.0 if row.predicted else 0.0, Trial(rows[-1], math.inf), runs=3
    )
    assert [trial.holds for trial in trials] == [False, False, False, True]
    assert trials[-1].candidate is rows[0]


def test_what_fails_again_and_again_is_asked_for_less():
    """Each correction says that the next candidate holds, and each is wrong by as much."""
    rows = [Row(0.0, 100.0), *(Row(1.05**-place, float(place)) for place in range(99, -1, -1))]
    trials = turn(cheapest_of(rows), predicted, lambda row: 1.2 if row.predicted > 0.15 else 0.9, Trial(rows[-1], 1.2))
    assert [trial.holds for trial in trials].index(True) <= 7, "it does not creep"
    assert min(trial.candidate.cost for trial in trials if trial.holds) <= 55.0, "the best is 39"


def test_what_cannot_hold_ends_with_all_trials():
    rows = frontier(5)
    trials = turn(cheapest_of(rows), predicted, lambda row: 2.0 + row.predicted, Trial(rows[-1], 12.0))
    assert not any(trial.holds for trial in trials)
    assert min(trial.measured for trial in trials) == 2.0


def test_the_dial_rests_after_a_few_failures_once_something_holds():
    """Predictions that mislead there mislead again: other candidates are better hopes."""
    rows = [Row(0.0, 100.0), *(Row(0.99**place, float(place)) for place in range(99, -1, -1))]
    first = Trial(Row(2.0, -1.0), 1.5)

    def measure(row: Row) -> float:
        return 0.2 if row.predicted < 0.5 else 1.5

    rested = [trial.holds for trial in turn(cheapest_of(rows), predicted, measure, first, failures=2)]
    every = [trial.holds for trial in turn(cheapest_of(rows), predicted, measure, first)]
    assert rested[rested.index(True) :].count(False) == 2
    assert every[every.index(True) :].count(False) > 2
