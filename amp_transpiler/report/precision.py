"""Names the precision of a node by the same words in tables, Python, JSON and pages."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["KINDS", "Kind", "Precision", "kind_of"]

Kind = Literal["low", "high", "untouched"]
"""How decisions call them, whatever the low format is."""

KINDS: tuple[Kind, ...] = get_args(Kind)  # in the order of every table and chart
_WORDS: dict[Kind, str] = {"high": "float32", "untouched": "unchanged"}


class Precision(str):
    """The precision of a node: `float16` or `bfloat16`, `float32`, or `unchanged`.

    It equals the word that it had in earlier releases, too: `low`, `high` or `untouched`.
    """

    __slots__ = ()

    @classmethod
    def of(cls, kind: Kind, low: str) -> Precision:
        """Return the word for a kind, where `low` is the low format."""
        return cls(_WORDS.get(kind, low))

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or (type(other) is str and other == kind_of(self))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def kind_of(precision: str) -> Kind:
    """Return the kind that a word stands for."""
    kinds: dict[str, Kind] = {**{word: kind for kind, word in _WORDS.items()}, "high": "high", "untouched": "untouched"}
    return kinds.get(str.__str__(precision), "low")
