"""The line of the user's program that made a node or an input, for messages."""

from __future__ import annotations

import contextlib
import contextvars
import linecache
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

__all__ = ["Line", "at_line_of", "line_of", "mark_line", "users_line"]

_LINE_KEY = "amp_transpiler.line"  # in `meta`, which is copied with a model, and is not written to files
_SHOWN = 80  # characters of a line

_line: contextvars.ContextVar[Line | None] = contextvars.ContextVar("amp_transpiler.line", default=None)


class Line(NamedTuple):
    """A line of the user's program.

    Attributes:
        file: the file, as Python names it.
        number: the line.
    """

    file: str
    number: int

    def __str__(self) -> str:
        path, here = pathlib.Path(self.file), pathlib.Path.cwd()
        return f"{path.relative_to(here) if path.is_relative_to(here) else path.name}:{self.number}"

    @property
    def text(self) -> str:
        """The text of the line, in backquotes; empty if it is not known."""
        source = " ".join(linecache.getline(self.file, self.number).split())
        shown = source if len(source) <= _SHOWN else f"{source[:_SHOWN]}..."
        return f"`{shown}`" if shown else ""


def mark_line(thing: ir.Node | ir.Value) -> None:
    """Note the line of the user's program that makes a node or an input: the innermost outside of this package."""
    line = _line.get() or users_line()
    if line is not None:
        thing.meta[_LINE_KEY] = line


def line_of(thing: ir.Node | ir.Value) -> Line | None:
    """Return the line of the user's program that made a node or a value; None if it is not known."""
    made_by = thing.producer() if isinstance(thing, ir.Value) else None
    line = (thing if made_by is None else made_by).meta.get(_LINE_KEY)
    return line if isinstance(line, Line) else None


def users_line() -> Line | None:
    """Return the line of the user's program that runs now: the innermost outside of this package."""
    frame = sys._getframe(1)  # noqa: SLF001  # the stack module is a hundred times slower, and every node asks
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno)


_PACKAGE = f"{pathlib.Path(users_line.__code__.co_filename).parent.parent}{os.sep}"  # as frames name its files


@contextlib.contextmanager
def at_line_of(node: ir.Node) -> Iterator[None]:
    """Give nodes that are made in this context the line of `node`."""
    token = _line.set(line_of(node))
    try:
        yield
    finally:
        _line.reset(token)
