"""Remedies for a result that is beyond a limit: never those that were just tried."""

from __future__ import annotations

import math
from collections.abc import Iterator

from amp_transpiler.precision.limits import Limits
from amp_transpiler.report import OutputComparison, Report
from amp_transpiler.report.wording import percent

__all__ = ["advice"]


def advice(report: Report, row: OutputComparison, limits: Limits) -> str:
    """Return a sentence with remedies.

    Args:
        report: what was asked for.
        row: the output that is furthest beyond its limit.
        limits: what was allowed.
    """
    remedies = list(_remedies(report, row, limits))
    return f"Try {' or '.join(remedies)}" if remedies else "Please report this"


def _remedies(report: Report, row: OutputComparison, limits: Limits) -> Iterator[str]:
    narrows = report.dtype != "float32"
    if narrows and report.level is None:
        yield f"level auto instead of {report.asked}"
    elif narrows and report.level != "auto":
        yield "level auto"
    if report.level in ("auto", "O2") and narrows:
        yield "level O1"
    if row.nonfinite and report.dtype == "float16":
        yield "bfloat16, whose range is float32's"
    if not row.nonfinite and report.dtype == "bfloat16":
        yield "float16, which is more exact"
    if narrows:
        yield "--black or --disable-amp for the nodes at fault"
    if not row.structure_differs and not row.nonfinite:
        yield from _larger_limit(report, row, limits)


def _larger_limit(report: Report, row: OutputComparison, limits: Limits) -> Iterator[str]:
    most = limits.mismatch_for(row.name)
    if most is not None and row.mismatch > most:
        yield f"--mismatch {percent(min(1.0, _rounded_up(row.mismatch)))}"
    elif math.isfinite(row.relative):
        name = f"'{row.name}'=" if len(report.outputs) > 1 else ""
        yield f"--tolerance {name}{percent(_rounded_up(row.relative))}"


def _rounded_up(value: float) -> float:
    """Return the next number of two significant digits."""
    step: float = 10.0 ** (math.floor(math.log10(value)) - 1)
    return step * math.ceil(value / step)
