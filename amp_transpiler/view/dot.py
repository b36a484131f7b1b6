"""Panels as graphviz text, and graphviz's own drawing where the program `dot` is installed."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from amp_transpiler.view.panel import COLOURS, Panel

__all__ = ["dot_text", "drawn_by_dot"]

logger = logging.getLogger(__name__)

_SECONDS = 30
_MOST = 1500  # boxes; beyond that dot takes minutes


def dot_text(panels: Sequence[Panel]) -> str:
    """Return the panels as one graph in graphviz's language, a cluster each."""
    lines = [
        "digraph program {",
        '  node [shape=box, style="filled,rounded", fontname="sans-serif", fontsize=11];',
        "  edge [arrowsize=0.6];",
    ]
    for number, panel in enumerate(panels):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(panel.title)};", '    color="#cccccc";']
        lines += [f"    {line}" for line in _lines(number, panel)]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _lines(number: int, panel: Panel) -> Iterator[str]:
    for index, box in enumerate(panel.boxes):
        fill, stroke = COLOURS[box.kind]
        style = ', style="filled,dashed"' if box.dashed else ""
        yield (
            f"p{number}_{index} [label={_quoted(box.label)}, tooltip={_quoted(box.title)}, "
            f'fillcolor="{fill}", color="{stroke}"{style}];'
        )
    for edge in panel.edges:
        colour = COLOURS[edge.kind][1]
        yield (f'p{number}_{edge.source} -> p{number}_{edge.target} [color="{colour}", tooltip={_quoted(edge.title)}];')


def drawn_by_dot(panels: Sequence[Panel]) -> str | None:
    """Return graphviz's SVG; None if it is not installed, fails, or takes too long."""
    program = shutil.which("dot")
    if program is None or sum(len(panel.boxes) for panel in panels) > _MOST:
        return None
    try:
        done = subprocess.run(  # noqa: S603  the text is made above, and dot gets it on its standard input
            [program, "-Tsvg"],
            input=dot_text(panels),
            capture_output=True,
            encoding="utf-8",
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("graphviz did not draw the program, so it is drawn without: %s", error)
        return None
    return done.stdout


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
