"""Converts the texts behind the command's flags to values; `argparse` shows what is wrong with a text."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Literal

from amp_transpiler.errors import OptionError
from amp_transpiler.ops.fusions import checked_fusions
from amp_transpiler.precision.limits import checked_headroom, parse_mismatch, parse_tolerance
from amp_transpiler.precision.user_lists import UserLists

__all__ = [
    "custom_op_types",
    "dimension",
    "dtype_name",
    "float32_inputs",
    "fusions",
    "headroom",
    "io_types",
    "mismatch",
    "mixed_operators",
    "number",
    "number_of_processes",
    "number_of_terms",
    "opset_number",
    "regular_expression",
    "rescale",
    "split_sums",
    "state_pair",
    "tolerance",
    "user_lists",
]

_MOST_JOBS = 256


def dtype_name(text: str) -> str:
    """Return the name of a format, for which there are short ones, in any case."""
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
    name = names.get(text.lower(), text.lower())
    if name not in names.values():
        raise argparse.ArgumentTypeError(f"unknown dtype {text!r}: expected float16, bfloat16 or float32")
    return name


def fusions(text: str) -> str:
    """Return a choice of fusions."""
    try:
        return checked_fusions(text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def mixed_operators(text: str) -> str:
    """Return names of SambaNova's mixed operators; which there are, its rules know."""
    if not text.replace(",", " ").strip():
        raise argparse.ArgumentTypeError(f"{text!r} names no operator: expected gemm, softmax or both")
    return text


def rescale(text: str) -> str:
    """Return whether a program may be rescaled."""
    if text not in ("auto", "no"):
        raise argparse.ArgumentTypeError(f"{text!r} is unknown: expected auto or no")
    return text


def split_sums(text: str) -> str:
    """Return whether products may be computed in parts."""
    return rescale(text)


def custom_op_types(text: str) -> tuple[str, str]:
    """Return an operator and the types of its inputs and outputs."""
    from amp_transpiler.precision.custom_types import parse_custom_types  # few calls have it

    return _declared(text, "--custom-op-types", parse_custom_types)


def float32_inputs(text: str) -> tuple[str, str]:
    """Return an operator and indices of its inputs."""
    from amp_transpiler.precision.float32_inputs import parse_inputs  # few calls have it

    return _declared(text, "--float32-inputs", parse_inputs)


def _declared(text: str, flag: str, parse: Callable[[str], tuple[str, str]]) -> tuple[str, str]:
    """Return an operator and what is declared of it; the fault of a wrong text does not name the option again."""
    try:
        return parse(text)
    except OptionError as error:
        fault = str(error).removeprefix(flag).lstrip(": ")  # argparse names the option
        raise argparse.ArgumentTypeError(fault) from error


def regular_expression(text: str) -> str:
    """Return a regular expression."""
    from amp_transpiler.graph.user_patterns import compile_pattern  # few calls have a pattern

    try:
        compile_pattern(text, "the")
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def opset_number(text: str) -> int:
    """Return an opset."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no opset: expected a number such as 17")
    return int(text[:9])


def tolerance(text: str) -> float | str:
    """Return a fraction, or the text itself if it names outputs, or is 100 % or more, which no number may be."""
    try:
        overall, outputs = parse_tolerance(text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text if outputs or overall is None or overall >= 1.0 else overall


def mismatch(text: str) -> float:
    """Return a share."""
    try:
        return parse_mismatch(text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def dimension(text: str) -> tuple[str, int]:
    """Return the name and the size of an open dimension."""
    name, equals, size = text.rpartition("=")
    if not (name and equals and size.isdecimal() and int(size)):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=SIZE: expected such as batch=8")
    return name, int(size)


def headroom(text: str) -> float:
    """Return a headroom."""
    try:
        return checked_headroom(float(text))
    except (ValueError, OptionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no headroom: expected a number of at least 1") from error


def number(text: str) -> float:
    """Return a number."""
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from error


def number_of_terms(text: str) -> int:
    """Return a positive whole number."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of terms: expected such as 1024")
    return int(text)


def number_of_processes(text: str) -> int:
    """Return a positive whole number, which a machine can serve."""
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_JOBS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes: expected 1 to {_MOST_JOBS}")
    return int(text)


def io_types(text: str) -> bool | dict[str, Literal["keep", "low"]]:
    """Return True (keep all), False (all low), or the names that become low."""
    if text in ("keep", "low"):
        return text == "keep"
    low = set()
    for item in text.split(","):
        name, equals, kind = item.rpartition("=")
        if not (name and equals and kind == "low"):
            raise argparse.ArgumentTypeError(f"{item!r} is neither 'keep', 'low' nor NAME=low")
        low.add(name)
    return dict.fromkeys(sorted(low), "low")


def state_pair(text: str) -> tuple[str, str]:
    """Return the name of an input and the name of the output that replaces it."""
    name, equals, output = text.partition("=")
    if not (name and equals and output):
        raise argparse.ArgumentTypeError(f"{text!r} is no IN=OUT: expected the names of an input and an output")
    return name, output


def user_lists(white: list[str], black: list[str], black_variables: list[str]) -> UserLists:
    """Return the lists of operators and values: the names as they are written, to be looked up in the model."""
    return UserLists(frozenset(white), frozenset(black), frozenset(black_variables))
