"""Draws the errors of a diagnosis in the order of computation: inline SVG, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape

from amp_transpiler.report.diagnosis import Diagnosis, NodeDiagnosis
from amp_transpiler.report.diagnosis_text import error_of, own_error_of, share_or_infinite
from amp_transpiler.report.table import printable
from amp_transpiler.report.wording import percent

__all__ = ["error_course"]

_WIDTH, _HEIGHT = 720.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 24.0, 28.0, 46.0
_INFINITE = 22.0  # height of the band above the axis, for what is infinite or no number
_DECADES = 8  # the most that are shown
_TICKS = 4
_COLUMNS = 600  # places from left to right: of the results at one place the one with the largest error is drawn


def error_course(diagnosis: Diagnosis) -> str:
    """Return a picture of all errors: full dots for the low model's, open ones for a node by itself.

    The guilty node has a ring, and the path of its fault is a line. Errors are on a logarithmic axis; those below it,
    and none at all, lie on its lower end. However many nodes there are, the picture has at most some thousand dots.
    """
    rows = diagnosis.nodes
    if not any(error_of(row) != 0 or own_error_of(row) != 0 for row in rows):
        return ""
    scale = _Scale(rows)
    on_path = {name: place for place, name in enumerate(diagnosis.path)}
    shown = {*on_path, *([] if diagnosis.guilty is None else [diagnosis.guilty.node])}
    drawn = list(_drawn(rows, shown))
    parts = [*scale.axes(), _path(scale, drawn, on_path)]
    parts += [_dot(scale, row, "alone", own_error_of(row)) for row in drawn if own_error_of(row) != 0]
    parts += [_dot(scale, row, f"error{' path' if row.node in on_path else ''}", error_of(row)) for row in drawn]
    if diagnosis.guilty is not None:
        guilty = (row for row in drawn if row.node == diagnosis.guilty.node and row.value == diagnosis.guilty.value)
        parts += [part for row in guilty for part in _ring(scale, row)]
    label = "Error of each result, in the order of computation"
    return (
        f'<svg class="chart course" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def _drawn(rows: Sequence[NodeDiagnosis], shown: Collection[str]) -> Iterator[NodeDiagnosis]:
    """Yield the results that have a dot: those of the nodes that must be shown, and the worst one of each place."""
    per_place = max(1.0, len(rows) / _COLUMNS)
    worst: dict[int, set[int]] = {}
    for error in (error_of, own_error_of):
        best: dict[int, int] = {}
        for index, row in enumerate(rows):
            place = int(index / per_place)
            if place not in best or _size(error(row)) > _size(error(rows[best[place]])):
                best[place] = index
        for place, index in best.items():
            worst.setdefault(place, set()).add(index)
    for index, row in enumerate(rows):
        if row.node in shown or index in worst[int(index / per_place)]:
            yield row


def _size(error: float) -> float:
    """Return an error as it compares with others: what is no number is as bad as what is infinite."""
    return math.inf if math.isnan(error) else error


class _Scale:
    """Holds where orders and errors lie in the picture."""

    def __init__(self, rows: Sequence[NodeDiagnosis]) -> None:
        every = [error for row in rows for error in (error_of(row), own_error_of(row))]
        errors = [error for error in every if 0 < error < math.inf]
        self._low = math.floor(math.log10(min(errors))) if errors else -4
        self._high = max(math.ceil(math.log10(max(errors))) if errors else 0, self._low + 1)
        self._low = max(self._low, self._high - _DECADES)
        self._first, self._last = rows[0].order, rows[-1].order
        self._has_infinite = not all(map(math.isfinite, every))

    def across(self, order: int) -> float:
        """Return where a result lies from left to right."""
        if self._first == self._last:
            return (_LEFT + _WIDTH - _RIGHT) / 2
        return _LEFT + (order - self._first) / (self._last - self._first) * (_WIDTH - _RIGHT - _LEFT)

    def down(self, error: float) -> float:
        """Return where an error lies from top to bottom."""
        top = _TOP + (_INFINITE if self._has_infinite else 0.0)
        if not math.isfinite(error):
            return _TOP
        decade = math.log10(error) if error > 0 else float(self._low)
        share = (min(max(decade, self._low), self._high) - self._low) / (self._high - self._low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - top)

    def axes(self) -> Iterator[str]:
        """Yield lines and labels."""
        heights = [(self.down(10.0**decade), percent(10.0**decade)) for decade in range(self._low, self._high + 1)]
        for y, text in [*heights, *([(_TOP, "infinite")] if self._has_infinite else [])]:
            yield f'<line class="grid" x1="{_LEFT:.0f}" x2="{_WIDTH - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield _tick(_LEFT - 8, y + 4, text, "end")
        for order in sorted({round(self._first + (self._last - self._first) * i / _TICKS) for i in range(_TICKS + 1)}):
            yield _tick(self.across(order), _HEIGHT - _BOTTOM + 18, str(order), "middle")
        yield _tick((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "order of computation", "middle")


def _path(scale: _Scale, rows: Iterable[NodeDiagnosis], on_path: Mapping[str, int]) -> str:
    ordered = sorted((row for row in rows if row.node in on_path), key=lambda row: (on_path[row.node], row.order))
    points = [f"{scale.across(row.order):.1f} {scale.down(error_of(row)):.1f}" for row in ordered]
    return f'<path class="path" d="M{"L".join(points)}"/>' if points else ""


def _dot(scale: _Scale, row: NodeDiagnosis, kind: str, error: float) -> str:
    words = f"{printable(row.node)} ({printable(row.op)}): error {share_or_infinite(error_of(row))}, by itself "
    title = escape(words + share_or_infinite(own_error_of(row)))
    place = f'cx="{scale.across(row.order):.1f}" cy="{scale.down(error):.1f}"'
    return f'<circle class="{kind}" {place} r="3"><title>{title}</title></circle>'


def _ring(scale: _Scale, row: NodeDiagnosis) -> Iterator[str]:
    x, y = scale.across(row.order), scale.down(error_of(row))
    yield f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="8"/>'
    anchor, side = ("end", -12) if x > _WIDTH / 2 else ("start", 12)
    yield f'<text x="{x + side:.1f}" y="{y - 9:.1f}" text-anchor="{anchor}">guilty</text>'


def _tick(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
