"""Says how a low model ran on a device, beside its emulation: in a sentence, and as a table."""

from __future__ import annotations

import math

from amp_transpiler.phrases import counted
from amp_transpiler.report.diagnosis import Departure, RunsOnDevice
from amp_transpiler.report.page_table import Column, PageTable, table_of
from amp_transpiler.report.wording import percent

__all__ = ["departures_table", "device_words"]


def device_words(runs: RunsOnDevice) -> str:
    """Return whether a device agrees with the emulation."""
    if not runs.forms:
        return f"The low model did not run on {runs.device}."
    ran = " and ".join(runs.forms)
    start = f"Run {ran} on {runs.device}, {counted(runs.compared, 'result')} compared with the emulation"
    if not runs.departures:
        return f"{start}: all agree."
    verb = "departs" if len(runs.departures) == 1 else "depart"
    return f"{start}: {counted(len(runs.departures), 'kernel')} {verb} from it."


def departures_table(runs: RunsOnDevice) -> PageTable:
    """Return the results that agree no more, in the order of computation."""
    columns: list[Column[Departure]] = [
        Column("node", lambda row: row.node, code=True),
        Column("kernel", lambda row: row.op),
        Column("run", lambda row: row.form),
        Column("off the emulation", _off, key=_size, kind=lambda _: "bad-text"),
        Column("rounding explains", lambda row: percent(row.allowed), key=lambda row: row.allowed),
    ]
    return table_of("Kernels that depart", columns, runs.departures)


def _off(row: Departure) -> str:
    if row.infinite:
        return f"{percent(row.infinite)} infinite or NaN"
    if row.finite:
        return f"{percent(row.finite)} finite"
    return percent(row.error)


def _size(row: Departure) -> float:
    return math.inf if row.infinite or row.finite else row.error
