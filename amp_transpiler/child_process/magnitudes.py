"""Measures an array: the largest and least magnitude, counts by size, how many become zero in another format."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from amp_transpiler.precision.histogram import NO_NUMBERS, OCTAVES, Histogram

__all__ = ["Magnitudes", "measure"]

_CHUNK = 1 << 17  # elements that are looked at together: they stay in the processor's cache
_MAGNITUDE, _INFINITE, _ONE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(1)  # bits of a float32
_EXPONENT, _PAIR = np.uint32(1 << 23), np.uint32(24)  # one more in the exponent; to the right for pairs of exponents
_PAIRS, _LOWEST = 128, -128  # of exponents, and the exponent that the first pair begins at


@dataclasses.dataclass(frozen=True, slots=True)
class Magnitudes:
    """Magnitudes of the finite elements of arrays.

    Attributes:
        largest: the largest; 0 if there is none.
        smallest: the least that is not zero; infinite if there is none.
        nonzero: how many are not zero.
        flushed: how many of these are too small.
        histogram: how many of them are of which size.
    """

    largest: float = 0.0
    smallest: float = math.inf
    nonzero: int = 0
    flushed: int = 0
    histogram: Histogram = NO_NUMBERS

    def __add__(self, other: Magnitudes) -> Magnitudes:
        return Magnitudes(
            max(self.largest, other.largest),
            min(self.smallest, other.smallest),
            self.nonzero + other.nonzero,
            self.flushed + other.flushed,
            self.histogram + other.histogram,
        )


def measure(array: np.ndarray, smallest: float) -> Magnitudes:
    """Return the magnitudes of a float32 array.

    Args:
        array: the numbers.
        smallest: the least magnitude of the other format: half of it and less becomes zero.
    """
    # Without the sign, the bits of floats are in the order of their magnitudes: integers compare many times as fast.
    flat = np.ravel(np.asarray(array, np.float32)).view(np.uint32)
    too_small = int(np.float32(smallest / 2.0).view(np.uint32))
    total, counts = Magnitudes(), np.zeros(_PAIRS, np.int64)
    for start in range(0, flat.size, _CHUNK):
        bits = flat[start : start + _CHUNK] & _MAGNITUDE
        if bits.max() >= _INFINITE:
            bits = bits[bits < _INFINITE]
        nonzero = int(np.count_nonzero(bits))
        if nonzero:
            before = bits - _ONE  # zero becomes the largest of all
            least = int(before.min()) + 1
            flushed = int(np.count_nonzero(before < too_small)) if least <= too_small else 0
            # An exponent more moves the pairs, so that 2 ** -14 begins one, float16's smallest normal number.
            counts += np.bincount((bits + _EXPONENT) >> _PAIR, minlength=_PAIRS)
            counts[0] -= bits.size - nonzero
            total += Magnitudes(_float(int(bits.max())), _float(least), nonzero, flushed)
    return dataclasses.replace(total, histogram=_histogram(counts))


def _histogram(counts: np.ndarray) -> Histogram:
    """Return counts of pairs of exponents without the empty ones at both ends."""
    filled = np.flatnonzero(counts)
    if not filled.size:
        return NO_NUMBERS
    first, last = int(filled[0]), int(filled[-1])
    return Histogram(_LOWEST + OCTAVES * first, tuple(counts[first : last + 1].tolist()))


def _float(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))
