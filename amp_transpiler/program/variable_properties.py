"""What a variable tells of its value, which may persist in a scope; `hooks` says who reads and sets it there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.program.hooks import scope_values

if TYPE_CHECKING:
    from amp_transpiler.graph.builder import GraphBuilder

__all__ = ["Persistable", "VariableProgram", "VariableProperties"]


@dataclasses.dataclass(slots=True)
class Persistable:
    """A value that persists in a scope between runs.

    Attributes:
        name: its name, in the program and in the scope.
        kind: `parameter`; `statistic`: updated by the forward pass, such as a running mean; `state`: an optimizer's.
        trainable: whether an optimizer updates it.
        learning_rate: factor on the optimizer's learning rate, for this parameter.
        regularizer: its own weight decay, instead of the optimizer's.
        need_clip: whether gradient clipping touches it.
        driver: what says its value before each run, such as a schedule.
    """

    name: str
    kind: Literal["parameter", "statistic", "state"]
    trainable: bool = True
    learning_rate: float = 1.0
    regularizer: Any = None
    need_clip: bool = True
    driver: Callable[[], float] | None = None


class VariableProgram(Protocol):
    """What a variable asks its program for."""

    persistables: dict[str, Persistable]
    no_gradient: set[str]

    def value(self, name: str) -> ir.Value:
        """Return the value with this name."""

    def builder(self) -> GraphBuilder:
        """Return what appends operators."""


class VariableProperties:
    """Type, shape and role of a variable, and its value in a scope."""

    program: VariableProgram
    name: str

    def __init__(self, program: VariableProgram, name: str) -> None:
        self.program = program
        self.name = name

    @property
    def value(self) -> ir.Value:
        """The current value in the program's graph."""
        return self.program.value(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; -1 for an open or unknown dimension."""
        shape = self.value.shape
        return () if shape is None else tuple(size if isinstance(size, int) else -1 for size in shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """The element type as numpy names it: `float32`, `float16`, `bfloat16`, `int64`, ..."""
        dtype = self.value.dtype
        return "unknown" if dtype is None else str(dtype.numpy().name)

    @property
    def persistable(self) -> bool:
        """Whether it persists in the scope between runs."""
        return self.name in self.program.persistables

    @property
    def info(self) -> Persistable | None:
        """Its record as a persistable value, or None."""
        return self.program.persistables.get(self.name)

    @property
    def trainable(self) -> bool:
        """Whether optimizers update it; may be set for a parameter, before `minimize`."""
        info = self.info
        return info is not None and info.kind == "parameter" and info.trainable

    @trainable.setter
    def trainable(self, train: bool) -> None:
        info = self.info
        if info is None or info.kind != "parameter":
            raise InputError(f"'{self.name}' is no parameter, so trainable cannot be set: set stop_gradient")
        info.trainable = train

    @property
    def stop_gradient(self) -> bool:
        """Whether no gradient passes through it; may be set."""
        return self.name in self.program.no_gradient

    @stop_gradient.setter
    def stop_gradient(self, stop: bool) -> None:
        (self.program.no_gradient.add if stop else self.program.no_gradient.discard)(self.name)

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter of its program, trainable or not."""
        info = self.program.persistables.get(self.name)
        return info is not None and info.kind == "parameter"

    def get_value(self, scope: Any = None) -> np.ndarray:
        """Return the value of a persistable variable.

        Args:
            scope: where it lives; the global scope unless given.

        Raises:
            InputError: it does not persist between runs, or the scope has no value for it.
        """
        if self.name not in self.program.persistables:
            raise InputError(f"'{self.name}' has a value only while a program runs: fetch it")
        return scope_values().program_state(self.program, "all", scope, [self.name])[self.name]

    def set_value(self, value: Any, scope: Any = None) -> None:
        """Set the value of a persistable variable, and that of its master weight.

        Args:
            value: an array of its shape.
            scope: where it lives; the global scope unless given.

        Raises:
            InputError: it does not persist between runs, the value has another shape or kind of number, or the startup
                program has not run.
        """
        if self.name not in self.program.persistables:
            raise InputError(f"'{self.name}' has a value only while a program runs: feed an input instead")
        scope_values().set_program_state(self.program, {self.name: value}, scope)
