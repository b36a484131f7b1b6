"""Warnings of names, arguments and options that a later release takes away (docs/releases.md)."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["deprecated", "deprecation", "renamed_argument", "warn_deprecated"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PACKAGE = __name__.partition(".")[0]


def deprecation(what: str, *, since: str, until: str, instead: str) -> str:
    """Return the sentence that every deprecation says, for the command's messages too."""
    return f"{what} is deprecated since {since} and goes in {until}: use {instead}"


def warn_deprecated(what: str, *, since: str, until: str, instead: str) -> None:
    """Raise a DeprecationWarning at the line, outside this package, that asked for something deprecated.

    Python shows such warnings of the main script and of tests only, and each line once.

    Args:
        what: the thing, such as `amp.old_name()`.
        since: the release that deprecates it.
        until: the release that is without it.
        instead: what to use.
    """
    text = deprecation(what, since=since, until=until, instead=instead)
    warnings.warn(text, DeprecationWarning, stacklevel=_outside())


def deprecated(*, since: str, until: str, instead: str) -> Callable[[_Function], _Function]:
    """Let each call of a function warn.

        @deprecated(since="1.2", until="2.0", instead="transpile()")
        def convert(...): ...

    Args:
        since: the release that deprecates it.
        until: the release that is without it.
        instead: what to use.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def warned(*arguments: Any, **options: Any) -> Any:
            warn_deprecated(f"{function.__name__}()", since=since, until=until, instead=instead)
            return function(*arguments, **options)

        return cast("_Function", warned)

    return decorate


def renamed_argument(old: str, new: str, *, since: str, until: str) -> Callable[[_Function], _Function]:
    """Let a function take an argument by its old name too, which warns.

        @renamed_argument("tol", "tolerance", since="1.2", until="2.0")
        def transpile(..., tolerance=None): ...

    Args:
        old: the name that goes.
        new: the name that stays.
        since: the release that deprecates the old one.
        until: the release that is without it.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def renamed(*arguments: Any, **options: Any) -> Any:
            if old in options:
                if new in options:
                    raise TypeError(f"{function.__name__}() got {new!r} and also {old!r}, its old name: leave that out")
                what = f"{function.__name__}({old}=)"
                warn_deprecated(what, since=since, until=until, instead=f"{new}=")
                options[new] = options.pop(old)
            return function(*arguments, **options)

        return cast("_Function", renamed)

    return decorate


def _outside() -> int:
    """Return the stack level of the first caller outside this package, for `warnings.warn` in `warn_deprecated`."""
    level, frame = 2, sys._getframe(2)  # noqa: SLF001 - warnings.warn of Python 3.11 cannot skip a package by itself
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    return level
