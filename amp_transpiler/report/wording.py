"""Words that every form of the report shares: names of precisions, reasons grouped, and remarks."""

from __future__ import annotations

import collections
import re

from amp_transpiler.report.report import Precision, Report

__all__ = ["PRECISIONS", "precision_name", "reasons", "remarks", "target_words"]

PRECISIONS: tuple[Precision, ...] = ("low", "high", "untouched")  # in the order of every table and chart

# A quoted name. Letters around a quote mark make it an apostrophe: that of "torch's" opens no name, and that inside of
# 'it's' closes none.
_QUOTED = re.compile(r"(?<!\w)'.*?'(?!\w)")


def precision_name(precision: Precision, report: Report) -> str:
    """Return the word that readers see for `low`, `high` or `untouched`: `float16`, `float32` or `unchanged`."""
    low = "low precision" if report.is_copy else report.dtype  # a copy keeps its types: it has no low format
    return {"low": low, "high": "float32", "untouched": "unchanged"}[precision]


def target_words(report: Report) -> str:
    """Return the target, and the ONNX Runtime whose kernels counted: `target cuda, kernels of ONNX Runtime 1.31`."""
    of = f", kernels of ONNX Runtime {report.ort}" if report.ort and report.target != "tensorrt" else ""
    return f"target {report.target}{of}"


def reasons(report: Report, precision: Precision) -> list[tuple[str, int]]:
    """Return (reason, number of nodes) for every reason of a precision, the most frequent first, ties by text.

    Reasons that differ only in the names they quote are counted together, with `'...'` for the names.
    """
    groups: dict[str, collections.Counter[str]] = {}
    for row in report.decisions:
        if row.precision == precision:
            groups.setdefault(_QUOTED.sub("'...'", row.reason), collections.Counter())[row.reason] += 1
    # If all nodes of a group have the same text, it keeps its names.
    counts = {next(iter(texts)) if len(texts) == 1 else kind: texts.total() for kind, texts in groups.items()}
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def remarks(report: Report) -> tuple[str, ...]:
    """Return the notes. The first one says so if the result is a mere copy, or if no node runs in the low format."""
    if report.is_copy:
        result = report.destination or "the result"
        return f"{result} is a copy in the source's own precision, whatever its name says", *report.notes
    if report.low_nodes or not report.decisions:
        return report.notes
    found = reasons(report, "high") or reasons(report, "untouched")
    reason, count = found[0]
    # Without a low node, casts come from inputs, outputs or parameters that the user wants in the low format.
    subject = "no node" if report.casts else "nothing"
    return f"{subject} became {report.dtype}: {reason} ({count} of {report.nodes} nodes)", *report.notes
