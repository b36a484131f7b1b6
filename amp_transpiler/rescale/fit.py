"""Says at which exponents a value or a constant fits a low format: not too large, and not lost among small numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from amp_transpiler.graph.dtypes import FLOAT32, LowFormat
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.precision.histogram import OCTAVES
from amp_transpiler.rescale.places import Numbers

__all__ = ["Fit", "fit_of_numbers", "fit_of_range"]

_SMALL_LOSS = 2.0**-7  # of a norm: the share that a constant may lose by rounding (`precision/ranges.py`)
_FEW_QUIET = 0.25  # of the numbers: so many may go below the normal numbers of the format
_LEAST_NORMAL = -126  # the exponent of float32's: a constant below it would lose bits


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """Which exponents suit some numbers.

    Attributes:
        lowest: the least exponent that is described.
        fits: for each exponent from there on, whether the low format holds the numbers.
        quiet: for each, the share of the numbers that are below the format's normal ones.
        is_exact: for each, whether float32 holds them without a loss.
    """

    lowest: int
    fits: np.ndarray
    quiet: np.ndarray
    is_exact: np.ndarray


def fit_of_range(seen: TensorRange, low: LowFormat, headroom: float, exponents: range) -> Fit:
    """Return the fit of a value.

    Args:
        seen: its range.
        low: the low format.
        headroom: how many times the range must fit.
        exponents: those to look at.
    """
    histogram = seen.histogram
    shares = _Shares(histogram.lowest, OCTAVES, histogram.counts, low)
    largest = seen.largest * headroom
    held = [largest * 2.0**exponent <= low.max for exponent in exponents]
    return _fit(held, shares, exponents, np.ones(len(exponents), bool))


def fit_of_numbers(numbers: Numbers, low: LowFormat, exponents: range) -> Fit:
    """Return the fit of a constant, or of an epsilon."""
    shares = _Shares(numbers.lowest, 1, numbers.counts, low)
    held = [numbers.largest * 2.0**exponent <= low.max for exponent in exponents]
    exact = [
        exponent == 0
        or numbers.are_scaled_freely
        or (
            numbers.smallest * 2.0**exponent >= 2.0**_LEAST_NORMAL
            and numbers.largest * 2.0**exponent <= FLOAT32.max
            and numbers.smallest >= 2.0**_LEAST_NORMAL
        )
        for exponent in exponents
    ]
    return _fit(held, shares, exponents, np.array(exact))


def _fit(held: Sequence[bool], shares: _Shares, exponents: range, exact: np.ndarray) -> Fit:
    quiet = np.array([shares.quiet(exponent) for exponent in exponents])
    loss = np.array([shares.loss(exponent) for exponent in exponents])
    fits = np.array(held) & (loss <= _SMALL_LOSS) & (quiet <= max(_FEW_QUIET, shares.quiet(0)))
    return Fit(exponents.start, fits, quiet, exact)


class _Shares:
    """What becomes of numbers below the normal ones of a format, from their counts by magnitude."""

    def __init__(self, lowest: int, octaves: int, counts: Sequence[int], low: LowFormat) -> None:
        self._powers = lowest + octaves * np.arange(len(counts))
        self._counts = np.array(counts, np.float64)
        self._middle = self._powers + octaves / 2.0
        self._normal = round(math.log2(low.smallest)) + low.digits - 1
        self._step = math.log2(low.smallest)

    def quiet(self, exponent: int) -> float:
        """Return the share of the numbers that are below the normal ones."""
        below = self._counts[self._powers + exponent < self._normal].sum()
        return float(below / max(1.0, self._counts.sum()))

    def loss(self, exponent: int) -> float:
        """Return the norm of what rounding takes of the numbers below the normal ones, over the norm of all."""
        if not self._counts.size:
            return 0.0
        scaled = self._middle + exponent
        magnitude = np.exp2(np.clip(scaled, -300.0, 300.0))
        error = np.minimum(magnitude, 2.0**self._step / math.sqrt(12.0))  # of one number; at most all of it
        below = self._powers + exponent < self._normal
        norm = float((self._counts * magnitude**2).sum())
        return math.sqrt(float((self._counts * error**2)[below].sum()) / norm) if norm else 0.0
