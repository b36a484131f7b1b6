"""Corrects predicted errors by what was measured of whole choices.

A prediction is a sum of terms: what each low node adds, and each cast. A measured choice says what its terms add up to
in truth. Iterative proportional fitting gives the terms nearest to those predicted that agree with all measured
choices: the terms of each choice in turn are multiplied by what was found over what they sum up to. So a node that two
failing choices have in common is blamed for both, and one of a choice that holds is not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

__all__ = ["Measurement", "Term", "corrected"]

Term: TypeAlias = tuple[str, str]
"""A part that a choice has or lacks: `("node", name)` or `("cast", value)`."""

_ROUNDS = 40  # measured choices may contradict each other: where errors cancel, less is low with more error
_AGREE = 1e-3  # of a sum: terms that differ from all that was found by less agree with it
_UNFORESEEN = 1e-4  # what the terms of a choice add besides what is predicted, so that any of them can be blamed
_LEAST = 1 / 16  # of a predicted term, what it keeps where measured choices contradict each other


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """A measured choice.

    Attributes:
        parts: term -> how much of it counts: 1 but for a cast that not all readers feel.
        found: what the terms add up to in truth.
    """

    parts: Mapping[Term, float]
    found: float


def corrected(predicted: Mapping[Term, float], measured: Sequence[Measurement]) -> dict[Term, float]:
    """Return the terms nearest to those predicted that agree with what was measured, the last as well as possible.

    Args:
        predicted: the terms. An infinite one stays as it is.
        measured: in the order of time; their finds are finite.
    """
    names = [name for name, error in predicted.items() if math.isfinite(error)]
    place = {name: index for index, name in enumerate(names)}
    terms = np.array([predicted[name] for name in names], np.float64)
    rows = []
    for measurement in measured:
        row = np.zeros(len(names))
        for name, part in measurement.parts.items():
            if name in place:
                row[place[name]] = part
        rows.append((row, row > 0.0, measurement.found))
    terms = terms + _UNFORESEEN / max(1.0, max((row.sum() for row, _, _ in rows), default=0.0))
    floor = _LEAST * terms
    for _ in range(_ROUNDS):
        off = 0.0
        for row, is_part, target in rows:
            total = float(row @ terms)
            if total > 0.0:
                off = max(off, abs(target - total) / total)
                np.maximum(terms * (target / total), floor, out=terms, where=is_part)
        if off < _AGREE:
            break
    return {**predicted, **dict(zip(names, map(float, terms), strict=True))}
