"""Declares an option: `option()` gives a field of a record its default, its flags, its words and its check."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

__all__ = ["GROUPS", "Declaration", "Form", "Option", "declarations", "option"]

T = TypeVar("T")

GROUPS = {
    "files": "files",
    "decide": "choosing a precision for each node",
    "check": "checking the result",
    "report": "reporting",
}
"""Group -> its heading, in the order of `--help`."""

Form: TypeAlias = Literal["text", "word", "flag", "count", "number", "list", "table", "counts", "limits", "lists"]
"""How TOML and JSON hold a value: `word` is a short text, `counts` a table of whole numbers, `limits` one of numbers
and texts, `lists` the lists of operators."""

_COPIES_TOO = ("files", "report")  # the groups whose options have a meaning where the files are copied as they are


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option as help, pages and messages show it. A field has one, or several that make its value together.

    Attributes:
        group: a key of `GROUPS`.
        name: how the command calls it; as its field unless it has a name here.
        flags: on the command line; without any, the option is a positional argument if it has a metavar, else it exists
            in Python only.
        metavar: placeholder of the value in `--help`. An option with neither metavar nor values is a switch, which sets
            the opposite of the default.
        values: the values with a name -> their meaning. If there is a default, no other values are accepted.
        default: the value used if none is given, where it is one of `values`.
        repeated: may be given several times.
        read: makes a value of the text behind the flag; raises `argparse.ArgumentTypeError` where it is none.
        copying: the value with which the files are copied as they are; None if no value does that.
        for_copies: has a meaning where the files are copied, or does no harm there; None: as its group.
        parameter: the parameter of `transpile` that it sets; None if only the command has it.
        short: a few words, for the options used most, which `--help` shows on one screen; empty: it is none.
        text: one or more sentences, for `--help all` and the page about the command.
        python: the same for `transpile`, where the Python value is of another kind; empty to use `text`.
    """

    group: str
    name: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default: str | None = None
    repeated: bool = False
    read: Callable[[str], Any] = str
    copying: str | None = None
    for_copies: bool | None = None
    parameter: str | None = None
    short: str = ""
    text: str = ""
    python: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether the flag stands for itself: no value follows, and it counts once."""
        return self.metavar is None and not self.repeated

    def is_written(self, raw: Mapping[str, Any]) -> bool:
        """Whether the option is on the command line, by what was read of all of them. `False` may be a value."""
        value = raw[self.name]
        return bool(value) if self.is_switch else value is not None and value != []

    @property
    def is_lost_on_copies(self) -> bool:
        """Whether the option would be ignored where the files are copied as they are."""
        return self.group not in _COPIES_TOO if self.for_copies is None else not self.for_copies


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """The options of one field, and how its value is made and checked.

    Attributes:
        options: what users see of it.
        default: the value of the field where no option is given.
        collect: makes the value of what was read, one argument for each of the options; a list for a repeated one.
        check: returns the value that counts, or raises OptionError.
        held_as: the forms in which TOML and JSON hold the value; none if no file can.
        in_recipes: whether a recipe holds it.
        auto_only: whether it has a meaning at level auto only, which decides by cost.
    """

    options: tuple[Option, ...]
    default: Any
    collect: Callable[..., Any]
    check: Callable[[Any], Any] | None
    held_as: tuple[Form, ...]
    in_recipes: bool
    auto_only: bool

    def value_of(self, raw: Mapping[str, Any]) -> Any:
        """Return the value of the field.

        Args:
            raw: name of an option -> what was read of it; None, False or an empty list where it was not written.
        """
        if not any(option.is_written(raw) for option in self.options):
            return self.default
        if self.options[0].is_switch:
            return not self.default
        return self.collect(*(raw[option.name] for option in self.options))


def option(  # noqa: PLR0913  the columns of a table, which fields name
    default: T,
    *,
    group: str,
    name: str = "",
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    values: Mapping[str, str] | None = None,
    repeated: bool = False,
    read: Callable[[str], Any] = str,
    copying: str | None = None,
    for_copies: bool | None = None,
    parameter: str | None = None,
    short: str = "",
    text: str = "",
    python: str = "",
    further: Sequence[Option] = (),
    collect: Callable[..., Any] | None = None,
    check: Callable[[Any], Any] | None = None,
    held_as: tuple[Form, ...] = (),
    in_recipes: bool = True,
    auto_only: bool = False,
) -> T:
    """Return a field with its default and its declaration. `Option` and `Declaration` say what the arguments mean.

    `further` are options that make the value together with the first one.
    """
    shown = Option(
        group=group,
        name=name,
        flags=flags,
        metavar=metavar,
        values=values or {},
        repeated=repeated,
        read=read,
        copying=copying,
        for_copies=for_copies,
        parameter=parameter,
        short=short,
        text=text,
        python=python,
    )
    collected = collect or (tuple if repeated else _itself)
    declaration = Declaration(
        (shown, *further), default, collected, check, held_as, bool(held_as) and in_recipes, auto_only
    )
    return dataclasses.field(default=default, metadata={"declaration": declaration})


def _itself(value: Any) -> Any:
    return value


@functools.cache
def declarations(record: type) -> dict[str, Declaration]:
    """Return the declarations of a record by field; what an option does not say of itself, its field does.

    Args:
        record: a dataclass whose fields are made by `option()`.
    """
    fields = [field for field in dataclasses.fields(record) if "declaration" in field.metadata]
    return {field.name: _completed(field.metadata["declaration"], field.name) for field in fields}


def _completed(declaration: Declaration, field: str) -> Declaration:
    options = tuple(
        dataclasses.replace(option, name=option.name or field, default=_named_default(option, declaration.default))
        for option in declaration.options
    )
    return dataclasses.replace(declaration, options=options)


def _named_default(option: Option, default: Any) -> str | None:
    return default if isinstance(default, str) and default in option.values else None
