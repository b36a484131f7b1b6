"""Keeps values in a child process: results that only further runs there read do not travel.

The parent holds a `KeptValue` in the place of an array, and feeds it like one. The child gives the memory back when the
parent holds it no more, or when the last session that shares memory is closed.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

__all__ = ["KeptNumber", "KeptValue"]


@dataclasses.dataclass(frozen=True, slots=True)
class KeptNumber:
    """A kept value on its way between the processes."""

    number: int


class _Holder(Protocol):
    def ask(self, operation: str, *arguments: Any) -> Any: ...
    def let_go(self, number: int) -> None: ...


class KeptValue:
    """A value in a child. It goes when nothing refers to it.

    Args:
        child: the child.
        kept: its number there.
    """

    __array_ufunc__ = None  # an array that is added to it asks `__radd__`

    def __init__(self, child: _Holder, value: KeptNumber) -> None:
        self._child, self._number = child, value.number
        weakref.finalize(self, child.let_go, value.number).atexit = False

    def __reduce__(self) -> tuple[Callable[[int], KeptNumber], tuple[int]]:
        return KeptNumber, (self._number,)

    def __add__(self, other: KeptValue | np.ndarray) -> KeptValue:
        return KeptValue(self._child, self._child.ask("add", self, other))

    def __radd__(self, other: np.ndarray) -> KeptValue:
        return KeptValue(self._child, self._child.ask("add", other, self))
