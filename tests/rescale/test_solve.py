"""The elimination finds what brute force finds, and is fast on large networks."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from amp_transpiler.rescale import solve
from amp_transpiler.rescale.solve import Table, least

NUMBERS = range(-2, 3)


def cost(tables, chosen):
    index = {unknown: NUMBERS.index(number) for unknown, number in chosen.items()}
    return sum(float(table.costs[tuple(index[unknown] for unknown in table.scope)]) for table in tables)


def brute(unknowns, tables):
    combinations = itertools.product(NUMBERS, repeat=len(unknowns))
    return min(cost(tables, dict(zip(unknowns, numbers, strict=True))) for numbers in combinations)


@st.composite
def problems(draw):
    unknowns = list(range(draw(st.integers(1, 5))))
    tables = []
    for _ in range(draw(st.integers(1, 6))):
        size = draw(st.integers(1, min(3, len(unknowns))))
        scope = tuple(sorted(draw(st.permutations(unknowns))[:size]))
        costs = np.random.default_rng(draw(st.integers(0, 999))).integers(0, 9, (len(NUMBERS),) * size).astype(float)
        forbidden = np.random.default_rng(draw(st.integers(0, 999))).random(costs.shape) < draw(
            st.sampled_from([0, 0.3])
        )
        forbidden[(NUMBERS.index(0),) * size] = False
        costs[forbidden] = np.inf
        tables.append(Table(scope, costs))
    return unknowns, tables


@given(problems())
@settings(max_examples=150, deadline=None)
def test_it_is_as_good_as_brute_force(problem):
    unknowns, tables = problem
    chosen = least(unknowns, NUMBERS, tables)
    assert set(chosen) == set(unknowns)
    assert cost(tables, chosen) == brute(unknowns, tables)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_without_room_for_tables_it_is_possible_and_no_worse_than_nothing(problem):
    unknowns, tables = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "_MOST_CELLS", 30)
        chosen = least(unknowns, NUMBERS, tables)
    assert cost(tables, chosen) <= cost(tables, dict.fromkeys(unknowns, 0))


def test_a_hub_with_a_thousand_chains_takes_little_time():
    numbers, rng = range(-12, 13), np.random.default_rng(0)
    chains = [(2 * number + 1, 2 * number + 2) for number in range(1000)]
    scopes = [scope for first, second in chains for scope in ((0, first), (first, second), (second,))]
    tables = [Table(scope, rng.random((25,) * len(scope))) for scope in scopes]
    start = time.process_time()
    chosen = least(range(2001), numbers, tables)
    assert time.process_time() - start < 2.0
    assert len(chosen) == 2001
