"""Remedies for a result that is beyond a limit: never those that were just tried."""

from __future__ import annotations

import math
from collections.abc import Iterator

from amp_transpiler.precision.limits import Limits
from amp_transpiler.report import OutputComparison
from amp_transpiler.report.facts import Task
from amp_transpiler.report.wording import percent

__all__ = ["advice"]


def advice(task: Task, row: OutputComparison, limits: Limits, *, is_only: bool) -> str:
    """Return a sentence with remedies.

    Args:
        task: what was asked for.
        row: the output that is furthest beyond its limit.
        limits: what was allowed.
        is_only: the result has no other output.
    """
    remedies = list(_remedies(task, row, limits, is_only=is_only))
    return f"Try {' or '.join(remedies)}" if remedies else "Please report this"


def _remedies(task: Task, row: OutputComparison, limits: Limits, *, is_only: bool) -> Iterator[str]:
    narrows = task.dtype != "float32"
    if narrows and task.level is None:
        yield f"level auto instead of {task.asked}"
    elif narrows and task.level != "auto":
        yield "level auto"
    if task.level in ("auto", "O2") and narrows:
        yield "level O1"
    if row.nonfinite and task.dtype == "float16":
        yield "bfloat16, whose range is float32's"
    if not row.nonfinite and task.dtype == "bfloat16":
        yield "float16, which is more exact"
    if narrows:
        yield "--black or --disable-amp for the nodes at fault"
    if not row.structure_differs and not row.nonfinite:
        yield from _larger_limit(row, limits, is_only=is_only)


def _larger_limit(row: OutputComparison, limits: Limits, *, is_only: bool) -> Iterator[str]:
    most = limits.mismatch_for(row.name)
    if most is not None and row.mismatch > most:
        yield f"--mismatch {percent(min(1.0, _rounded_up(row.mismatch)))}"
    elif math.isfinite(row.relative):
        name = "" if is_only else f"'{row.name}'="
        yield f"--tolerance {name}{percent(_rounded_up(row.relative))}"


def _rounded_up(value: float) -> float:
    """Return the next number of two significant digits."""
    step: float = 10.0 ** (math.floor(math.log10(value)) - 1)
    return step * math.ceil(value / step)
