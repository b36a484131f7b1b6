"""Tracks the loops that a program is being built inside: what is drawn in their bodies depends on the turn."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.program.program import Program

__all__ = ["in_turn", "turn_numbers"]

_turns: contextvars.ContextVar[tuple[tuple[Program, ir.Value], ...]] = contextvars.ContextVar(
    "amp_transpiler.turns", default=()
)


@contextlib.contextmanager
def in_turn(program: Program, number: ir.Value) -> Iterator[None]:
    """Build the body of a loop inside the `with` block; `number` is that of the turn, an int64 scalar."""
    token = _turns.set((*_turns.get(), (program, number)))
    try:
        yield
    finally:
        _turns.reset(token)


def turn_numbers(program: Program) -> list[ir.Value]:
    """Return the turn numbers of the loops that a program is being built inside, outer ones first."""
    return [number for owner, number in _turns.get() if owner is program]
