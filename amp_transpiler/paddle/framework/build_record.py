"""Keeps what layers note of a program while they build it, which no ONNX model has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from amp_transpiler.program.program import Program

__all__ = ["BuildRecord", "build_record"]


@dataclasses.dataclass(slots=True)
class BuildRecord:
    """Holds the notes of Paddle's layers on a program.

    Attributes:
        custom_gradients: names of inputs and of outputs, and the function that makes gradients of the inputs of those
            of the outputs, as `static_pylayer` is given them; in the order of the program.
        drawn: names of the persistable values whose initial values are drawn, in order.
        drawn_with: the seeds that were in force when they were drawn.
    """

    custom_gradients: list[tuple[list[str], list[str], Callable[..., Any]]] = dataclasses.field(default_factory=list)
    drawn: list[str] = dataclasses.field(default_factory=list)
    drawn_with: tuple[int, int] | None = None

    def of_copy(self) -> BuildRecord:
        """Return the record of a copy of the program, of which nothing was drawn yet."""
        return BuildRecord(list(self.custom_gradients), list(self.drawn))


def build_record(program: Program) -> BuildRecord:
    """Return the record of a program, a new one if it has none."""
    record = program.attached.setdefault(BuildRecord, BuildRecord())
    assert isinstance(record, BuildRecord)
    return record
