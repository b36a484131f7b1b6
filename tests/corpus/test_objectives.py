"""Both objectives on real models: casts are foreseen, and no way known before is better at what they aim at."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

import pytest

import amp_transpiler as amp
from amp_transpiler.precision.assign import assign, open_choices
from amp_transpiler.precision.assignment import Assignment
from tests.corpus.files import name_of
from tests.cuts import casts_left, prepared

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_choice_before_is_better(
    model: pathlib.Path, dtype: str, record_property: Callable[[str, object], None]
) -> None:
    try:
        program, policy, ranges = prepared(model, dtype)
    except amp.ModelError as refused:
        pytest.skip(f"{name_of(model)}: {str(refused)[:200]}")
    rules, low, time = (dataclasses.replace(policy, objective=aim) for aim in ("rules", "low", "time"))
    before, after = program.clone(), program.clone()
    by_rules = assign(before.model, rules, ranges)
    open_ = open_choices(after.model, low, ranges)
    answer = open_.choices.solve()
    by_cut = open_.assignment(answer)
    foreseen = len(open_.choices.decide(answer).casts)
    nodes, casts = (low_count(by_rules), low_count(by_cut)), (casts_left(before, by_rules), casts_left(after, by_cut))
    record_property("summary", f"low nodes {nodes[0]} -> {nodes[1]}, casts {casts[0]} -> {casts[1]}")
    assert casts[1] == foreseen
    assert nodes[1] > nodes[0] or casts[1] <= casts[0]

    choices = open_choices(program.model, time, ranges).choices
    problem = choices.problem
    everything = [own is not None for own in problem.low]
    nothing = [False] * len(everything)
    assert problem.cost(choices.solve()) <= min(problem.cost(everything), problem.cost(nothing))


def low_count(assignment: Assignment) -> int:
    return sum(decision.form is not None for decision in assignment.decisions.values())
