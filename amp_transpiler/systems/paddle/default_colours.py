"""Paddle's default operator lists, from the operator table."""

from __future__ import annotations

import enum

from amp_transpiler.ops.table import OperatorRow, operator_table

__all__ = ["DEFAULT_COLOURS", "Colour"]


class Colour(enum.Enum):
    """The list that an operator is on.

    Attributes:
        WHITE: lower precision at every level.
        BLACK: float32 for numerical reasons at O1; level O2 lifts it.
        GRAY: follows its producers.
        UNSUPPORTED: float32 at every level: the extra black list, and what the user listed as black.
        UNLISTED: on no list: float32 at O1, lower precision at O2.
    """

    WHITE = "white"
    BLACK = "black"
    GRAY = "gray"
    UNSUPPORTED = "unsupported"
    UNLISTED = "unlisted"


_NAMES_SHOWN = 3  # Resize has ten


def _reason(row: OperatorRow) -> str:
    """Return why the operator has its colour, with the Paddle operators that are on the list."""
    names = row.words("paddle names")
    shown = ", ".join((*names[:_NAMES_SHOWN], *(("...",) if len(names) > _NAMES_SHOWN else ())))
    return ": ".join(filter(None, (row.cells.get("paddle reason"), shown))) or "moves values"


DEFAULT_COLOURS: dict[str, tuple[Colour, str]] = {
    operator: (Colour(row.cells["paddle"]), _reason(row))
    for operator, row in operator_table().items()
    if "paddle" in row.cells
}
"""Operator or finer class -> its default colour and the reason."""
