"""Shares phrases between messages and reports: a number with its noun, and the first few of many names."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

__all__ = ["counted", "first_few", "quoted"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def first_few(texts: Collection[str], limit: int = 3) -> str:
    """Return texts with commas, the first ones and how many more there are: `a, b, c and 4 more`."""
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(islice(texts, limit)) + more


def quoted(names: Iterable[str | None]) -> list[str]:
    """Return names in quotation marks."""
    return [f"'{name}'" for name in names]
