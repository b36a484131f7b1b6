"""The magnitudes of an array: the largest, the least, and how many would become zero in another format."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

__all__ = ["Magnitudes", "measure"]

_CHUNK = 1_000_000  # elements that are looked at together


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
    """Return the magnitudes of a float array.

    Args:
        array: the numbers.
        smallest: the least magnitude of the other format: half of it and less becomes zero.
    """
    total, flat = Magnitudes(), np.ravel(array)
    for start in range(0, flat.size, _CHUNK):
        size = np.abs(flat[start : start + _CHUNK])
        size = size[np.isfinite(size) & (size > 0.0)]
        if size.size:
            flushed = int(np.count_nonzero(size <= smallest / 2.0))
            total += Magnitudes(float(size.max()), float(size.min()), size.size, flushed)
    return total
