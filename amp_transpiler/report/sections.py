"""Makes the tables of the page, one function each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from amp_transpiler.graph.dtypes import float_format
from amp_transpiler.phrases import first_few
from amp_transpiler.precision.histogram import NO_NUMBERS
from amp_transpiler.report.figures import Figure, figures_of
from amp_transpiler.report.page_table import Cell, Column, PageTable, table_of
from amp_transpiler.report.precision import KINDS, Kind, kind_of
from amp_transpiler.report.range_picture import range_picture, range_words
from amp_transpiler.report.record import CastRow, DecisionRow, FrontierPoint, OutputComparison, ReportRecord
from amp_transpiler.report.steps import StateWay
from amp_transpiler.report.table import human_bytes, outputs_worst_first
from amp_transpiler.report.wording import (
    human_number,
    human_time,
    percent,
    precision_name,
    reasons,
)
from amp_transpiler.report.worst import costliest_fp32, worst_sources

if TYPE_CHECKING:
    from amp_transpiler.graph.training_step import State

__all__ = [
    "casts_table",
    "costly_table",
    "frontier_table",
    "linked",
    "nodes_table",
    "outputs_table",
    "reasons_table",
    "sources_table",
    "states_table",
    "steps_table",
    "times_table",
]


def outputs_table(outputs: Iterable[OutputComparison]) -> PageTable:
    """Return the figures of each output, the worst first."""
    ordered = outputs_worst_first(outputs)
    columns: list[Column[OutputComparison]] = [
        Column("output", lambda output: output.name, code=True),
        Column("type", lambda output: f"{output.dtype} {' by '.join(map(str, output.shape)) or 'scalar'}"),
        *map(_figure_column, figures_of(ordered)),
        Column("elements", lambda output: str(output.elements), key=lambda output: output.elements),
        Column("samples", lambda output: str(output.samples), key=lambda output: output.samples),
    ]
    return table_of("Error of each output", columns, ordered)


def _figure_column(figure: Figure) -> Column[OutputComparison]:
    return Column(
        figure.head,
        figure.of,
        key=lambda output: _number(figure.of(output)),
        kind=lambda output: "bad-text" if figure.is_bad(output) else "",
    )


def _number(text: str) -> float:
    """Return the number that a figure begins with; what is none comes first."""
    try:
        return float(text.partition(" ")[0].strip("%>"))
    except ValueError:
        return -1.0


def states_table(report: ReportRecord) -> PageTable:
    """Return the states of a training step, each with its master and why it is one."""
    columns: list[Column[State]] = [
        Column("state", lambda state: state.input, code=True),
        Column("its update", lambda state: state.output, code=True),
        Column("role", lambda state: state.role),
        Column("master", lambda state: state.master or "its own"),
        Column("reason", lambda state: state.reason),
    ]
    return table_of("States of the training step", columns, report.states)


def steps_table(report: ReportRecord) -> PageTable:
    """Return the ways of a training step's states, the furthest off first."""
    ways = () if report.steps is None else report.steps.states.values()
    columns: list[Column[StateWay]] = [
        Column("state", lambda way: way.name, code=True),
        Column("role", lambda way: way.role),
        Column("way in float32", lambda way: human_number(way.way), key=lambda way: way.way),
        Column("way here", lambda way: human_number(way.low_way), key=lambda way: way.low_way),
        Column(
            "difference",
            lambda way: percent(way.relative),
            key=lambda way: way.relative,
            kind=lambda way: "bad-text" if way.fails else "",
        ),
        Column(
            "allowed",
            lambda way: percent(way.allowed) if math.isfinite(way.allowed) else "not judged",
            key=lambda way: way.allowed,
        ),
    ]
    ordered = sorted(ways, key=lambda way: (not way.fails, -way.relative, way.name))
    return table_of("Ways of the states", columns, ordered)


def reasons_table(report: ReportRecord) -> PageTable:
    """Return how many nodes of each precision there are for each reason."""
    rows = [(precision, *entry) for precision in KINDS for entry in reasons(report, precision)]
    columns: list[Column[tuple[Kind, str, int]]] = [
        Column("precision", lambda row: precision_name(row[0], report), kind=lambda row: row[0]),
        Column("nodes", lambda row: str(row[2]), key=lambda row: row[2]),
        Column("reason", lambda row: row[1]),
    ]
    return table_of("Reasons", columns, rows)


def _node_columns(report: ReportRecord) -> dict[str, Column[DecisionRow]]:
    """Return the columns of tables of nodes. What the report does not know of any node is left out."""
    low = float_format(report.dtype)
    columns: Sequence[Column[DecisionRow]] = (
        Column("precision", lambda row: str(row.precision), kind=lambda row: kind_of(row.precision)),
        Column("operator", lambda row: row.op, more=_attribute_lines),
        Column("node", lambda row: row.name, code=True),
        Column("body", lambda row: row.scope, lambda row: bool(row.scope)),
        Column("reason", lambda row: row.reason, kind=_words),
        Column(
            "error",
            lambda row: percent(row.error or 0.0),
            lambda row: row.error is not None,
            lambda row: row.error or 0.0,
        ),
        Column(
            "largest value",
            _range_words,
            lambda row: row.largest is not None,
            lambda row: row.largest or 0.0,
        ),
        Column(
            "magnitudes",
            lambda row: range_words(row.histogram or NO_NUMBERS),
            lambda row: row.histogram is not None,
            lambda row: (row.histogram or NO_NUMBERS).lowest,
            picture=lambda row: range_picture(row.histogram or NO_NUMBERS, low),
        ),
        Column(
            "becomes zero",
            lambda row: percent(row.flushed or 0.0),
            lambda row: bool(row.flushed),
            lambda row: row.flushed or 0.0,
        ),
        Column(
            "moves", lambda row: human_bytes(row.bytes), lambda row: row.bytes is not None, lambda row: row.bytes or 0
        ),
        _time_column("predicted", "milliseconds"),
        _time_column("in float32", "milliseconds_fp32"),
        Column("bound by", lambda row: row.bound, lambda row: bool(row.bound)),
        Column("to change it", lambda row: row.remedy, lambda row: bool(row.remedy), kind=_words),
    )
    return {column.head: column for column in columns}


def _words(_: DecisionRow) -> str:
    """Return the class of a cell with a sentence, which is not to be squeezed."""
    return "words"


def _attribute_lines(row: DecisionRow) -> list[str]:
    return [f"{name}={value}" for name, value in row.attributes.items()]


def _time_column(head: str, field: str) -> Column[DecisionRow]:
    def value(row: DecisionRow) -> float:
        return getattr(row, field) or 0.0

    return Column(head, lambda row: human_time(value(row)), lambda row: getattr(row, field) is not None, value)


def _range_words(row: DecisionRow) -> str:
    assert row.largest is not None, "the column shows what has a range"
    sample = f" in {row.sample}" if row.sample else ""
    return f"{row.largest:.4g}{sample}"


def nodes_table(report: ReportRecord, anchor: str = "") -> PageTable:
    """Return all nodes, in program order, to be sorted and filtered.

    Args:
        report: the report.
        anchor: begins the anchors of the rows; they are numbered from 0.
    """
    names = [precision_name(precision, report) for precision in KINDS]
    present = {kind_of(row.precision) for row in report.decisions}
    return table_of(
        "Every node",
        list(_node_columns(report).values()),
        report.decisions,
        anchors=(f"{anchor}{index}" for index in range(len(report.decisions))),
        filters=[name for name, precision in zip(names, KINDS, strict=True) if precision in present],
    )


def times_table(report: ReportRecord) -> PageTable:
    """Return the predicted time of each operator's nodes, the longest first, and what bounds most of it."""
    by_operator: dict[str, list[DecisionRow]] = {}
    for row in report.decisions:
        if row.milliseconds:
            by_operator.setdefault(row.op, []).append(row)
    total = math.fsum(row.milliseconds or 0.0 for rows in by_operator.values() for row in rows)

    def spent(item: tuple[str, list[DecisionRow]]) -> float:
        return math.fsum(row.milliseconds or 0.0 for row in item[1])

    columns: list[Column[tuple[str, list[DecisionRow]]]] = [
        Column("operator", lambda item: item[0]),
        Column("nodes", lambda item: str(len(item[1])), key=lambda item: len(item[1])),
        Column("predicted", lambda item: human_time(spent(item)), key=spent),
        Column("share", lambda item: percent(spent(item) / total), key=spent),
        Column("bound by", lambda item: _bounds(item[1])),
    ]
    return table_of("Predicted time by operator", columns, sorted(by_operator.items(), key=lambda item: -spent(item)))


def _bounds(rows: Sequence[DecisionRow]) -> str:
    """Return what the time of some nodes is spent on: `bytes 80%, launch 20%`."""
    spent: dict[str, float] = {}
    for row in rows:
        if row.bound:
            spent[row.bound] = spent.get(row.bound, 0.0) + (row.milliseconds or 0.0)
    total = math.fsum(spent.values())
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {time / total:.0%}" for name, time in ordered)


_SHORT = ("node", "operator", "error", "largest value", "predicted", "in float32", "bound by", "reason", "to change it")


def sources_table(report: ReportRecord) -> PageTable:
    """Return the low nodes that spoil the result most."""
    return _short_table("Worst error sources", report, worst_sources(report.decisions))


def costly_table(report: ReportRecord) -> PageTable:
    """Return the float32 nodes that take the longest."""
    return _short_table("Costliest float32 nodes", report, costliest_fp32(report.decisions))


def _short_table(label: str, report: ReportRecord, rows: Sequence[DecisionRow]) -> PageTable:
    columns = _node_columns(report)
    return table_of(label, [columns[name] for name in _SHORT], rows)


def casts_table(report: ReportRecord) -> PageTable:
    """Return where the inserted casts are."""
    columns: list[Column[CastRow]] = [
        Column("value", lambda cast: cast.value, code=True),
        Column("cast", lambda cast: f"{cast.source} to {cast.target}"),
        Column("made by", lambda cast: cast.producer or "input or weight", code=True),
        Column("read by", _readers, code=True),
        Column("body", lambda cast: cast.scope, lambda cast: bool(cast.scope)),
    ]
    return table_of("Inserted casts", columns, report.casts_at)


def _readers(cast: CastRow) -> str:
    return first_few(cast.readers) if cast.readers else "output"


def frontier_table(report: ReportRecord) -> PageTable:
    """Return the points of the frontier, from the most exact to the least."""
    columns: list[Column[FrontierPoint]] = [
        Column("point", lambda point: "chosen" if point.chosen else ""),
        Column("error", lambda point: percent(point.error), key=lambda point: point.error),
        Column("known by", lambda point: "measured" if point.measured else "predicted"),
        Column(
            "predicted",
            lambda point: human_time(point.milliseconds or 0.0),
            lambda point: point.milliseconds is not None,
            lambda point: point.milliseconds or 0.0,
        ),
        Column(f"in {report.dtype}", lambda point: percent(point.low_share), key=lambda point: point.low_share),
        Column("casts", lambda point: str(point.casts), key=lambda point: point.casts),
    ]
    ordered = sorted(report.frontier, key=lambda point: (point.error, point.milliseconds or 0.0, point.low_share))
    return table_of("The frontier", columns, ordered)


def linked(table: PageTable, anchors: dict[str, str], column: int = 0) -> PageTable:
    """Return the table, its node names leading to their rows.

    Args:
        table: the table.
        anchors: name of a node -> its anchor.
        column: that of the names.
    """
    rows = tuple(
        (*row[:column], _link(row[column], anchors.get(row[column].text, "")), *row[column + 1 :]) for row in table.rows
    )
    return PageTable(table.label, table.heads, rows, table.anchors, table.filters)


def _link(cell: Cell, anchor: str) -> Cell:
    return dataclasses.replace(cell, link=anchor)
