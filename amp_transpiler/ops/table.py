"""The operator table: `operators.txt`, one row per operator, read once."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

__all__ = ["OperatorRow", "column", "of_kind", "operator_table", "parse_table", "unmatched"]

_EMPTY = "-"
_UNMATCHED = "none"  # the row of the names that no ONNX operator corresponds to


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorRow:
    """One row of the table: the facts about one operator.

    Attributes:
        operator: its name (`Conv`, `com.microsoft::FusedConv`), or a finer class of it (`Conv[depthwise]`).
        kinds: the kinds it belongs to; `operators.txt` explains them.
        cells: column -> text, empty cells left out.
    """

    operator: str
    kinds: frozenset[str]
    cells: Mapping[str, str]

    def words(self, name: str) -> tuple[str, ...]:
        """Return the words of a cell; none if it is empty."""
        return tuple(self.cells.get(name, "").split())


@functools.cache
def operator_table() -> Mapping[str, OperatorRow]:
    """Return operator -> its row, in the order of the table."""
    return MappingProxyType({name: row for name, row in _file().items() if name != _UNMATCHED})


def unmatched(name: str) -> tuple[str, ...]:
    """Return the words in a column that no ONNX operator corresponds to."""
    return _file()[_UNMATCHED].words(name)


@functools.cache
def column(name: str) -> Mapping[str, str]:
    """Return operator -> its cell in one column, empty cells left out.

    Raises:
        ValueError: the table has no such column.
    """
    cells = {operator: row.cells[name] for operator, row in operator_table().items() if name in row.cells}
    if not cells:
        raise ValueError(f"the operator table has no column {name!r}")
    return MappingProxyType(cells)


@functools.cache
def of_kind(kind: str) -> frozenset[str]:
    """Return the operators of a kind.

    Raises:
        ValueError: no operator is of that kind.
    """
    operators = frozenset(operator for operator, row in operator_table().items() if kind in row.kinds)
    if not operators:
        raise ValueError(f"the operator table has no kind {kind!r}")
    return operators


def parse_table(lines: Iterable[str]) -> dict[str, OperatorRow]:
    """Return operator -> its row, for lines of columns separated by `|`.

    Args:
        lines: comments that begin with `#`, a line with the names of the columns, then the rows.

    Raises:
        ValueError: an operator has two rows, or a row has another number of cells than the header.
    """
    rows: dict[str, OperatorRow] = {}
    header: list[str] = []
    for line in lines:
        if line.startswith("#") or not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(" | ")]
        if not header:
            header = cells
            continue
        operator, kinds, *rest = cells
        if operator in rows or len(cells) != len(header):
            fault = "two rows" if operator in rows else f"{len(cells)} cells instead of {len(header)}"
            raise ValueError(f"operator table: {operator} has {fault}")
        filled = {name: cell for name, cell in zip(header[2:], rest, strict=True) if cell != _EMPTY}
        rows[operator] = OperatorRow(operator, frozenset(kinds.split()) - {_EMPTY}, MappingProxyType(filled))
    return rows


@functools.cache
def _file() -> Mapping[str, OperatorRow]:
    return parse_table(pathlib.Path(__file__).with_name("operators.txt").read_text(encoding="utf-8").splitlines())
