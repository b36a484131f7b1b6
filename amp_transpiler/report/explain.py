"""Writes one line per node: its precision and the reason, in columns, so that `grep` finds whole entries."""

from __future__ import annotations

from collections.abc import Iterator

from amp_transpiler.report.precision import kind_of
from amp_transpiler.report.record import ReportRecord
from amp_transpiler.report.table import printable
from amp_transpiler.report.wording import precision_name

__all__ = ["explain_lines"]

_WIDEST = 48  # characters of a column; a longer name shifts only its own line


def explain_lines(report: ReportRecord) -> Iterator[str]:
    """Yield a heading and then, for every node in program order, precision, operator, name, scope and reason."""
    rows = [
        tuple(map(_cell, (precision_name(kind_of(row.precision), report), row.op, row.name, row.scope, row.reason)))
        for row in report.decisions
    ]
    heading = ("precision", "operator", "node", "scope", "reason")
    widths = [min(max(len(row[i]) for row in (heading, *rows)), _WIDEST) for i in range(4)]
    for row in (heading, *rows):
        aligned = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        yield "  ".join((*aligned, row[4]))


def _cell(text: str) -> str:
    return printable(text) or "-"
