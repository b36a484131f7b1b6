"""`Program.state_dict`, `Variable.get_value` and their setters. A layer above provides the values, see `hooks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.program.hooks import scope_values

__all__ = ["Mode", "StateDictionary", "StoredVariable"]

Mode: TypeAlias = Literal["all", "param", "opt"]


class StateDictionary:
    """The part of a program that hands out its persistable values and takes them."""

    def state_dict(self, mode: Mode = "all", scope: Any = None) -> dict[str, np.ndarray]:
        """Return the persistable values by name, as `paddle.save` writes them.

        Args:
            mode: "all"; "param" for parameters and statistics; "opt" for the optimizer's state.
            scope: where they live; the global scope unless given.

        Raises:
            InputError: the scope lacks a value.
            OptionError: the mode is another word.
        """
        if mode not in ("all", "param", "opt"):
            raise OptionError(f"state_dict: mode must be 'all', 'param' or 'opt', got {mode!r}")
        return scope_values().program_state(self, mode, scope, None)

    def set_state_dict(self, state_dict: Mapping[str, Any], scope: Any = None) -> None:
        """Set those persistable values that a dictionary has, as `static.set_program_state` does.

        Args:
            state_dict: name -> array, such as `paddle.load` returns.
            scope: where they go; the global scope unless given.

        Raises:
            InputError: a value has another shape or kind of number, or the startup program has not run in the scope.
        """
        scope_values().set_program_state(self, state_dict, scope)


class StoredVariable:
    """The part of a variable that reads and sets its value in a scope."""

    name: str

    def _program(self) -> Any:
        """Return the program, whose class is defined on top of this module."""
        return vars(self)["program"]

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter of its program, trainable or not."""
        info = self._program().persistables.get(self.name)
        return info is not None and info.kind == "parameter"

    def get_value(self, scope: Any = None) -> np.ndarray:
        """Return the value of a persistable variable.

        Args:
            scope: where it lives; the global scope unless given.

        Raises:
            InputError: it does not persist between runs, or the scope has no value for it.
        """
        if self.name not in self._program().persistables:
            raise InputError(f"'{self.name}' has a value only while a program runs: fetch it")
        return scope_values().program_state(self._program(), "all", scope, [self.name])[self.name]

    def set_value(self, value: Any, scope: Any = None) -> None:
        """Set the value of a persistable variable, and that of its master weight.

        Args:
            value: an array of its shape.
            scope: where it lives; the global scope unless given.

        Raises:
            InputError: it does not persist between runs, the value has another shape or kind of number, or the startup
                program has not run.
        """
        if self.name not in self._program().persistables:
            raise InputError(f"'{self.name}' has a value only while a program runs: feed an input instead")
        scope_values().set_program_state(self._program(), {self.name: value}, scope)
