"""Draws the frontier: error against predicted time, or against the share of nodes in the low format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from amp_transpiler.report.record import FrontierPoint
from amp_transpiler.report.wording import human_time, percent

__all__ = ["frontier_chart"]

_WIDTH, _HEIGHT = 720.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 96.0, 40.0, 20.0, 46.0
_TICKS = 4
_MOST_DECADES = 5


def frontier_chart(points: Sequence[FrontierPoint], low: str) -> str:
    """Return an SVG picture: a dot a point, the chosen one in a ring, errors on a logarithmic axis.

    Dots are full where the error was measured, and open where it is predicted.

    Args:
        points: at least one.
        low: the low format.
    """
    timed = all(point.milliseconds is not None for point in points)
    across = [point.milliseconds or 0.0 if timed else point.low_share for point in points]
    places = list(zip(_scaled(across, _LEFT, _WIDTH - _RIGHT), _heights(points), strict=True))
    # From the most exact point to the least: where time is not what was minimised, the line may turn back.
    order = sorted(range(len(points)), key=lambda index: (points[index].error, across[index]))
    line = " ".join(f"{'L' if place else 'M'}{places[i][0]:.1f} {places[i][1]:.1f}" for place, i in enumerate(order))
    name = "predicted time of a run" if timed else f"share of {low} nodes"
    parts = [*_axes(points, across, name, timed=timed), f'<path class="path" d="{line}"/>']
    for point, (x, y) in zip(points, places, strict=True):
        parts.extend(_dot(point, x, y, low))
    label = f"Error and {name} of each choice"
    return (
        f'<svg class="chart frontier" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def _scaled(numbers: Sequence[float], first: float, last: float) -> list[float]:
    least, most = min(numbers), max(numbers)
    if least == most:
        return [(first + last) / 2 for _ in numbers]
    return [first + (number - least) / (most - least) * (last - first) for number in numbers]


def _decades(points: Sequence[FrontierPoint]) -> tuple[int, int]:
    """Return the powers of ten that the picture shows; errors below it, and none at all, are at its lower end."""
    errors = [point.error for point in points if 0 < point.error < math.inf]
    if not errors:
        return -4, 0
    low, high = math.floor(math.log10(min(errors))), math.ceil(math.log10(max(errors)))
    if any(point.error == 0 for point in points):
        low -= 1
    high = max(high, low + 1)
    return max(low, high - _MOST_DECADES), high


def _heights(points: Sequence[FrontierPoint]) -> list[float]:
    return [_height(point.error, *_decades(points)) for point in points]


def _height(error: float, low: int, high: int) -> float:
    if error <= 0:
        decade: float = low
    else:
        decade = math.log10(error) if error < math.inf else high
    share = (min(max(decade, low), high) - low) / (high - low)
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)


def _axes(points: Sequence[FrontierPoint], across: Sequence[float], name: str, *, timed: bool) -> Iterator[str]:
    low, high = _decades(points)
    for decade in range(low, high + 1):
        y = _height(10.0**decade, low, high)
        below = [point.error for point in points if point.error < 10.0**low] if decade == low else []
        yield f'<line class="grid" x1="{_LEFT:.0f}" x2="{_WIDTH - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _tick(_LEFT - 8, y + 4, _bound(low, below) if below else percent(10.0**decade), "end")
    least, most = min(across), max(across)
    for index in range(_TICKS + 1):
        number = least + (most - least) * index / _TICKS
        x = _LEFT + (_WIDTH - _RIGHT - _LEFT) * index / _TICKS
        yield _tick(x, _HEIGHT - _BOTTOM + 18, human_time(number) if timed else percent(number), "middle")
    yield _tick((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, name, "middle")


def _bound(low: int, below: Sequence[float]) -> str:
    """Return what the lower end of the axis stands for: no error, or any that is smaller."""
    return f"below {percent(10.0**low)}" if any(below) else "0%"


def _tick(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _dot(point: FrontierPoint, x: float, y: float, low: str) -> Iterator[str]:
    basis = "measured" if point.measured else "predicted"
    time = "" if point.milliseconds is None else f", {human_time(point.milliseconds)}"
    words = f"{percent(point.error)} {basis}{time}, {percent(point.low_share)} {low}, {point.casts} casts"
    yield f'<circle class="{basis}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(words)}</title></circle>'
    if point.chosen:
        yield f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="10"/>'
        anchor, side = ("end", -16) if x > _WIDTH / 2 else ("start", 16)
        yield f'<text x="{x + side:.1f}" y="{y - 10:.1f}" text-anchor="{anchor}">chosen</text>'
