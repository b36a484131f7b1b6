"""Writes what changes between two releases of ONNX Runtime as one self-contained HTML page."""

from __future__ import annotations

from amp_transpiler.report.as_html import render
from amp_transpiler.report.release_difference import ReleaseDifference
from amp_transpiler.report.release_text import (
    answer,
    circumstances,
    copy_lines,
    decisions_table,
    departures_table,
    faults_table,
    fusions_table,
    operators_table,
    placement_table,
    run_lines,
    run_title,
)
from amp_transpiler.report.sections import outputs_table
from amp_transpiler.report.table import outputs_worst_first

__all__ = ["release_page"]

_NAMES = 200  # of copied values


def release_page(difference: ReleaseDifference) -> str:
    """Return the differences as a whole HTML document."""
    runs = [
        {
            "title": run_title(run),
            "lines": list(run_lines(run)),
            "outputs": outputs_table(outputs_worst_first(run.outputs.values())),
            "departures": departures_table(run),
            "operators": operators_table(run),
            "fusions": fusions_table(run),
        }
        for run in difference.runs
    ]
    return render(
        "releases.html",
        title=f"amp-transpile debug: {difference.source} in {difference.old} and {difference.new}",
        difference=difference,
        tone="bad" if difference.something_changes else "good",
        answer=answer(difference),
        circumstances=circumstances(difference),
        placement=placement_table(difference),
        copies=list(copy_lines(difference, _NAMES)),
        faults=faults_table(difference),
        decisions=decisions_table(difference),
        runs=runs,
    )
