"""Helpers of all layer functions: from variables to the builder of their program and back, and checks of arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.program import Program, Variable

__all__ = [
    "axis_of",
    "builder_of",
    "choice",
    "emit",
    "number_or_value",
    "numbers",
    "program_of",
    "size_at",
    "static_sizes",
    "wrap",
]


def program_of(*variables: Variable | None) -> Program:
    """Return the program that these variables are in.

    Raises:
        InputError: one of them is not a variable, or they belong to two programs.
    """
    found: Program | None = None
    for variable in variables:
        if variable is None:
            continue
        if not isinstance(variable, Variable):
            raise InputError(f"expected a variable of a program, got {type(variable).__name__} {variable!r:.80}")
        if found is not None and variable.program is not found:
            raise InputError(
                f"'{variable.name}' is of another program than the other operands: build in one program_guard"
            )
        found = variable.program
    if found is None:
        raise InputError("expected at least one variable")
    return found


def builder_of(*variables: Variable | None) -> GraphBuilder:
    """Return the builder that appends to the forward pass of the program that these variables are in.

    Raises:
        InputError: one of them is not a variable, or they belong to two programs.
    """
    return program_of(*variables).builder()


def wrap(like: Variable, value: ir.Value) -> Variable:
    """Return a handle on a value of the program that `like` is in."""
    return Variable(like.program, str(value.name))


def emit(op_type: str, inputs: Sequence[Variable | None], attributes: Mapping[str, Any] | None = None) -> Variable:
    """Append an operator with one output, and return that."""
    program = program_of(*inputs)
    values = [None if variable is None else variable.value for variable in inputs]
    return Variable(program, str(program.builder().op(op_type, values, attributes).name))


def number_or_value(item: Variable | float) -> ir.Value | float:
    """Return a variable's value, or a number as it is, for the builder's arithmetic."""
    return item.value if isinstance(item, Variable) else item


def axis_of(x: Variable, axis: int, *, beyond: int = 0) -> int:
    """Return a non-negative axis.

    Args:
        x: the tensor it is an axis of.
        axis: the axis; a negative number counts from the last.
        beyond: the number of axes that the result has more than `x`.

    Raises:
        InputError: there is no such axis.
    """
    rank = x.ndim + beyond
    if not -rank <= axis < rank:
        raise InputError(
            f"axis {axis} is outside of '{x.name}' of shape {list(x.shape)}: expected {-rank} to {rank - 1}"
        )
    return axis % rank


def size_at(x: Variable, axis: int, what: str) -> int:
    """Return a dimension that must be known, such as the channels.

    Raises:
        InputError: it is not known.
    """
    size = x.shape[axis_of(x, axis)]
    if size < 0:
        raise InputError(f"{what}: axis {axis} of '{x.name}' must be of a known size, got shape {x.value.shape}")
    return size


def static_sizes(x: Variable, what: str) -> tuple[int, ...]:
    """Return the sizes after batch and channels, which must be known.

    Raises:
        InputError: they are not.
    """
    sizes = x.shape[2:]
    if any(size < 0 for size in sizes):
        raise InputError(f"{what}: the spatial sizes of '{x.name}' must be known, got shape {x.value.shape}")
    return tuple(sizes)


def numbers(value: int | Sequence[int], count: int, what: str) -> list[int]:
    """Return `count` numbers, given as a list or as one number that stands for all.

    Raises:
        OptionError: it is another count.
    """
    found = [value] * count if isinstance(value, int) else [int(number) for number in value]
    if len(found) == 1:
        found = found * count
    if len(found) != count:
        raise OptionError(f"{what}: expected a number or {count} of them, got {value!r}")
    return found


def choice(what: str, value: str, options: Sequence[str]) -> str:
    """Return `value` if it is one of the options.

    Raises:
        OptionError: it is not.
    """
    if value not in options:
        raise OptionError(f"{what} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return value
