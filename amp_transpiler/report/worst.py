"""Picks the few nodes that matter most: those that spoil the result, and those that float32 costs most time."""

from __future__ import annotations

from collections.abc import Iterable

from amp_transpiler.report.precision import kind_of
from amp_transpiler.report.record import DecisionRow

__all__ = ["costliest_fp32", "squared_error_shares", "worst_sources"]

MOST = 10


def worst_sources(rows: Iterable[DecisionRow], most: int = MOST) -> list[DecisionRow]:
    """Return the low nodes that add most to the error of the worst output, the worst first."""
    low = [row for row in rows if kind_of(row.precision) == "low" and row.error]
    return sorted(low, key=lambda row: (-(row.error or 0.0), row.name))[:most]


def costliest_fp32(rows: Iterable[DecisionRow], most: int = MOST) -> list[DecisionRow]:
    """Return the float32 nodes whose predicted time is longest, the longest first."""
    high = [row for row in rows if kind_of(row.precision) == "high" and row.milliseconds_fp32]
    return sorted(high, key=lambda row: (-(row.milliseconds_fp32 or 0.0), row.name))[:most]


def squared_error_shares(rows: Iterable[DecisionRow]) -> dict[str, float]:
    """Return low node -> its share of the predicted error: contributions add in squares.

    Nodes that overflow have infinite errors. They share all of it.
    """
    errors = {row.name: row.error for row in rows if kind_of(row.precision) == "low" and row.error}
    largest = max(errors.values(), default=0.0)
    if not largest:
        return {}
    # By the largest one, so that no square overflows or vanishes.
    squares = {name: (1.0 if error == largest else (error / largest) ** 2) for name, error in errors.items()}
    total = sum(squares.values())
    return {name: square / total for name, square in squares.items()}
