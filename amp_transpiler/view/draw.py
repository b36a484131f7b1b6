"""Drawing a program, before and after its conversion, to a file or into a notebook."""

from __future__ import annotations

import html
import os
import pathlib
from collections.abc import Sequence

from amp_transpiler.errors import OptionError, OutputError
from amp_transpiler.view.dot import dot_text, drawn_by_dot
from amp_transpiler.view.outline import Outline
from amp_transpiler.view.panel import Panel, panel_of
from amp_transpiler.view.svg import svg_of

__all__ = ["draw", "notebook_view"]

_IN_A_NOTEBOOK = 150  # nodes; a larger program is shown as text


def draw(
    path: str | os.PathLike[str],
    before: Outline | None,
    after: Outline,
    *,
    whole: bool = False,
    limit: int | None = 1000,
) -> None:
    """Draw one graph, or two side by side.

    Args:
        path: the file to write: `.svg`, or `.dot` for graphviz's language.
        before: the graph on the left; None for none.
        after: the graph, or the one on the right.
        whole: with the backward pass and the optimizer; else the forward pass.
        limit: the most nodes of each graph: the first ones are drawn. None for all.

    Raises:
        OptionError: the file has another ending.
        OutputError: it cannot be written.
    """
    file = pathlib.Path(path)
    panels = _panels(before, after, whole=whole, limit=limit)
    if file.suffix.lower() == ".dot":
        text = dot_text(panels)
    elif file.suffix.lower() == ".svg":
        text = drawn_by_dot(panels) or svg_of(panels)
    else:
        raise OptionError(f"{file}: a drawing is an .svg file, or .dot for graphviz, which makes other formats of it")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{file}: cannot be written: {error.strerror or error}") from error


def _panels(before: Outline | None, after: Outline, *, whole: bool, limit: int | None) -> Sequence[Panel]:
    graphs = {"program": after} if before is None else {"before": before, "after": after}
    return [panel_of(name, graph if whole else graph.forward(), limit) for name, graph in graphs.items()]


def notebook_view(before: Outline | None, after: Outline, text: str) -> str:
    """Return HTML for a notebook: the drawing of a small program, the text of a larger one."""
    panels = _panels(before, after, whole=False, limit=None)
    if sum(len(panel.boxes) for panel in panels) <= _IN_A_NOTEBOOK:
        return f'<div style="overflow:auto">{svg_of(panels)}</div>'
    return f"<pre>{html.escape(text)}</pre>"
