"""Refuses names of Paddle that a static ONNX program cannot have, with the reason."""

from __future__ import annotations

from typing import Any, NoReturn

from amp_transpiler.errors import OptionError

__all__ = ["Refusal", "refusal"]


class Refusal:
    """Stands for a function or class of Paddle that is not available; calling it says why.

    Args:
        name: its name, such as `static.py_func`.
        reason: why not, and what to do instead.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        self.__doc__ = f"Refused: {reason}."

    def __repr__(self) -> str:
        return f"<{self.name}, which is not available>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse.

        Raises:
            OptionError: always.
        """
        del args, kwargs
        raise OptionError(f"paddle.{self.name} is not available: {self.reason}")


def refusal(name: str, reason: str) -> Any:
    """Return the stand-in that refuses under this name."""
    return Refusal(name, reason)
