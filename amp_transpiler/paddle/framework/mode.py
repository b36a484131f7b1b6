"""Switches static mode, the only one there is: after `disable_static`, the default programs take no layers."""

from __future__ import annotations

from typing import Any

from amp_transpiler.errors import OptionError

__all__ = [
    "check_static",
    "disable_static",
    "enable_static",
    "in_dynamic_mode",
    "in_dynamic_or_pir_mode",
    "in_pir_mode",
]

_state = {"dynamic": False}


def enable_static() -> None:
    """Build programs. That is so from the start, so this only undoes a `disable_static`."""
    _state["dynamic"] = False


def disable_static(place: Any = None) -> None:
    """Leave static mode, as scripts do when they have run their programs.

    There is no dynamic mode to enter: what is built afterwards outside of a `program_guard` is an error. Programs that
    are there still run.

    Args:
        place: Paddle's, no effect.
    """
    del place
    _state["dynamic"] = True


def in_dynamic_mode() -> bool:
    """Whether `disable_static` was called, and `enable_static` not since."""
    return _state["dynamic"]


def in_pir_mode() -> bool:
    """Return False: programs are ONNX's, not of Paddle's newer representation."""
    return False


def in_dynamic_or_pir_mode() -> bool:
    """Whether `disable_static` was called, and `enable_static` not since."""
    return in_dynamic_mode()


def check_static() -> None:
    """Refuse to build in the default programs after `disable_static`.

    Raises:
        OptionError: `disable_static` was called, and `enable_static` not since.
    """
    if in_dynamic_mode():
        raise OptionError(
            "paddle.disable_static() was called, and there is no dynamic mode here: call paddle.enable_static(), or "
            "build under paddle.static.program_guard, and run the program with paddle.static.Executor"
        )
