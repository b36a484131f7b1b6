"""Draws the magnitudes of a node's numbers as a small picture in a table: inline SVG, coloured by the style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.precision.histogram import OCTAVES, Histogram

__all__ = ["range_picture", "range_words"]

_BAR, _HEIGHT = 4, 22  # of the picture's units, which are pixels
_MOST_WIDTH = 128
_LEAST = 1.5  # height of a bar that stands for anything at all
_BELOW, _ABOVE = 14, 8  # powers of two that are shown beyond the normal numbers of a format
_ENDS = (-128, 128)  # of float32


def range_words(seen: Histogram) -> str:
    """Return where the numbers are: `2^-6 to 2^4`."""
    if not seen.counts:
        return "zero"
    return f"2^{seen.lowest} to 2^{seen.lowest + OCTAVES * len(seen.counts)}"


def range_picture(seen: Histogram, low: LowFormat) -> str:
    """Return a histogram with a line at the smallest normal number of a format, and one at its largest.

    Every picture for a format has the same scale, so that rows compare. What is beyond its ends is in its last bars. A
    bar is as high as its share of the highest one; the fewest numbers are still seen.

    Args:
        seen: the numbers.
        low: the format. Numbers beyond its largest, and below its smallest normal one, have other colours.
    """
    normal, end = _limits(low)
    first, last = max(_ENDS[0], normal - _BELOW), min(_ENDS[1], end + _ABOVE)
    bars = [0] * ((last - first) // OCTAVES)
    for index, count in enumerate(seen.counts):
        place = (seen.lowest - first) // OCTAVES + index
        bars[min(max(place, 0), len(bars) - 1)] += count
    width = min(_BAR, _MOST_WIDTH / len(bars))
    highest = max(bars) or 1
    at_normal, at_end = (normal - first) // OCTAVES, (end - first) // OCTAVES
    parts = [
        _bars(kind, range(start, stop), bars, width, highest)
        for kind, start, stop in (
            ("below", 0, at_normal),
            ("inside", at_normal, at_end),
            ("beyond", at_end, len(bars)),
        )
    ]
    lines = "".join(f"M{width * place:g} 0V{_HEIGHT}" for place in (at_normal, at_end))
    words = f"{range_words(seen)}; {low.name} has normal numbers from 2^{normal} to {low.max:.5g}"
    size = f'width="{width * len(bars):g}" height="{_HEIGHT}"'
    return (
        f'<svg class="range" {size} role="img"><title>{escape(words)}</title>'
        f'{"".join(parts)}<path class="limit" d="{lines}"/></svg>'
    )


def _limits(low: LowFormat) -> tuple[int, int]:
    """Return the power of two of the smallest normal number, and the one that the largest number is just below."""
    return round(math.log2(low.smallest)) + low.digits - 1, round(math.log2(low.max))


def _bars(kind: str, places: Iterable[int], bars: list[int], width: float, highest: int) -> str:
    drawn = []
    for place in places:
        if bars[place]:
            height = max(_LEAST, bars[place] / highest * _HEIGHT)
            drawn.append(f"M{width * place:g} {_HEIGHT}v-{height:.3g}h{width:g}v{height:.3g}z")
    return f'<path class="{kind}" d="{"".join(drawn)}"/>' if drawn else ""
