"""All or nothing: a call that fails halfway leaves programs, name counters and its own object as they were."""

from __future__ import annotations

import contextlib
import contextvars
import copy
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

from amp_transpiler.garbage import collection_paused
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program

__all__ = ["all_or_nothing"]

_watched: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("amp_transpiler.watched", default=frozenset())


@contextlib.contextmanager
def all_or_nothing(*programs: Program, owners: Iterable[object] = ()) -> Iterator[None]:
    """Undo every change to the programs, to `unique_name`'s counters and to attributes of `owners` on an exception.

    Inside another such context only what that one does not watch yet is copied.

    Args:
        programs: the programs; weights are shared with the copies that are made of them.
        owners: the object whose method the context is in, and those that it calls.
    """
    outer = _watched.get()
    mine = {id(program): program for program in programs if id(program) not in outer}
    undo = [_undo_program(program) for program in mine.values()]
    undo += [unique_name.remember(), *map(_undo_attributes, owners)]
    token = _watched.set(outer | mine.keys())
    try:
        with collection_paused(stays=True):
            yield
    except BaseException:
        for step in undo:
            step()
        raise
    finally:
        _watched.reset(token)


def _undo_program(program: Program) -> Callable[[], None]:
    before = program.clone()
    return lambda: program.become(before)


def _undo_attributes(owner: object) -> Callable[[], None]:
    before: dict[str, Any] = dict(vars(owner))
    contents = {name: copy.copy(value) for name, value in before.items() if isinstance(value, MutableMapping)}

    def undo() -> None:
        vars(owner).clear()
        vars(owner).update(before)
        for name, content in contents.items():
            before[name].clear()
            before[name].update(content)

    return undo
