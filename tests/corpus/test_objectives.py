"""Both objectives on real models: casts are foreseen, and neither float32 nor low precision all over is better."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

import pytest

import amp_transpiler as amp
from amp_transpiler.precision.assign import open_choices
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.cut_network import Choices
from tests.corpus.files import name_of
from tests.cuts import casts_left, prepared

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_cut_foresees_is_so(
    model: pathlib.Path, dtype: str, record_property: Callable[[str, object], None]
) -> None:
    try:
        program, policy, ranges = prepared(model, dtype)
    except amp.ModelError as refused:
        pytest.skip(f"{name_of(model)}: {str(refused)[:200]}")
    low, time = (dataclasses.replace(policy, objective=aim) for aim in ("low", "time"))
    after = program.clone()
    open_ = open_choices(after.model, low, ranges)
    answer = open_.choices.solve()
    assignment = open_.assignment(answer)
    casts = casts_left(after, assignment)
    record_property("summary", f"{low_count(assignment)} low nodes, {casts} casts")
    assert casts == len(open_.choices.decide(answer).casts)
    assert open_.choices.problem.cost(answer) <= plain_cost(open_.choices)

    choices = open_choices(program.model, time, ranges).choices
    assert choices.problem.cost(choices.solve()) <= plain_cost(choices)


def plain_cost(choices: Choices) -> int:
    """What it costs to make everything low that can be, or nothing."""
    problem = choices.problem
    everything = [cost is not None for cost in problem.low]
    return min(problem.cost(everything), problem.cost([False] * len(everything)))


def low_count(assignment: Assignment) -> int:
    return sum(decision.form is not None for decision in assignment.decisions.values())
