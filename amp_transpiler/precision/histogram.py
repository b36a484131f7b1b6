"""Counts how many numbers are of which magnitude: by powers of two, two powers together."""

from __future__ import annotations

import dataclasses

__all__ = ["NO_NUMBERS", "OCTAVES", "Histogram"]

OCTAVES = 2
"""Powers of two that are counted together. The limits of float16, bfloat16 and float32 lie between two counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of finite numbers other than zero, by magnitude.

    Attributes:
        lowest: the power of two that the first count begins at, even.
        counts: `counts[i]` numbers have a magnitude from `2 ** (lowest + 2 * i)` up to four times that. Neither the
            first nor the last count is zero; empty if there are no numbers. What is below `2 ** -126`, where float32's
            normal numbers end, counts as `2 ** -128`.
    """

    lowest: int = 0
    counts: tuple[int, ...] = ()

    def __add__(self, other: Histogram) -> Histogram:
        if not (self.counts and other.counts):
            return self if self.counts else other
        lowest = min(self.lowest, other.lowest)
        counts = [0] * max((part.lowest - lowest) // OCTAVES + len(part.counts) for part in (self, other))
        for part in (self, other):
            for index, count in enumerate(part.counts, start=(part.lowest - lowest) // OCTAVES):
                counts[index] += count
        return Histogram(lowest, tuple(counts))


NO_NUMBERS = Histogram()
