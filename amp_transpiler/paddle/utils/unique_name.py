"""Generates names for layers and parameters that have none: `conv2d_0.w_0`, counted from zero inside a guard."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator

__all__ = ["generate", "guard", "remember"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Generator:
    prefix: str = ""
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


_process_wide = _Generator()
_current: contextvars.ContextVar[_Generator | None] = contextvars.ContextVar("amp_transpiler.unique_name", default=None)


def generate(key: str) -> str:
    """Return `key_0`, `key_1`, ...: a name not generated before inside this guard."""
    generator = _current.get() or _process_wide
    count = generator.counts[key]
    generator.counts[key] += 1
    return f"{generator.prefix}{key}_{count}"


def remember() -> Callable[[], None]:
    """Return a function that sets the counters in force back to what they are now."""
    counts = (_current.get() or _process_wide).counts
    before = counts.copy()

    def restore() -> None:
        counts.clear()
        counts.update(before)

    return restore


@contextlib.contextmanager
def guard(new_generator: str | None = None) -> Iterator[None]:
    """Count from zero inside, so that two programs built alike, each in a guard, name their parameters alike.

    Args:
        new_generator: a prefix of all names generated inside.
    """
    token = _current.set(_Generator(new_generator or ""))
    try:
        yield
    finally:
        _current.reset(token)
