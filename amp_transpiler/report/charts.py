"""Draws the charts of the HTML report: inline SVG, coloured by the page's own style sheet, no script."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from html import escape

from amp_transpiler.report.figures import has_floats
from amp_transpiler.report.precision import KINDS, Kind, kind_of
from amp_transpiler.report.record import OutputComparison, ReportRecord
from amp_transpiler.report.table import outputs_worst_first, printable
from amp_transpiler.report.wording import percent, precision_name

__all__ = ["error_chart", "operator_chart"]

MAX_BARS = 24
_WIDTH = 720
_LABELS = 190  # room for names, left of the bars
_VALUES = 110  # room for figures, right of the bars
_ROW = 24
_BAR = 14
# The axis of relative errors, in powers of ten: from the rounding error of float32 to an error as large as the output.
_DECADES = (-7, 0)


def operator_chart(report: ReportRecord) -> str:
    """Return an SVG bar for each operator, the most frequent first: its nodes by precision."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in report.decisions:
        counts[row.op][kind_of(row.precision)] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1].total(), item[0]))
    if len(ordered) > MAX_BARS:
        rest: collections.Counter[str] = sum((count for _, count in ordered[MAX_BARS - 1 :]), collections.Counter())
        ordered = [*ordered[: MAX_BARS - 1], (f"{len(ordered) - MAX_BARS + 1} other operators", rest)]
    longest = max((count.total() for _, count in ordered), default=1)
    names = {precision: precision_name(precision, report) for precision in KINDS}
    rows = [_operator_row(index, op, count, longest, names) for index, (op, count) in enumerate(ordered)]
    return _svg(rows, len(ordered), "Nodes by operator and precision")


def _operator_row(index: int, op: str, count: collections.Counter[str], longest: int, names: Mapping[Kind, str]) -> str:
    parts = [_label(index, op)]
    left = float(_LABELS)
    for precision in KINDS:
        width = count[precision] / longest * (_WIDTH - _LABELS - _VALUES)
        if width:
            tip = escape(f"{printable(op)}: {count[precision]} {names[precision]}")
            parts.append(_bar(index, left, width, precision, tip))
        left += width
    parts.append(_value(index, left, f"{count['low']} of {count.total()} {names['low']}"))
    return "".join(parts)


def error_chart(outputs: Sequence[OutputComparison]) -> str:
    """Return an SVG bar for the relative error of each floating-point output, worst first, on a logarithmic axis."""
    shown = [output for output in outputs_worst_first(outputs) if has_floats(output)][:MAX_BARS]
    rows = [_axis(len(shown))]
    for index, output in enumerate(shown):
        bad = output.nonfinite > 0 or not math.isfinite(output.relative)
        width = _decade_position(output.relative) - _LABELS if not bad else float(_WIDTH - _LABELS - _VALUES)
        figure = f"{output.nonfinite} non-finite" if output.nonfinite else percent(output.relative)
        tip = escape(f"{printable(output.name)}: {figure}")
        bar = _bar(index, _LABELS, max(width, 2.0), "bad" if bad else "low", tip)
        rows.append(_label(index, output.name) + bar + _value(index, _LABELS + max(width, 2.0), figure))
    return _svg(rows, len(shown) + 1, "Relative error of each output")


def _decade_position(relative: float) -> float:
    """Return where `relative` lies on the axis, in the picture's units, clamped to its ends."""
    lowest, highest = _DECADES
    decade = math.log10(relative) if relative > 0 else lowest
    share = (min(max(decade, lowest), highest) - lowest) / (highest - lowest)
    return _LABELS + share * (_WIDTH - _LABELS - _VALUES)


def _axis(rows: int) -> str:
    height = rows * _ROW
    parts = []
    for decade in range(_DECADES[0], _DECADES[1] + 1):
        position = _decade_position(10.0**decade)
        parts.append(f'<line class="grid" x1="{position:.1f}" x2="{position:.1f}" y1="0" y2="{height}"/>')
        text = percent(10.0**decade)
        parts.append(f'<text class="tick" x="{position:.1f}" y="{height + 15}" text-anchor="middle">{text}</text>')
    return "".join(parts)


def _bar(index: int, left: float, width: float, kind: str, tip: str) -> str:
    top = index * _ROW + (_ROW - _BAR) / 2
    shape = f'class="bar {kind}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_BAR}" rx="2"'
    return f"<rect {shape}><title>{tip}</title></rect>"


def _label(index: int, text: str) -> str:
    text = printable(text)
    short = text if len(text) <= 26 else "…" + text[-25:]
    middle = index * _ROW + _ROW / 2 + 4
    return (
        f'<text class="name" x="{_LABELS - 10}" y="{middle:.0f}" text-anchor="end">{escape(short)}'
        f"<title>{escape(text)}</title></text>"
    )


def _value(index: int, left: float, text: str) -> str:
    return f'<text class="figure" x="{left + 8:.1f}" y="{index * _ROW + _ROW / 2 + 4:.0f}">{escape(text)}</text>'


def _svg(rows: Sequence[str], count: int, title: str) -> str:
    height = max(count, 1) * _ROW
    size = f'viewBox="0 0 {_WIDTH} {height}"'
    return f'<svg class="chart" {size} role="img" aria-label="{escape(title)}">{"".join(rows)}</svg>'
