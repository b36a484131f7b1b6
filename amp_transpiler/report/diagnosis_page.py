"""Writes a diagnosis as one self-contained HTML page: the answer, the errors of all nodes, and the cure."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from markupsafe import Markup

from amp_transpiler.graph.dtypes import LowFormat, float_format
from amp_transpiler.report.as_html import heat_names, render
from amp_transpiler.report.charts import error_chart
from amp_transpiler.report.diagnosis import Diagnosis, NodeDiagnosis
from amp_transpiler.report.diagnosis_chart import error_course
from amp_transpiler.report.diagnosis_device import departures_table, device_words
from amp_transpiler.report.diagnosis_text import (
    FAULT_WORDS,
    absorbed_words,
    answer,
    circumstances,
    cure_options,
    cure_words,
    error_of,
    own_error_of,
    path_words,
    share_or_infinite,
    something_is_wrong,
    suspects_table,
    suspects_title,
    unmatched_words,
)
from amp_transpiler.report.figures import has_floats
from amp_transpiler.report.page_table import Column, PageTable, table_of
from amp_transpiler.report.picture import Heats, NodeFacts, drawn_levels
from amp_transpiler.report.precision import kind_of
from amp_transpiler.report.range_picture import range_picture, range_words
from amp_transpiler.report.sections import linked, outputs_table
from amp_transpiler.report.table import outputs_worst_first
from amp_transpiler.report.wording import percent
from amp_transpiler.view.outline import Outline

__all__ = ["diagnosis_page", "every_node_table"]

Graphs: TypeAlias = Iterable[tuple[str, Outline]]

_HEATS: Heats = ((1.0, "100%"), (0.1, "10%"), (0.01, "1%"), (0.001, "0.1%"))  # errors
_NAMES = 200  # of nodes without a partner
_COURSE = (
    "A full dot is the error of a result in the low model; an open one is that of the node by itself, which reads what "
    "the float32 node reads. The line is the way of the fault. The name of a node appears under the pointer."
)
_NODES = (
    "Error: of the result in the low model. Own error: the same if the node reads what the float32 node reads. Adds: "
    "what the own error adds to an output, by derivatives. Infinite, becomes zero: the share of the numbers."
)
_MAGNITUDES = (
    "Magnitudes: how many numbers of the float32 result are of which size, from small to large, two powers of two a "
    "bar; lines stand at the smallest normal number of {low} and at its largest."
)


def diagnosis_page(diagnosis: Diagnosis, graphs: Graphs = ()) -> str:
    """Return the diagnosis as a whole HTML document.

    Args:
        diagnosis: what it shows.
        graphs: the float32 graph and its bodies, as `picture.graphs_of` returns them, to be drawn; none: no drawing.
    """
    anchors: dict[str, str] = {}
    for index, row in enumerate(diagnosis.nodes):
        anchors.setdefault(row.node, f"n{index}")
    outputs = outputs_worst_first(diagnosis.outputs.values())
    has_ranges = any(row.histogram.counts for row in diagnosis.nodes)
    return render(
        "diagnosis.html",
        title=f"amp-transpile debug: {diagnosis.source}",
        diagnosis=diagnosis,
        tone="bad" if something_is_wrong(diagnosis) else "good",
        answer=answer(diagnosis),
        circumstances=circumstances(diagnosis),
        outputs=outputs_table(outputs),
        error_chart=Markup(error_chart(outputs)) if any(map(has_floats, outputs)) else "",  # noqa: S704  escaped there
        course=Markup(error_course(diagnosis)),  # noqa: S704  the chart has escaped the names in it
        course_words=_COURSE,
        suspects_title=suspects_title(diagnosis).capitalize(),
        suspects=linked(suspects_table(diagnosis, reasons=True), anchors),
        way=[text for text in (path_words(diagnosis), absorbed_words(diagnosis)) if text],
        device="" if diagnosis.on_device is None else device_words(diagnosis.on_device),
        departures=None if diagnosis.on_device is None else linked(departures_table(diagnosis.on_device), anchors),
        cure="" if diagnosis.cure is None else cure_words(diagnosis.cure),
        options=() if diagnosis.cure is None else cure_options(diagnosis.cure),
        notes=[text for text in (unmatched_words(diagnosis, _NAMES), *diagnosis.notes) if text],
        drawn=_drawn(diagnosis, graphs, anchors),
        nodes=every_node_table(diagnosis),
        nodes_words=f"{_NODES} {_MAGNITUDES.format(low=diagnosis.dtype)}" if has_ranges else _NODES,
    )


def _drawn(diagnosis: Diagnosis, graphs: Graphs, anchors: Mapping[str, str]) -> dict[str, Any]:
    """Return what the template draws of the graphs, whose boxes have the colours of the errors."""
    errors: dict[str, float] = {}
    for row in diagnosis.nodes:
        errors[row.node] = max(errors.get(row.node, 0.0), _sortable(error_of(row)))
    marks = dict.fromkeys(diagnosis.path, "on-path")
    if diagnosis.guilty is not None:
        marks[diagnosis.guilty.node] = "guilty"
    facts = NodeFacts(
        words={suspect.node: suspect.why for suspect in diagnosis.suspects},
        anchors=anchors,
        errors=errors,
        total=max,
        error_words=lambda error: f"largest error {share_or_infinite(error)}",
        heats=_HEATS,
        marks=marks,
    )
    kinds = [("low", diagnosis.dtype), ("high", "float32"), ("cast", "cast"), ("untouched", "no floats")]
    return {
        "anchor": "graph",
        "levels": drawn_levels([(path, _as_in_low(graph, diagnosis)) for path, graph in graphs], facts, "graph-"),
        "has_errors": bool(errors),
        "heats": heat_names(_HEATS),
        "kinds": kinds,
    }


def _as_in_low(graph: Outline, diagnosis: Diagnosis) -> Outline:
    """Return a graph with the precisions that its nodes have in the low model."""
    precisions = {row.node: row.precision if _is_float(row, diagnosis) else "" for row in diagnosis.nodes}
    nodes = tuple(node._replace(precision=precisions.get(node.name, node.precision)) for node in graph.nodes)
    return dataclasses.replace(graph, nodes=nodes)


def _is_float(row: NodeDiagnosis, diagnosis: Diagnosis) -> bool:
    return row.precision in (diagnosis.dtype, "float32")


def every_node_table(diagnosis: Diagnosis) -> PageTable:
    """Return all results that were compared, in the order of computation, to be sorted and filtered."""
    results = collections.Counter(row.node for row in diagnosis.nodes)
    low = float_format(diagnosis.dtype)
    columns: list[Column[NodeDiagnosis]] = [
        Column("precision", lambda row: row.precision, kind=lambda row: _kind(row, diagnosis)),
        Column("order", lambda row: str(row.order), key=lambda row: row.order),
        Column("operator", lambda row: row.op),
        Column("node", lambda row: row.node, code=True),
        Column("result", lambda row: row.value, lambda row: results[row.node] > 1, code=True),
        Column(
            "what is wrong",
            lambda row: "" if row.fault is None else FAULT_WORDS[row.fault],
            lambda row: row.fault is not None,
            kind=lambda row: "" if row.fault == "rounding" else "bad-text",
        ),
        _share("error", error_of),
        _share("own error", own_error_of),
        _share("adds", lambda row: row.contribution or 0.0, lambda row: row.contribution is not None),
        _share_of_numbers("infinite", lambda row: row.infinite),
        _share_of_numbers("infinite by itself", lambda row: row.own_infinite),
        _share_of_numbers("becomes zero", lambda row: row.vanished),
        _share_of_numbers("zero by itself", lambda row: row.own_vanished),
        Column("largest", lambda row: f"{row.largest:.4g}", key=lambda row: row.largest),
        Column("smallest", lambda row: f"{row.smallest:.4g}", _has_smallest, lambda row: row.smallest),
        _magnitudes(low),
    ]
    return table_of(
        "Every result",
        columns,
        diagnosis.nodes,
        anchors=(f"n{index}" for index in range(len(diagnosis.nodes))),
        filters=sorted({row.precision for row in diagnosis.nodes}),
    )


def _kind(row: NodeDiagnosis, diagnosis: Diagnosis) -> str:
    """Return the class of the precision's cell; integers are neither low nor high."""
    return kind_of(row.precision) if _is_float(row, diagnosis) else "untouched"


def _has_smallest(row: NodeDiagnosis) -> bool:
    return math.isfinite(row.smallest)


def _share(
    head: str, share: Callable[[NodeDiagnosis], float], has: Callable[[NodeDiagnosis], bool] = lambda _: True
) -> Column[NodeDiagnosis]:
    return Column(
        head,
        lambda row: share_or_infinite(share(row)),
        has,
        lambda row: _sortable(share(row)),
        lambda row: "" if math.isfinite(share(row)) else "bad-text",
    )


def _sortable(share: float) -> float:
    """Return the number that a share sorts by: what is no number is as bad as what is infinite."""
    return math.inf if math.isnan(share) else share


def _share_of_numbers(head: str, share: Callable[[NodeDiagnosis], float]) -> Column[NodeDiagnosis]:
    return Column(head, lambda row: percent(share(row)), lambda row: share(row) > 0, share)


def _magnitudes(low: LowFormat) -> Column[NodeDiagnosis]:
    return Column(
        "magnitudes",
        lambda row: range_words(row.histogram),
        lambda row: bool(row.histogram.counts),
        lambda row: row.histogram.lowest,
        picture=lambda row: range_picture(row.histogram, low),
    )
