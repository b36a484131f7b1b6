"""Says the result in a sentence, and the predicted times in words, with which every form of the report begins."""

from __future__ import annotations

import math

from amp_transpiler.report.figures import has_floats
from amp_transpiler.report.record import NOTICEABLE, ReportRecord
from amp_transpiler.report.wording import human_time, percent, speed_words

__all__ = ["headline", "is_beyond_limit", "kept_words", "predicted_words", "slower_words"]

_BY_LAUNCHES = 1.1  # times that of a CUDA graph: from there on launches decide about the time of a plain session


def kept_words(report: ReportRecord) -> str:
    """Return that the model was kept in float32, why, and from where on it would gain; else nothing."""
    if not report.kept_float32:
        return ""
    predicted = report.known_times()
    before, lowered = predicted.beside_lowered, predicted.lowered
    if before is None or lowered is None:
        return f"kept float32: nothing of it becomes {report.dtype}"
    if is_beyond_limit(report):
        return f"kept float32: what {report.dtype} would make faster is beyond the limit"
    times = (
        human_time(lowered)
        if human_time(lowered) == human_time(before)
        else (f"{human_time(lowered)} instead of {human_time(before)}")
    )
    pays = f"; it gains from {report.pays_from} on" if report.pays_from else ""
    return f"kept float32: {report.dtype} is predicted no faster at these shapes on {report.device}: {times}{pays}"


def is_beyond_limit(report: ReportRecord) -> bool:
    """Whether a model was kept in float32 though a conversion with low nodes is faster: its error is too large."""
    predicted = report.known_times()
    before = predicted.beside_lowered
    if not report.kept_float32 or before is None or predicted.lowered is None:
        return False
    return predicted.lowered < before * (1 - NOTICEABLE)


def slower_words(report: ReportRecord) -> str:
    """Return that the result is predicted slower than float32, by how much, and from where on it pays; else nothing."""
    before, after = report.predicted_ms
    if not report.slower or before is None or after is None:
        return ""
    pays = f"; it pays from {report.pays_from} on" if report.pays_from else ""
    return (
        f"predicted slower than float32 at these shapes on {report.device}: {human_time(after)} instead of "
        f"{human_time(before)} ({percent(after / before - 1)} more){pays}"
    )


def predicted_words(report: ReportRecord) -> str:
    """Return the predicted times, `1.8 ms instead of 3.1 ms on H100 (1.7 times as fast)`; nothing if unknown.

    Where launches decide about them, those of a CUDA graph follow.
    """
    plain = _times_in_words(*report.predicted_ms, f" on {report.device}")
    in_graph = report.predicted_graph_ms
    if plain and _is_by_launches(report):
        return f"{plain}; as a CUDA graph {_times_in_words(*in_graph)}"
    return plain


def _is_by_launches(report: ReportRecord) -> bool:
    pairs = zip(report.predicted_ms, report.predicted_graph_ms, strict=True)
    return any(plain is not None and graph is not None and plain > _BY_LAUNCHES * graph for plain, graph in pairs)


def _times_in_words(before: float | None, after: float | None, where: str = "") -> str:
    if not before or not after:
        return ""
    if abs(after / before - 1) <= NOTICEABLE:
        return f"{human_time(after)}{where}, as in float32"
    return f"{human_time(after)} instead of {human_time(before)}{where} ({speed_words(before, after)})"


def headline(report: ReportRecord) -> str:
    """Return the result in a sentence: what runs in the low format, how fast, and how far off."""
    if report.is_copy:
        return "The result is a copy of the source: nothing was changed."
    choice = report.low_nodes + report.high_nodes
    casts = "1 cast" if report.casts == 1 else f"{report.casts} casts"
    low = choice if report.dtype == "float32" else report.low_nodes
    parts = [f"{low} of {choice} float nodes run in {report.dtype}, with {casts}"]
    if words := kept_words(report):
        parts = [f"{words[0].upper()}{words[1:]}"]
    if predicted := predicted_words(report):
        parts.append(f"predicted {predicted}")
    errors = [output.relative for output in report.outputs.values() if has_floats(output)]
    if errors:
        worst = math.inf if any(map(math.isnan, errors)) else max(errors)
        parts.append(f"the worst output is off by {percent(worst)}")
    return f"{'; '.join(parts)}."
