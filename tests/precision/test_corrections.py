"""Predicted errors that measured ones correct: who is blamed, and who is cleared."""

from __future__ import annotations

import math

import pytest

from amp_transpiler.precision.corrections import Measurement, corrected

A, B, C, X = ("node", "a"), ("node", "b"), ("node", "c"), ("cast", "x")


def measured(found, *terms, **parts):
    return Measurement(dict.fromkeys(terms, 1.0) | {("cast", value): part for value, part in parts.items()}, found)


# name: (predicted, measured in this order, expected)
CASES = {
    "nothing measured": ({A: 0.3, B: 0.0}, [], {A: 0.3, B: 0.0}),
    "all are off by the same": ({A: 0.3, B: 0.1}, [measured(0.8, A, B)], {A: 0.6, B: 0.2}),
    "less than predicted": ({A: 0.3, B: 0.1}, [measured(0.2, A, B)], {A: 0.15, B: 0.05}),
    "what is cleared leaves the others to blame": (
        {A: 0.3, B: 0.3, C: 0.3},
        [measured(1.5, A, B, C), measured(0.3, A, B)],
        {A: 0.15, B: 0.15, C: 1.2},
    ),
    "what two that fail have in common": (
        {A: 0.1, B: 0.1, C: 0.1},
        [measured(1.0, A, B), measured(1.0, A, C)],
        {A: 0.73, B: 0.27, C: 0.27},
    ),
    "nothing was predicted of any": ({A: 0.0, B: 0.0}, [measured(4.0, A, B)], {A: 2.0, B: 2.0}),
    "nothing was predicted of the one to blame": (
        {A: 0.4, B: 0.0},
        [measured(0.4, A), measured(1.2, A, B)],
        {A: 0.4, B: 0.8},
    ),
    "a cast that half of its readers feel": ({A: 0.2, X: 0.4}, [measured(0.8, A, x=0.5)], {A: 0.4, X: 0.8}),
    "what was not part of it stays": ({A: 0.2, B: 0.7}, [measured(0.1, A)], {A: 0.1, B: 0.7}),
    "what overflows stays": ({A: math.inf, B: 0.2}, [measured(0.4, B)], {A: math.inf, B: 0.4}),
}


@pytest.mark.parametrize("name", CASES)
def test_terms_agree_with_what_was_measured(name):
    predicted, runs, expected = CASES[name]
    assert corrected(predicted, runs) == pytest.approx(expected, abs=0.02)


def test_what_contradicts_itself_leaves_every_term_some_error():
    """Less is low with more error: the errors cancel once the rest is low as well."""
    terms = corrected({A: 0.2, B: 0.2}, [measured(1.5, A), measured(0.4, A, B)])
    assert terms[B] >= 0.2 / 16
    assert terms[A] + terms[B] == pytest.approx(0.4, rel=0.1), "the last one counts most"
