"""Switches of the whole process, as Paddle's `FLAGS_...`: a table of names, defaults and meanings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

from amp_transpiler.errors import OptionError

__all__ = ["FLAGS", "Flag", "flag", "get_flags", "set_flags"]


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """A switch.

    Attributes:
        name: Paddle's name, or one in its style.
        default: its value unless the environment variable of the same name, or `set_flags`, says otherwise.
        meaning: what it does when it is on.
    """

    name: str
    default: bool
    meaning: str


FLAGS = (
    Flag(
        "FLAGS_check_nan_inf",
        False,
        "a run whose updates, losses or fetched values are not finite is an error that names the node; nothing changes",
    ),
    Flag(
        "FLAGS_check_index_range",
        True,
        "labels and embedding ids outside of their range are an error, also negative ones that would wrap round",
    ),
)
_WORDS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "": False}
_values: dict[str, bool] = {}


def flag(name: str) -> bool:
    """Return the value of a flag of the table."""
    if name not in _values:
        known = next(one for one in FLAGS if one.name == name)
        _values[name] = _boolean(name, os.environ.get(name, known.default))
    return _values[name]


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags of the whole process, as in `paddle.set_flags({"FLAGS_check_nan_inf": True})`.

    They are read when a program runs. An environment variable of the same name gives the first value.

    Args:
        flags: name -> True or False (1 or 0).

    Raises:
        OptionError: there is no such flag, or a value is not true or false; nothing changed.
    """
    checked = {_known(name): _boolean(name, value) for name, value in flags.items()}
    _values.update(checked)


def get_flags(flags: str | Iterable[str]) -> dict[str, bool]:
    """Return the values of flags by name.

    Args:
        flags: a name, or several.

    Raises:
        OptionError: there is no such flag.
    """
    return {name: flag(_known(name)) for name in ([flags] if isinstance(flags, str) else flags)}


def _known(name: str) -> str:
    names = [one.name for one in FLAGS]
    if name not in names:
        raise OptionError(f"there is no flag {name!r}: the flags are {', '.join(names)}")
    return name


def _boolean(name: str, value: Any) -> bool:
    found = _WORDS.get(str(value).lower())
    if found is None:
        raise OptionError(f"{name} is true or false, got {value!r}")
    return found
