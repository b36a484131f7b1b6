"""Holds tables of the page: heads, cells, and what a cell sorts by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

__all__ = ["Cell", "Column", "PageTable", "table_of"]

Row = TypeVar("Row")
_ABSENT = "-"


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A cell.

    Attributes:
        text: what it says.
        kind: its classes in the style sheet: `n` for a number.
        key: the number that it sorts by; None: by its text.
        code: it is a name from the model.
        link: the anchor that it leads to.
        picture: SVG of ours that says the same, in the place of the text on a page; empty: none.
        more: lines that a page folds into the cell.
    """

    text: str
    kind: str = ""
    key: float | None = None
    code: bool = False
    link: str = ""
    picture: str = ""
    more: tuple[str, ...] = ()

    @property
    def sorts_by(self) -> str:
        """The key as a script reads numbers; empty without any, and for what is no number."""
        if self.key is None or math.isnan(self.key):
            return ""
        infinity = "Infinity" if self.key > 0 else "-Infinity"
        return str(self.key) if math.isfinite(self.key) else infinity


@dataclasses.dataclass(frozen=True, slots=True)
class PageTable:
    """A table.

    Attributes:
        label: what it holds, for screen readers.
        heads: text and classes of each column's head.
        rows: the cells.
        anchors: the anchor of each row; empty if they have none.
        filters: the words of the first column, to choose rows by; empty: it cannot be filtered.
    """

    label: str
    heads: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    anchors: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table whose rows are records.

    Attributes:
        head: its head.
        text: what the cell of a record says.
        has: whether a record has a cell. A column that no record has is left out.
        key: the number that a cell sorts by; None: cells are texts.
        kind: classes of a cell, beside `n` for numbers.
        code: the cells are names from the model.
        picture: SVG that a page shows instead of the text.
        more: lines that a page folds into the cell.
    """

    head: str
    text: Callable[[Row], str]
    has: Callable[[Row], bool] = lambda _: True
    key: Callable[[Row], float] | None = None
    kind: Callable[[Row], str] = lambda _: ""
    code: bool = False
    picture: Callable[[Row], str] = lambda _: ""
    more: Callable[[Row], Sequence[str]] = lambda _: ()

    def cell(self, row: Row) -> Cell:
        """Return the cell of a record: a dash where it has none."""
        number = "n" if self.key is not None else ""
        if not self.has(row):
            return Cell(_ABSENT, number)
        kind = " ".join(filter(None, (number, self.kind(row))))
        key = None if self.key is None else self.key(row)
        return Cell(self.text(row), kind, key, self.code, picture=self.picture(row), more=tuple(self.more(row)))


def table_of(
    label: str,
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    *,
    anchors: Iterable[str] = (),
    filters: Iterable[str] = (),
) -> PageTable:
    """Return the table of some records, without the columns that none of them has."""
    rows = tuple(rows)
    shown = [column for column in columns if any(map(column.has, rows))]
    heads = tuple((column.head, "" if column.key is None else "n") for column in shown)
    cells = tuple(tuple(column.cell(row) for column in shown) for row in rows)
    return PageTable(label, heads, cells, tuple(anchors), tuple(filters))
