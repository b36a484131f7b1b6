"""The magnitudes of an array: the largest, the least, and how many would become zero in another format."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

__all__ = ["Magnitudes", "measure"]

_CHUNK = 1 << 17  # elements that are looked at together: they stay in the processor's cache
_MAGNITUDE, _INFINITE, _ONE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(1)  # bits of a float32


@dataclasses.dataclass(frozen=True, slots=True)
class Magnitudes:
    """Magnitudes of the finite elements of arrays.

    Attributes:
        largest: the largest; 0 if there is none.
        smallest: the least that is not zero; infinite if there is none.
        nonzero: how many are not zero.
        flushed: how many of these are too small.
    """

    largest: float = 0.0
    smallest: float = math.inf
    nonzero: int = 0
    flushed: int = 0

    def __add__(self, other: Magnitudes) -> Magnitudes:
        return Magnitudes(
            max(self.largest, other.largest),
            min(self.smallest, other.smallest),
            self.nonzero + other.nonzero,
            self.flushed + other.flushed,
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
    total = Magnitudes()
    for start in range(0, flat.size, _CHUNK):
        bits = flat[start : start + _CHUNK] & _MAGNITUDE
        if bits.max() >= _INFINITE:
            bits = bits[bits < _INFINITE]
        nonzero = int(np.count_nonzero(bits))
        if nonzero:
            before = bits - _ONE  # zero becomes the largest of all
            least = int(before.min()) + 1
            flushed = int(np.count_nonzero(before < too_small)) if least <= too_small else 0
            total += Magnitudes(_float(int(bits.max())), _float(least), nonzero, flushed)
    return total


def _float(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))
