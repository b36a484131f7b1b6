"""RAF's families of operators, from the operator table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

from amp_transpiler.ops.table import OperatorRow, operator_table

__all__ = ["FAMILIES", "Family"]

Kind: TypeAlias = Literal["always", "never", "infer", "either", "concat", "follow", "data", "none"]


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """How RAF decides about an operator.

    Attributes:
        kind: `always`: always low. `never`: never low. `infer`: float32 if more voting inputs are float32 than low;
            left alone if nothing votes or it has several outputs. `either`: low if any voting input is. `concat`: low
            if more inputs are low than float32, and there are at most five. `follow`: as its first float32 input.
            `data`: the first input is always low, the others never. `none`: never asked.
        votes: how many float32 inputs vote, from the first on; None: all.
        reason: RAF's name of the operator, or of its nearest relative there.
    """

    kind: Kind
    votes: int | None
    reason: str


def _family(row: OperatorRow) -> Family:
    kind, *votes = row.words("raf")
    return Family(cast(Kind, kind), int(votes[0]) if votes and votes[0] != "*" else None, row.cells["raf names"])


FAMILIES: Mapping[str, Family] = {
    operator: _family(row) for operator, row in operator_table().items() if "raf" in row.cells
}
"""Operator -> its family."""
