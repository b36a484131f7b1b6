"""`Program.state_dict` and `set_state_dict`. The values lie in a scope, which only higher layers know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from amp_transpiler.errors import InputError, OptionError

__all__ = ["Mode", "StateDictionary", "provide_state"]

Mode: TypeAlias = Literal["all", "param", "opt"]
_Read: TypeAlias = "Callable[[Any, Mode, Any], dict[str, np.ndarray]]"
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
        return _functions()[0](self, mode, scope)

    def set_state_dict(self, state_dict: Mapping[str, Any], scope: Any = None) -> None:
        """Set those persistable values that a dictionary has, as `static.set_program_state` does.

        Args:
            state_dict: name -> array, such as `paddle.load` returns.
            scope: where they go; the global scope unless given.

        Raises:
            InputError: a value has another shape or kind of number, or the startup program has not run in the scope.
        """
        _functions()[1](self, state_dict, scope)


def _functions() -> tuple[_Read, _Write]:
    if not _provided:
        raise InputError("there is no scope yet: run the startup program with an Executor first")
    return _provided["scopes"]
