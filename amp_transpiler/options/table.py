"""Lists every option as a row, for `--help`, pages and messages; finds what a user means by another name of one."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from amp_transpiler.errors import WrongTypeError
from amp_transpiler.options.command import CommandOptions
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.options.option import GROUPS, Option, declarations

__all__ = ["OPTIONS", "RECORDED", "flag_for", "named_as_in_the_table", "other_name", "similar_flags"]

P = ParamSpec("P")
R = TypeVar("R")


def _rows() -> tuple[Option, ...]:
    shared = [
        dataclasses.replace(option, parameter=field)
        for field, declaration in declarations(ConversionOptions).items()
        for option in declaration.options
    ]
    of_the_command = [option for declared in declarations(CommandOptions).values() for option in declared.options]
    return tuple(option for group in GROUPS for option in (*shared, *of_the_command) if option.group == group)


OPTIONS = _rows()
"""The options of `transpile` and of the command, in the order of `--help`."""

RECORDED = {
    field: declaration.held_as
    for field, declaration in declarations(ConversionOptions).items()
    if declaration.in_recipes
}
"""The options that a recipe holds -> the forms that their values have in TOML. Files, data and what is only printed are
not among them."""


def flag_for(flag: str) -> str:
    """Return, for a flag that the command has not, what it has instead; empty if nothing is like it."""
    option = _meant(flag)
    if option is None:
        return ""
    if not option.flags:
        return f"{flag} is no option of the command: {option.name!r} is a parameter of transpile only"
    flags = [row.flags[-1] for row in OPTIONS if row is option or (row.parameter and row.parameter == option.parameter)]
    if flags[0].startswith("--no-") and not _plain(flag).startswith("no_"):
        return f"{flag} is the default; {flags[0]} switches it off"
    return f"{flag} is {', '.join(flags)} on the command line; see amp-transpile --help all"


def similar_flags(flag: str) -> str:
    """Return a question with flags of the command that are spelt like this one; empty if there are none."""
    from amp_transpiler.graph.name_matching import did_you_mean  # few calls are wrong

    return did_you_mean(flag, (known for option in OPTIONS for known in option.flags))


def _meant(name: str) -> Option | None:
    """Return the option that a user means, by any of its names: a flag, a parameter, with dashes or underscores."""
    plain = _plain(name)
    for option in OPTIONS:
        names = (option.name, option.parameter or "", *option.flags, *_OTHER_NAMES.get(option.name, ()))
        if plain in map(_plain, names):
            return option
    return None


def named_as_in_the_table(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function answer an argument that it does not know with the name that it has for it.

    Raises:
        WrongTypeError: by the function, which is a TypeError, too.
    """
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters:
                hint = other_name(name, parameters) or "; see help(transpile)"
                raise WrongTypeError(f"{function.__name__} has no parameter {name!r}{hint}")
        return function(*args, **kwargs)

    return checked


def other_name(name: str, parameters: Iterable[str]) -> str:
    """Return, for an argument that a function has not, what it has instead, to stand behind its name; else nothing.

    Args:
        name: the argument.
        parameters: what the function takes.
    """
    from amp_transpiler.graph.name_matching import did_you_mean  # few calls are wrong

    option = _meant(name)
    if option is None or option.parameter not in (None, *parameters):
        return did_you_mean(name, parameters)
    if option.parameter is None:
        return f": {option.flags[-1]} is an option of the command only; the report that transpile returns has it all"
    flag = option.flags[-1] if option.flags else option.metavar
    python = f"{option.parameter}=False" if str(flag).startswith("--no-") else option.parameter
    return f": the command's {flag} is {python} in Python"


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


_OTHER_NAMES = {
    "output": ("output", "out"),
    "models": ("model", "path", "source"),
    "no_verify": ("skip_verify",),
    "white": ("white_list", "custom_white_list"),
    "black": ("black_list", "custom_black_list"),
    "io_types": ("keep_io",),
    "dims": ("dim", "shapes"),
    "inputs": ("samples", "data"),
}
"""Option -> names that users try for it although neither the command nor Python has them."""
