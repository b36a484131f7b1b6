"""Says at which exponents a value or a constant fits a low format: not too large, and not lost among small numbers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from amp_transpiler.graph.dtypes import FLOAT32, LowFormat
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.precision.histogram import OCTAVES
from amp_transpiler.rescale.places import Numbers

__all__ = ["Fit", "fit_of_numbers", "fit_of_range"]

_SMALL_LOSS = 2.0**-7  # of a norm: the share that a constant may lose by rounding (`precision/ranges.py`)
_FEW_QUIET = 0.25  # of the numbers: so many may go below the normal numbers of the format
_KEPT = 2.0**6  # times the least number of the format: so large must a bound be (`precision/near_zero.py`)
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
    powers = _powers(exponents)
    histogram = seen.histogram
    counts = _Counts(histogram.lowest, OCTAVES, histogram.counts)
    return _fit(seen.largest * headroom * powers <= low.max, counts, low, exponents, np.ones(len(exponents), bool))


def fit_of_numbers(numbers: Numbers, low: LowFormat, exponents: range) -> Fit:
    """Return the fit of a constant, or of an epsilon."""
    powers, least = _powers(exponents), 2.0**_LEAST_NORMAL
    largest = numbers.largest * powers
    exact = np.ones(len(exponents), bool)
    if not numbers.are_scaled_freely:
        exact = (numbers.smallest * powers >= least) & (largest <= FLOAT32.max) & (numbers.smallest >= least)
        exact[-exponents.start] = True
    counts = _Counts(numbers.lowest, 1, numbers.counts)
    if numbers.size == 1:  # an epsilon may be rounded, but as a bound it says something only from there on
        held = (largest <= low.max) & ((largest >= _KEPT * low.smallest) | (numbers.largest == 0.0))
        return Fit(exponents.start, held, np.zeros(len(exponents)), exact)
    return _fit(largest <= low.max, counts, low, exponents, exact)


def _powers(exponents: range) -> np.ndarray:
    powers: np.ndarray = np.exp2(np.arange(exponents.start, exponents.stop, dtype=np.float64))
    return powers


@dataclasses.dataclass(frozen=True, slots=True)
class _Counts:
    """How many numbers are of which magnitude: `counts[i]` from `2 ** (lowest + i * octaves)` on."""

    lowest: int
    octaves: int
    counts: tuple[int, ...]


def _fit(held: np.ndarray, counted: _Counts, low: LowFormat, exponents: range, exact: np.ndarray) -> Fit:
    if not counted.counts:  # zeros
        return Fit(exponents.start, held, np.zeros(len(exponents)), exact)
    step = math.log2(low.smallest)
    normal = round(step) + low.digits - 1
    counts = np.array(counted.counts, np.float64)
    begins = counted.lowest + counted.octaves * np.arange(len(counts))
    scaled = begins + np.arange(exponents.start, exponents.stop)[:, None]  # a row for each exponent
    below = scaled < normal
    quiet = (counts * below).sum(axis=1) / counts.sum()
    magnitude = np.exp2(np.clip(scaled + counted.octaves / 2.0, -300.0, 300.0))
    error = np.minimum(magnitude, 2.0**step / math.sqrt(12.0))  # of one number; at most all of it
    norm = (counts * magnitude**2).sum(axis=1)
    loss = np.sqrt((counts * error**2 * below).sum(axis=1) / np.maximum(norm, 1e-300))
    fits = held & (loss <= _SMALL_LOSS) & (quiet <= max(_FEW_QUIET, float(quiet[-exponents.start])))
    return Fit(exponents.start, fits, quiet, exact)
