"""Checks arguments of other tools' functions, and tells them from the options of `transpile`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from amp_transpiler.errors import CheckFailed, OptionError
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.options.option import declarations
from amp_transpiler.options.table import other_name
from amp_transpiler.pipeline import transpile
from amp_transpiler.program.program import Program
from amp_transpiler.report import Report

__all__ = ["check_options", "checked_names", "converted", "refuse"]

logger = logging.getLogger(__name__)

_OPTIONS = frozenset(declarations(ConversionOptions))


def converted(
    function: str, src: Any, caller_options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[Program, Report]:
    """Return a converted model, and the report of the conversion.

    Args:
        function: the caller's name, for messages.
        src: the model, as `transpile` takes it.
        caller_options: options of `transpile` that the user wrote beside the other tool's arguments. They win.
        defaults: options of `transpile` that the other tool's arguments stand for.

    Raises:
        TypeError: `caller_options` has a name that is no option of `transpile`.
        CheckFailed: the result is invalid, or not accurate enough.
    """
    check_options(function, caller_options)
    options = {**defaults, **caller_options}
    if options.get("recipe") is None:  # nor do other tools' functions fuse
        options = {"fuse": "none", **options}
    if options.get("level", "auto") == "auto":  # who calls another tool's function wants 16 bits
        options = {"prefer": "low", **options}
    try:
        report = transpile(src, None, **options)
    except CheckFailed as failure:
        if options.get("level") != "O2":
            raise
        advice = "level='auto' finds the nodes that must stay float32, and verify=False takes the model as it is"
        raise CheckFailed(f"{failure}; {function}: {advice}", failure.report) from failure
    logger.info("%s: %r", function, report)
    for warning in report.warnings:
        logger.warning("%s: %s", function, warning)
    if report.program is None:
        raise RuntimeError(f"{function}: a conversion in memory returned no program")  # it always does
    return report.program, report


def check_options(function: str, names: Iterable[str]) -> None:
    """Refuse names that are no options of `transpile`, or are the caller's own.

    Raises:
        TypeError: there is one.
    """
    if unknown := sorted(set(names) - _OPTIONS):
        hint = other_name(unknown[0], _OPTIONS)
        raise TypeError(
            f"{function} has no argument {unknown[0]!r}{hint}; beside its own it takes the options of "
            "amp_transpiler.transpile"
        )


def checked_names(names: Collection[Any] | None, argument: str) -> tuple[str, ...]:
    """Return a list of names; an empty one for None.

    Raises:
        OptionError: it is a string, or holds something else than strings.
    """
    if names is None:
        return ()
    if isinstance(names, str):
        raise OptionError(f"{argument}: expected a list of names, got the string {names!r}; write [{names!r}]")
    checked = tuple(names)
    if wrong := [name for name in checked if not isinstance(name, str)]:
        raise OptionError(f"{argument}: expected a list of names, got {wrong[0]!r} in it")
    return checked


def refuse(function: str, arguments: Mapping[str, Any], remedies: Mapping[str, str]) -> None:
    """Refuse arguments of the original that nothing here can stand for.

    Args:
        function: the caller's name, for messages.
        arguments: argument -> its value; one that is empty, False or None asks for nothing.
        remedies: argument -> why it is refused, and what to use instead.

    Raises:
        OptionError: one of them has a value.
    """
    for name, value in arguments.items():
        if value:
            raise OptionError(f"{function}: {name}={value!r} is not supported: {remedies[name]}")
