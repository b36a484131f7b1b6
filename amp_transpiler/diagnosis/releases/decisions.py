"""Compares what conversions for two releases of ONNX Runtime decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amp_transpiler.report.record import DecisionRow
from amp_transpiler.report.release_difference import DecisionChange

__all__ = ["decision_changes"]


def decision_changes(old: Sequence[DecisionRow], new: Sequence[DecisionRow]) -> Iterator[DecisionChange]:
    """Yield the nodes that are decided otherwise; nodes that only one conversion has, too.

    Args:
        old: the decisions for the old release.
        new: those for the new one.
    """
    rows, others = _by_node(old), _by_node(new)
    for key in {**rows, **others}:
        row, other = rows.get(key), others.get(key)
        if row is not None and other is not None and row.precision == other.precision:
            continue
        named = row or other
        assert named is not None, "each key is that of a row"
        yield DecisionChange(
            node=named.name,
            op=named.op,
            old="" if row is None else str(row.precision),
            new="" if other is None else str(other.precision),
            old_reason="" if row is None else row.reason,
            new_reason="" if other is None else other.reason,
            scope=named.scope,
        )


def _by_node(rows: Sequence[DecisionRow]) -> Mapping[tuple[str, str], DecisionRow]:
    return {(row.scope, row.name): row for row in rows}
