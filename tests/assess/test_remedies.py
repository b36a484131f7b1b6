"""What it would take to change a node's precision, and what nearly overflows, as data show it."""

from __future__ import annotations

import numpy as np

import amp_transpiler as amp
from tests.support import array, chain

W = array(4, 4, seed=2)
DEEP = chain(*["MatMul ({}, w)", "Tanh ({})"] * 4, w=W)
LARGE = chain("Mul ({}, k)", "Mul ({}, s)", "MatMul ({}, w)", k=np.float32(20000.0), s=np.float32(1e-4), w=W)


def test_the_worst_sources_say_what_float32_would_leave_of_the_error():
    free = amp.transpile(DEEP, inputs={"x": array(2, 4)}, tolerance="100%", prefer="size")
    error = max(row.relative for row in free.outputs.values())
    report = amp.transpile(DEEP, inputs={"x": array(2, 4)}, tolerance=0.7 * error, prefer="size")
    low = [row for row in report.decisions if row.precision == "low" and row.error]
    assert low
    assert all(row.remedy.startswith("in float32 it would leave ") for row in low[:10])
    high = [row for row in report.decisions if row.name in report.repaired and row.error]
    assert high
    assert all("a tolerance with room for" in row.remedy for row in high)


def test_what_nearly_overflows_is_listed_and_has_a_remedy():
    report = amp.transpile(LARGE, inputs={"x": np.float32(np.full((2, 4), 2.0))}, prefer="size", rescale="no")
    first = report.decisions[0]
    assert (first.precision, first.largest) == ("high", 40000.0)
    assert first.remedy == "a headroom of at most 1.64 (--headroom), if the data are typical"
    [note] = [note for note in report.notes if "headroom" in note]
    assert note.startswith(
        "1 value goes beyond float16's 6.55e+04 with a headroom of 4; no node that makes or reads them is float16: "
    )
    assert "4e+04 in sample 1" in note


def logarithm(smallest):
    """Return the report on a logarithm, low by force, of numbers from `smallest` on."""
    model = chain("Log ({})", "MatMul ({}, w)", w=W)
    feeds = {"x": np.full((2, 4), smallest, np.float32)}
    return amp.transpile(model, inputs=feeds, tolerance=0.5, include=["v1"], prefer="size")


def test_what_is_low_near_zero_is_noted():
    report = logarithm(1.5e-7)
    assert report.decisions[0].precision == "low"
    [note] = [note for note in report.notes if "near or below" in note]
    assert note.startswith("1 operator reads numbers near or below float16's least, 5.96e-08, where results change")
    assert f"Log '{report.decisions[0].name}' of" in note
    assert "down to 1.5e-07; smaller numbers may cost more accuracy" in note


def test_nothing_is_noted_far_from_zero():
    assert not [note for note in logarithm(0.5).notes if "near or below" in note]


def test_rows_say_what_share_of_their_numbers_becomes_zero():
    few = np.float32([[1.0, 1e-9, 2.0, 0.0]] * 2)
    report = amp.transpile(DEEP, inputs={"x": few}, prefer="size")
    assert report.decisions[0].flushed == 1 / 3
