"""`Program.state_dict`, `Variable.get_value` and their setters. Values lie in a scope, which higher layers know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from amp_transpiler.errors import InputError, OptionError

__all__ = ["Mode", "StateDictionary", "StoredVariable", "provide_state"]

Mode: TypeAlias = Literal["all", "param", "opt"]
_Read: TypeAlias = "Callable[[Any, Mode, Any, Sequence[str] | None], dict[str, np.ndarray]]"
_Write: TypeAlias = "Callable[[Any, Mapping[str, Any], Any], None]"

_provided: dict[str, tuple[_Read, _Write]] = {}


def provide_state(read: _Read, write: _Write) -> None:
    """Say how a program's persistable values are read from a scope, and how they are set there."""
    _provided["scopes"] = read, write


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
        return _functions()[0](self, mode, scope, None)

    def set_state_dict(self, state_dict: Mapping[str, Any], scope: Any = None) -> None:
        """Set those persistable values that a dictionary has, as `static.set_program_state` does.

        Args:
            state_dict: name -> array, such as `paddle.load` returns.
            scope: where they go; the global scope unless given.

        Raises:
            InputError: a value has another shape or kind of number, or the startup program has not run in the scope.
        """
        _functions()[1](self, state_dict, scope)


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
        return _functions()[0](self._program(), "all", scope, [self.name])[self.name]

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
        _functions()[1](self._program(), {self.name: value}, scope)


def _functions() -> tuple[_Read, _Write]:
    if not _provided:
        raise InputError("there is no scope yet: run the startup program with an Executor first")
    return _provided["scopes"]
