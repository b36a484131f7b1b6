"""Arguments are checked against the types that functions declare, so that a mistake is named where it is made."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from amp_transpiler.errors import WrongTypeError
from amp_transpiler.graph.lines import users_line
from amp_transpiler.graph.name_matching import did_you_mean
from amp_transpiler.program.program import Variable

__all__ = ["check_arguments", "checked"]

_F = TypeVar("_F", bound=Callable[..., Any])
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    Variable: "a variable of a program",
    np.ndarray: "an array",
    type(None): "None",
}
_IN_ALIASES = {"Sequence": Sequence, "Variable": Variable, "np": np}  # names in aliases, which modules need not import
_LISTS = (list, tuple, collections.abc.Sequence)
_PACKAGE = f"{__name__.partition('.')[0]}."
_VARIABLE = ": paddle.assign makes a variable of an array"


def check_arguments(module: dict[str, Any], names: Iterable[str], *, but: Sequence[str] = ()) -> None:
    """Let the functions of a module, and the constructors of its classes, check their arguments.

    Args:
        module: the module's globals, edited in place.
        names: the module's public names; those that are not its own stay.
        but: parameters that the functions check themselves.
    """
    for name in names:
        member = module[name]
        if getattr(member, "__module__", None) != module["__name__"]:
            continue
        if inspect.isfunction(member):
            module[name] = checked(member, but=but)
        elif inspect.isclass(member) and "__init__" in vars(member):
            setattr(member, "__init__", checked(member.__init__, member.__name__, but))  # noqa: B010  # the same, but checked


def checked(function: _F, label: str = "", but: Sequence[str] = ()) -> _F:
    """Return a function that compares its arguments with their declared types before it runs.

    Whole numbers, numbers, strings, variables, None, and lists of them are compared; what else a parameter may be is
    left to the function.

    Args:
        function: the function.
        label: its name in messages; its own unless given.
        but: parameters that it checks itself.
    """
    signature, label = inspect.signature(function), label or function.__qualname__

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            names = [name for name in signature.parameters if name not in ("self", "args", "kwargs")]
            unknown = next((name for name in kwargs if name not in signature.parameters), "")
            near = did_you_mean(unknown, names) or f"; it takes {', '.join(names) or 'nothing'}"
            raise WrongTypeError(f"{label}{_where()}: {error}{near}") from None
        for name, value in arguments.items():
            hint = hints().get(name)
            if hint is not None and not _fits(hint, value):
                raise WrongTypeError(_complaint(label, name, hint, value))
        return function(*args, **kwargs)

    @functools.cache
    def hints() -> dict[str, Any]:
        """Return the declared types that can be checked; resolved at the first call, when all modules are there."""
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        single = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind not in variadic and name not in but
        ]
        declared = {name: _resolved(function, name) for name in single}
        defaults = {name: signature.parameters[name].default for name in single}
        return {
            name: hint for name, hint in declared.items() if _says(hint) and _fits(hint, defaults[name], missing=True)
        }

    return typing.cast("_F", called)


def _resolved(function: Callable[..., Any], name: str) -> Any:
    """Return the type that a parameter is declared as; Any where it is known to type checkers only."""
    declared = inspect.unwrap(function).__annotations__.get(name, Any)
    stand_in = types.SimpleNamespace(__annotations__={name: declared})
    namespace = {**_IN_ALIASES, **getattr(inspect.unwrap(function), "__globals__", {})}
    for word in re.findall(r"\w+", declared if isinstance(declared, str) else ""):
        if isinstance(namespace.get(word), str):  # an alias
            namespace[word] = typing.ForwardRef(namespace[word])
    try:
        return typing.get_type_hints(stand_in, namespace)[name]
    except NameError:
        return Any


def _says(hint: Any) -> bool:
    """Whether a declared type rules out any value, as far as that can be checked."""
    if members := _members(hint):
        return all(map(_says, members))
    return hint in _WORDS or _is_list(hint) or _is_own_class(hint)


def _is_own_class(hint: Any) -> bool:
    return inspect.isclass(hint) and hint.__module__.startswith(_PACKAGE) and not getattr(hint, "_is_protocol", False)


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) in _LISTS and len(typing.get_args(hint)) == 1


def _fits(hint: Any, value: Any, *, missing: bool = False) -> bool:
    """Whether a value is of a declared type. With `missing`, a parameter without a default is, too."""
    if missing and value is inspect.Parameter.empty:
        return True
    if members := _members(hint):
        return any(_fits(member, value) for member in members)
    if _is_list(hint):
        inner = typing.get_args(hint)[0]
        return _is_sequence(value) and (inner is not Variable or len(value) > 0) and all(_fits(inner, v) for v in value)
    if hint is int:
        return hasattr(value, "__index__")
    if hint is float:
        return hasattr(value, "__float__") and not isinstance(value, Variable) and np.size(value) == 1
    if hint is np.ndarray:
        return isinstance(value, (np.ndarray, np.generic)) or _is_sequence(value)
    return not _says(hint) or isinstance(value, hint)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim != 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _where() -> str:
    line = users_line()
    return "" if line is None else f" (at {line})"


def _complaint(label: str, name: str, hint: Any, value: Any) -> str:
    remedy = _VARIABLE if _takes_variable(hint) and isinstance(value, (np.ndarray, list, tuple)) else ""
    return f"{label}{_where()}: {name} must be {_described(hint)}, got {value!r:.80}{remedy}"


def _takes_variable(hint: Any) -> bool:
    return hint is Variable or (Variable in _members(hint) and not any(map(_is_list, _members(hint))))


def _described(hint: Any) -> str:
    if members := _members(hint):
        said = list(dict.fromkeys(map(_described, members)))
        return f"{', '.join(said[:-1])} or {said[-1]}" if len(said) > 1 else said[0]
    if _is_list(hint):
        inner = _described(typing.get_args(hint)[0])
        return "a list of " + " or ".join(dict.fromkeys(_plural(word) for word in re.split(", | or ", inner)))
    return _WORDS.get(hint) or f"{'an' if hint.__name__[0] in 'AEIOU' else 'a'} {hint.__name__}"


def _plural(word: str) -> str:
    if word == "None":
        return word
    first, *rest = word.removeprefix("a ").removeprefix("an ").split(" of ")
    return " of ".join([f"{first}s", *rest])
