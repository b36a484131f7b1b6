"""Prints a table of the page as text for the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from amp_transpiler.report.page_table import PageTable
from amp_transpiler.report.table import printable

__all__ = ["text_table"]


def text_table(table: PageTable) -> Table:
    """Return a table for `rich` to print: no lines, numbers to the right."""
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head, kind in table.heads:
        is_number = "n" in kind.split()
        shown.add_column(head, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(printable(cell.text), style=_style(cell.kind)) for cell in row))
    return shown


def _style(kind: str) -> str:
    return "bold red" if "bad-text" in kind.split() else ""
