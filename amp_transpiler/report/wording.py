"""What every form of the report says in the same words: reasons behind a precision, and remarks."""

from __future__ import annotations

import collections
import re

from amp_transpiler.report.report import Precision, Report

__all__ = ["reasons", "remarks"]

# A name in quotes; the apostrophe of "torch's" opens none, and that of 'it's' closes none.
_QUOTED = re.compile(r"(?<!\w)'.*?'(?!\w)")


def reasons(report: Report, precision: Precision) -> list[tuple[str, int]]:
    """Return (reason, nodes) for every reason behind `precision`, the most frequent first, ties by text.

    Reasons that differ in the values they name, and in nothing else, are one, with `'...'` for the names.
    """
    groups: dict[str, collections.Counter[str]] = {}
    for row in report.decisions:
        if row.precision == precision:
            groups.setdefault(_QUOTED.sub("'...'", row.reason), collections.Counter())[row.reason] += 1
    # A reason of one wording keeps the names: they are the same for all its nodes.
    counts = {next(iter(texts)) if len(texts) == 1 else kind: texts.total() for kind, texts in groups.items()}
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def remarks(report: Report) -> tuple[str, ...]:
    """Return the notes, before them what a reader of the verdict must not miss: a mere copy, or nothing low."""
    if report.is_copy:
        what = report.destination or "the result"
        return f"{what} is a copy in the source's own precision, whatever its name says", *report.notes
    if report.low_nodes or not report.decisions:
        return report.notes
    found = reasons(report, "high") or reasons(report, "untouched")
    reason, count = found[0]
    # Casts without a low node are those of inputs, outputs or a result that the user wants low.
    what = "no node" if report.casts else "nothing"
    return f"{what} became low: {reason} ({count} of {report.nodes} nodes)", *report.notes
