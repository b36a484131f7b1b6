"""Hooks through which higher layers give variables their methods, and programs what Paddle's programs have.

A variable of `amp.load(...)` has Paddle's methods, and a program its `state_dict`, before anything of Paddle's was
imported. Imports go down only, so each provider is found by name at its first use. This module is the whole list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from amp_transpiler.lazy import import_late

if TYPE_CHECKING:
    from amp_transpiler.program.blocks import Block

__all__ = ["ScopeValues", "StaticMembers", "VariableMethods", "scope_values", "static_program", "variable_methods"]


class VariableMethods(Protocol):
    """The functions on tensors, as methods and attributes of variables."""

    @property
    def METHODS(self) -> Mapping[str, Callable[..., Any]]:  # noqa: N802  the provider's constant
        """Name -> function of the variable and the other arguments."""

    @property
    def PROPERTIES(self) -> Mapping[str, Callable[[Any], Any]]:  # noqa: N802  likewise
        """Name -> function of the variable, whose result is the attribute."""

    def why_not(self, name: str) -> str | None:
        """Return why there is no attribute of this name, or None if there is nothing to say."""


class ScopeValues(Protocol):
    """How a program's persistable values are read from a scope, and how they are set there."""

    def program_state(
        self, program: Any, mode: Any, scope: Any, wanted: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return persistable values by name: those of `wanted`, or all of the mode."""

    def set_program_state(self, program: Any, state_dict: Mapping[str, Any], scope: Any = None) -> None:
        """Set those persistable values that a dictionary has."""


class StaticMembers(Protocol):
    """What Paddle's `static.Program` does beside an ONNX model."""

    def blocks_of(self, program: Any) -> list[Block]:
        """Return a program as Paddle's operators."""

    def keep_only_inference(self, program: Any) -> None:
        """Take the backward pass and the optimizer out of a program."""


def variable_methods() -> VariableMethods:
    """Return the methods of variables."""
    methods: VariableMethods = import_late("amp_transpiler.paddle.tensor.methods")
    return methods


def scope_values() -> ScopeValues:
    """Return the functions that read and set values in a scope."""
    values: ScopeValues = import_late("amp_transpiler.paddle.static.io")
    return values


def static_program() -> StaticMembers:
    """Return the functions that do what Paddle's `static.Program` does."""
    members: StaticMembers = import_late("amp_transpiler.paddle.static.program")
    return members
