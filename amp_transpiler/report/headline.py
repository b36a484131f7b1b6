"""The result in a sentence, and the predicted times in words: what every form of the report begins with."""

from __future__ import annotations

import math

from amp_transpiler.report.figures import has_floats
from amp_transpiler.report.report import Report
from amp_transpiler.report.wording import NOTICEABLE, human_time, percent, speed_words

__all__ = ["headline", "predicted_words", "slower_words"]


def slower_words(report: Report) -> str:
    """Return that the result is predicted slower than fp32, by how much, and from where on it pays; else nothing."""
    before, after = report.predicted_ms
    if before is None or after is None or after <= before * (1 + NOTICEABLE):
        return ""
    pays = f"; it pays from {report.pays_from} on" if report.pays_from else ""
    return (
        f"predicted slower than float32 at these shapes on {report.device}: {human_time(after)} instead of "
        f"{human_time(before)} ({percent(after / before - 1)} more){pays}"
    )


def predicted_words(report: Report) -> str:
    """Return the predicted times, `1.8 ms instead of 3.1 ms on H100 (1.7 times as fast)`; nothing if unknown."""
    before, after = report.predicted_ms
    if not before or not after:
        return ""
    if abs(after / before - 1) <= NOTICEABLE:
        return f"{human_time(after)} on {report.device}, as in float32"
    return f"{human_time(after)} instead of {human_time(before)} on {report.device} ({speed_words(before, after)})"


def headline(report: Report) -> str:
    """Return the result in a sentence: what runs in the low format, how fast, and how far off."""
    if report.is_copy:
        return "The result is a copy of the source: nothing was changed."
    choice = report.low_nodes + report.high_nodes
    casts = "1 cast" if report.casts == 1 else f"{report.casts} casts"
    low = choice if report.dtype == "float32" else report.low_nodes
    parts = [f"{low} of {choice} float nodes run in {report.dtype}, with {casts}"]
    if predicted := predicted_words(report):
        parts.append(f"predicted {predicted}")
    errors = [output.relative for output in report.outputs.values() if has_floats(output)]
    if errors:
        worst = math.inf if any(map(math.isnan, errors)) else max(errors)
        parts.append(f"the worst output is off by {percent(worst)}")
    return f"{'; '.join(parts)}."
