"""Outlines as an SVG picture of our own: nodes in layers, low nodes and casts in colour."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from amp_transpiler.errors import visible
from amp_transpiler.view.layout import Layout, lay_out
from amp_transpiler.view.panel import COLOURS, LEGEND, Box, Panel

__all__ = ["svg_of"]

_ROW, _GAP, _MARGIN, _HEAD = 56.0, 14.0, 20.0, 64.0
_HEIGHT = 28.0  # of a box
_LETTER = 7.4  # the width of one, about
_BETWEEN = 60.0  # two panels


def svg_of(panels: Sequence[Panel]) -> str:
    """Return an SVG document with the panels side by side."""
    placed = [(panel, _placed(panel)) for panel in panels]
    widths = [max(layout.width, _LETTER * len(panel.title), 220.0) for panel, layout in placed]
    width = sum(widths) + _BETWEEN * (len(widths) - 1) + 2 * _MARGIN
    height = max(layout.height for _, layout in placed) + _HEAD + 2 * _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}"'
    view = f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}>', f'<rect {size} fill="#ffffff"/>', *_legend()]
    left = _MARGIN
    for (panel, layout), room in zip(placed, widths, strict=True):
        lines += _panel(panel, layout, left + (room - layout.width) / 2, left)
        left += room + _BETWEEN
    return "\n".join([*lines, "</svg>"]) + "\n"


def _placed(panel: Panel) -> Layout:
    widths = [max(52.0, _LETTER * len(box.label) + 16) for box in panel.boxes]
    return lay_out(widths, [(edge.source, edge.target) for edge in panel.edges], _ROW, _GAP)


def _legend() -> Iterator[str]:
    x = _MARGIN
    for kind, label in LEGEND.items():
        fill, stroke = COLOURS[kind]
        yield f'<rect x="{x:.0f}" y="12" width="16" height="12" rx="2" fill="{fill}" stroke="{stroke}"/>'
        yield f'<text x="{x + 21:.0f}" y="22" fill="#333333">{label}</text>'
        x += 34 + _LETTER * len(label)


def _panel(panel: Panel, layout: Layout, x: float, title_x: float) -> Iterator[str]:
    yield f'<text x="{title_x:.0f}" y="{_MARGIN + 30:.0f}" font-size="15" fill="#000000">{_text(panel.title)}</text>'
    yield f'<g transform="translate({x:.1f} {_HEAD + _MARGIN:.1f})">'
    for edge, points in zip(panel.edges, layout.edges, strict=True):
        colour = COLOURS[edge.kind][1]
        yield (
            f'<path d="{_path(points)}" fill="none" stroke="{colour}" stroke-width="1.2">'
            f"<title>{_text(edge.title)}</title></path>"
        )
    for box, (cx, cy) in zip(panel.boxes, layout.places, strict=True):
        yield from _box(box, cx, cy)
    yield "</g>"


def _box(box: Box, cx: float, cy: float) -> Iterator[str]:
    fill, stroke = COLOURS[box.kind]
    width = max(52.0, _LETTER * len(box.label) + 16)
    dash = ' stroke-dasharray="4 2"' if box.dashed else ""
    radius = _HEIGHT / 2 if box.kind == "value" else 3
    yield f'<g class="{box.kind}"><title>{_text(box.title)}</title>'
    yield (
        f'<rect x="{cx - width / 2:.1f}" y="{cy - _HEIGHT / 2:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" '
        f'rx="{radius:.0f}" fill="{fill}" stroke="{stroke}"{dash}/>'
    )
    yield f'<text x="{cx:.1f}" y="{cy + 4:.1f}" text-anchor="middle" fill="#111111">{_text(box.label)}</text></g>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return a curve that leaves and enters every point vertically."""
    (x, y), *rest = points
    y += _HEIGHT / 2
    parts = [f"M{x:.1f} {y:.1f}"]
    for index, (to_x, at) in enumerate(rest):
        to_y = at - (_HEIGHT / 2 if index == len(rest) - 1 else 0)
        middle = (y + to_y) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return "".join(parts)


def _text(text: str) -> str:
    """Return text that XML can hold, line breaks included."""
    return "&#10;".join(html.escape(visible(line, None)) for line in text.split("\n"))
