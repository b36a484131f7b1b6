"""Finds the way on which the fault of a node reaches an output."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.graph.walk import reads_of
from amp_transpiler.program.program import Program
from amp_transpiler.report.diagnosis import NodeDiagnosis

__all__ = ["fault_path", "where_absorbed"]

_UNTOUCHED = 1000  # a node without an error is this many times as far


def fault_path(program: Program, rows: Mapping[str, NodeDiagnosis], node_name: str, allowed: float) -> tuple[str, ...]:
    """Return the names of the nodes from a node to an output: the shortest way through results that are wrong.

    Args:
        program: the float32 program.
        rows: node -> its row.
        node_name: where to begin.
        allowed: the error from which a result is wrong.
    """
    graph = program.model.graph
    readers: dict[ir.Node, dict[ir.Node, None]] = {}
    for node in graph:
        for value in reads_of(node):
            if (maker := value.producer()) is not None:
                readers.setdefault(maker, {})[node] = None
    start = next((node for node in graph if node.name == node_name), None)
    if start is None:
        return ()
    count = itertools.count()
    before: dict[ir.Node, ir.Node | None] = {}
    pending: list[tuple[float, int, ir.Node, ir.Node | None]] = [(0.0, next(count), start, None)]
    while pending:
        far, _, node, origin = heapq.heappop(pending)
        if node in before:
            continue
        before[node] = origin
        if any(value.is_graph_output() for value in node.outputs):
            return tuple(reversed(_back(before, node)))
        for reader in readers.get(node, {}):
            row = rows.get(str(reader.name))
            is_wrong = row is not None and (row.infinite > 0.0 or row.error > allowed)
            heapq.heappush(pending, (far + (1 if is_wrong else _UNTOUCHED), next(count), reader, node))
    return (node_name,)


def _back(before: Mapping[ir.Node, ir.Node | None], node: ir.Node | None) -> list[str]:
    names = []
    while node is not None:
        names.append(str(node.name))
        node = before[node]
    return names


def where_absorbed(rows: Mapping[str, NodeDiagnosis], path: tuple[str, ...]) -> str | None:
    """Return the first node of a path whose result is finite behind one that is not; None if there is none."""
    for name, following in itertools.pairwise(path):
        row, after = rows.get(name), rows.get(following)
        if row is not None and after is not None and row.infinite and not after.infinite:
            return following
    return None
