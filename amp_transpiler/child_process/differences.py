"""Measures how far results of two programs lie apart, element by element, where the arrays are."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from amp_transpiler.child_process.magnitudes import Magnitudes, measure

__all__ = ["Difference", "Measured", "difference", "measured"]

_CHUNK = 1 << 20  # elements that are looked at together: float64 copies of them stay small


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a result from the one that it should be; sums over elements, so that samples add up.

    Attributes:
        square: of the differences, over elements that are finite in both; for integers how many elements differ.
        norm: of the squares of the numbers that it should be; for integers how many there are.
        count: how many elements should be finite.
        infinite: how many of these are not.
        nonzero: how many elements should not be zero.
        vanished: how many of these are.
        largest: the largest magnitude that it has itself.
        has_shape: both have the same shape. Where they do not, nothing else is compared.
    """

    square: float = 0.0
    norm: float = 0.0
    count: int = 0
    infinite: int = 0
    nonzero: int = 0
    vanished: int = 0
    largest: float = 0.0
    has_shape: bool = True

    def __add__(self, other: Difference) -> Difference:
        return Difference(
            self.square + other.square,
            self.norm + other.norm,
            self.count + other.count,
            self.infinite + other.infinite,
            self.nonzero + other.nonzero,
            self.vanished + other.vanished,
            max(self.largest, other.largest),
            self.has_shape and other.has_shape,
        )

    @property
    def error(self) -> float:
        """The norm of the difference over the norm; for integers the share that differs. Infinite for another shape."""
        if not self.has_shape:
            return float("inf")
        if not self.square:
            return 0.0
        return float("inf") if not self.norm else float((self.square / self.norm) ** 0.5)


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What is measured of one result.

    Attributes:
        magnitudes: its own.
        rounding: the square of what rounding it to the low format changes; infinite where it is beyond the format.
        low: how far the low program's is from it.
        own: how far what the low node makes of the same inputs is from it.
    """

    magnitudes: Magnitudes = dataclasses.field(default_factory=Magnitudes)
    rounding: float = 0.0
    low: Difference = dataclasses.field(default_factory=Difference)
    own: Difference = dataclasses.field(default_factory=Difference)

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            self.magnitudes + other.magnitudes,
            self.rounding + other.rounding,
            self.low + other.low,
            self.own + other.own,
        )


def measured(
    reference: np.ndarray, low: np.ndarray, own: np.ndarray, dtype: np.dtype[Any], smallest: float
) -> Measured:
    """Measure a result.

    Args:
        reference: in float32, or integers.
        low: the low program's.
        own: what the low node makes of the reference's inputs.
        dtype: that of the low format.
        smallest: the least magnitude of the low format.
    """
    magnitudes, rounding = Magnitudes(), 0.0
    if reference.dtype == np.float32:
        magnitudes = measure(reference, smallest)
        rounding = _rounding(reference.reshape(-1), dtype)
    return Measured(magnitudes, rounding, difference(reference, low), difference(reference, own))


def _rounding(flat: np.ndarray, dtype: np.dtype[Any]) -> float:
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, _CHUNK):
            chunk = flat[start : start + _CHUNK]
            error = (chunk.astype(dtype).astype(np.float32) - chunk)[np.isfinite(chunk)]
            total += float(np.square(error.astype(np.float64)).sum())
    return total


def difference(reference: np.ndarray, other: np.ndarray) -> Difference:
    """Return how far an array is from the one that it should be."""
    if reference.shape != other.shape:
        return Difference(has_shape=False)
    if reference.dtype.kind != "f":
        differing = int(np.count_nonzero(reference != other))
        return Difference(square=float(differing), norm=float(reference.size), count=reference.size)
    total = Difference()
    expected, got = reference.reshape(-1), other.reshape(-1)
    for start in range(0, expected.size, _CHUNK):
        total += _difference(expected[start : start + _CHUNK], got[start : start + _CHUNK])
    return total


def _difference(expected: np.ndarray, got: np.ndarray) -> Difference:
    is_finite = np.isfinite(expected)
    wide, low = expected[is_finite].astype(np.float64), got[is_finite].astype(np.float64)
    is_low_finite = np.isfinite(low)
    error = (low - wide)[is_low_finite]
    magnitudes = np.abs(low[is_low_finite])
    return Difference(
        float(np.square(error).sum()),
        float(np.square(wide).sum()),
        int(wide.size),
        int(wide.size - np.count_nonzero(is_low_finite)),
        int(np.count_nonzero(wide)),
        int(np.count_nonzero((wide != 0.0) & (low == 0.0))),
        float(magnitudes.max()) if magnitudes.size else 0.0,
    )
