"""Finds the node that is to blame among all that do something wrong.

1. Where an output is infinite or NaN, the way back from it along infinite results ends at the node that made the first
   one. If that node does so on the right inputs, too, it is to blame; if not, what it reads has become zero where it
   divides or takes a logarithm, and the node that lost those numbers is.
2. Otherwise a node that would break the limit on its own by something worse than rounding; of several such nodes the
   first, since those behind it often have the same cause.
3. Otherwise infinite numbers that a node has made finite, and wrong, are followed back in the same way.
4. Otherwise the node whose rounding adds most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from amp_transpiler.diagnosis.compared_reads import compared_reads
from amp_transpiler.diagnosis.suspects import Findings, is_far, suspect
from amp_transpiler.precision.pole_operators import input_at_pole
from amp_transpiler.report.diagnosis import Fault, NodeDiagnosis, Suspect

__all__ = ["suspects_of"]

_MOSTLY = 0.5  # of the numbers that a result lost: if what it reads lost as many, it is the loss of that


def suspects_of(findings: Findings, rows: Sequence[NodeDiagnosis], allowed: float) -> tuple[Suspect, ...]:
    """Return the nodes that may be to blame, the likeliest first.

    Args:
        findings: what was measured.
        rows: the same as rows.
        allowed: the largest error of an output that is allowed, as a fraction.
    """
    blame = _Blame(findings, rows, allowed)
    ranked = blame.ranked()
    first, fault = _first(blame, ranked)
    if first is None and not ranked:
        first = max(rows, key=lambda row: row.own_error, default=None)
    suspects = [] if first is None else [suspect(findings, first, fault)]
    suspects += [suspect(findings, row) for row in ranked]
    by_node: dict[str, Suspect] = {}
    for each in suspects:
        by_node.setdefault(each.node, each)
    return tuple(by_node.values())


def _first(blame: _Blame, ranked: Sequence[NodeDiagnosis]) -> tuple[NodeDiagnosis | None, Fault | None]:
    """Return the row to blame by the first three rules, and what it does wrong as far as its row does not say that."""
    if (origin := blame.origin(blame.outputs())) is not None:
        return origin, blame.fault_of_origin(origin)
    if ranked and blame.is_severe(ranked[0]):
        if ranked[0].fault == "vanishing":
            return blame.where_lost(ranked[0]), "vanishing"
        worst = blame.cast_down(ranked[0]) if ranked[0].own_infinite else ranked[0]
        return worst, blame.fault_of_origin(worst) if worst is not ranked[0] else None
    origin = blame.origin(blame.absorbing())
    return origin, None if origin is None else blame.fault_of_origin(origin)


class _Blame:
    def __init__(self, findings: Findings, rows: Sequence[NodeDiagnosis], allowed: float) -> None:
        self._findings, self._allowed = findings, allowed
        self._rows = {findings.reference[row.value]: row for row in rows}

    # ---- infinite outputs ----

    def outputs(self) -> list[ir.Value]:
        """Return the outputs of the program."""
        return [value for value in self._findings.reference.values() if value.is_graph_output()]

    def absorbing(self) -> list[ir.Value]:
        """Return infinite values of which a node has made something finite that is wrong."""
        wrong = [value for value, row in self._rows.items() if not row.infinite and row.error > self._allowed]
        return [read for value in wrong for read in self._read_by(value) if self._rows[read].infinite]

    def origin(self, pending: list[ir.Value]) -> NodeDiagnosis | None:
        """Return the row that infinite values come from; None if they are finite.

        Args:
            pending: values to go back from.
        """
        origins: list[NodeDiagnosis] = []
        pending, seen = list(pending), set[ir.Value]()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            row = self._rows.get(value)
            if row is None:
                pending += self._read_by(value)
            elif row.infinite:
                infinite = [read for read in self._read_by(value) if self._rows[read].infinite]
                pending += infinite
                if not infinite:
                    origins.append(row)
        if not origins:
            return None
        first = min(origins, key=lambda row: row.order)
        return self.cast_down(first) if first.own_infinite else self._lost_before(first)

    def cast_down(self, row: NodeDiagnosis) -> NodeDiagnosis:
        """Return the row that holds what the format cannot: the result itself, or what is cast down for its node."""
        reads = [self._rows[read] for read in self._read_by(self._findings.reference[row.value])]
        beyond = [read for read in reads if not read.infinite and read.largest > self._findings.low.max]
        first = min(beyond, key=lambda read: read.order, default=row)
        return dataclasses.replace(first, contribution=row.contribution)  # what is felt of it is felt of its reader

    def _lost_before(self, row: NodeDiagnosis) -> NodeDiagnosis:
        """Return the row that lost the numbers without which another one is infinite; that one itself if none has."""
        value = self._findings.reference[row.value]
        node = value.producer()
        assert node is not None
        pole = input_at_pole(node)
        lost = [read for read in self._read_by(value) if self._rows[read].vanished]
        if not lost:
            return self._where_departed(row)
        return self.where_lost(self._rows[pole if pole in lost and pole is not None else lost[0]])

    def _where_departed(self, row: NodeDiagnosis) -> NodeDiagnosis:
        """Return the row whose own error is most of the error of another one: the first on the way from there."""
        while row.own_error < _MOSTLY * row.error or row.infinite:
            reads = [self._rows[read] for read in self._read_by(self._findings.reference[row.value])]
            worst = max(reads, key=lambda read: read.error, default=row)
            if worst.error <= self._allowed:
                break
            row = worst
        return row

    def where_lost(self, row: NodeDiagnosis) -> NodeDiagnosis:
        """Return the row where numbers became zero that are zero in a row: the first on the way there."""
        while True:
            reads = [self._rows[read] for read in self._read_by(self._findings.reference[row.value])]
            lost = [read for read in reads if read.vanished >= _MOSTLY * row.vanished > 0.0]
            if not lost:
                return row
            row = min(lost, key=lambda read: read.order)

    def fault_of_origin(self, row: NodeDiagnosis) -> Fault | None:
        """Return what an origin does wrong, as far as it is no question of its own rounding."""
        if row.own_infinite:
            return None
        if row.infinite or row.largest > self._findings.low.max:
            return "overflow"
        return "vanishing" if row.vanished else None

    def _read_by(self, value: ir.Value) -> Iterator[ir.Value]:
        """Yield the nearest values with a row that a result is computed from."""
        return compared_reads(value, self._rows)

    # ---- finite outputs ----

    def ranked(self) -> list[NodeDiagnosis]:
        """Return the rows that outputs feel, the worst first."""
        return sorted((row for row in self._rows.values() if row.contribution), key=self._rank)

    def is_severe(self, row: NodeDiagnosis) -> bool:
        """Whether a node would break the limit on its own by something worse than rounding."""
        is_rounding = row.fault == "rounding" and not is_far(row, self._findings.low)
        return not is_rounding and (row.contribution or 0.0) > self._allowed

    def _rank(self, row: NodeDiagnosis) -> tuple[bool, float]:
        is_severe = self.is_severe(row)
        return not is_severe, float(row.order) if is_severe else -(row.contribution or 0.0)
