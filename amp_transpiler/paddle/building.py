"""Helps functions on variables: gets the builder of their program, wraps its values, and checks arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor
from amp_transpiler.graph.dtypes import LOW_DTYPES, parse_dtype
from amp_transpiler.paddle.argument_checks import checked
from amp_transpiler.program.operands import common_dtype, operate
from amp_transpiler.program.program import Program, Variable

__all__ = [
    "Axes",
    "Number",
    "Size",
    "accept_name",
    "as_dtype",
    "axes_of",
    "axis_of",
    "binary",
    "builder_of",
    "choice",
    "emit",
    "floats",
    "in_one_type",
    "number_or_value",
    "numbers",
    "overwrite",
    "program_of",
    "shape_operand",
    "size_at",
    "static_sizes",
    "with_sizes",
    "wrap",
]

Axes: TypeAlias = "int | Sequence[int] | None"
Number: TypeAlias = "Variable | float | np.ndarray"  # an operand of arithmetic
Size: TypeAlias = "int | Variable"  # a dimension, or a position along one


def program_of(*variables: Variable | None) -> Program:
    """Return the program that these variables are in.

    Raises:
        InputError: one of them is not a variable, or they belong to two programs.
    """
    program: Program | None = None
    for variable in variables:
        if variable is None:
            continue
        if not isinstance(variable, Variable):
            raise InputError(f"expected a variable of a program, got {type(variable).__name__} {variable!r:.80}")
        if program is not None and variable.program is not program:
            raise InputError(
                f"'{variable.name}' is of another program than the other operands: build in one program_guard"
            )
        program = variable.program
    if program is None:
        raise InputError("expected at least one variable")
    return program


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


def binary(op_type: str, x: Number, y: Number) -> Variable:
    """Append an operator on two operands, of which one may be a number or an array, in the type they meet in.

    Raises:
        InputError: neither is a variable, or they belong to two programs.
    """
    if isinstance(x, Variable):
        b = builder_of(x, y) if isinstance(y, Variable) else builder_of(x)
        return wrap(x, operate(b, op_type, x.value, y.value if isinstance(y, Variable) else y))
    if not isinstance(y, Variable):
        raise InputError(f"{op_type}: expected at least one variable, got {x!r:.80} and {y!r:.80}")
    return wrap(y, operate(builder_of(y), op_type, y.value, x, swapped=True))


def in_one_type(*variables: Variable) -> list[ir.Value]:
    """Return the values of variables, cast to the type in which all of them meet."""
    b = builder_of(*variables)
    values = [variable.value for variable in variables]
    dtype = values[0].dtype
    for value in values[1:]:
        dtype = common_dtype(dtype, value.dtype)
    return [b.cast(value, dtype) for value in values]


def for_parameters(x: Variable, *parameters: Variable) -> list[Variable]:
    """Return `x` and the parameters of an operator, `x` as float32 if it has 16 bits and they are float32."""
    low = x.value.dtype in LOW_DTYPES
    if low and all(parameter.value.dtype == ir.DataType.FLOAT for parameter in parameters):
        x = as_dtype(x, ir.DataType.FLOAT)
    return [x, *parameters]


def floats(x: Variable) -> Variable:
    """Return `x`, as float32 if it holds integers or truth values."""
    return x if is_float_tensor(x.value) else wrap(x, builder_of(x).cast(x.value, ir.DataType.FLOAT))


def as_dtype(x: Variable, dtype: Any) -> Variable:
    """Return `x` in an element type; `x` itself if it has that type, or `dtype` is None."""
    return x if dtype is None else wrap(x, builder_of(x).cast(x.value, parse_dtype(dtype)))


def overwrite(x: Variable, after: Variable) -> Variable:
    """Let `x` stand for `after`, cast to the type of `x`, from here on, and return `x`.

    ONNX values never change: a persistable `x` is replaced after each run, any other handle names the new value.
    """
    name = as_dtype(after, x.value.dtype).name
    if x.persistable:
        x.program.updates[x.name] = name
    else:
        x.name = name
    return x


def shape_operand(like: Variable, sizes: Variable | Sequence[Size]) -> ir.Value | list[int]:
    """Return numbers as they are, and what holds variables as one int64 vector.

    Args:
        like: a variable of the program.
        sizes: numbers and integer variables of one element; or an integer vector.

    Raises:
        InputError: something else is among them.
    """
    if isinstance(sizes, Variable):
        return builder_of(like, sizes).cast(sizes.value, ir.DataType.INT64)
    if all(not isinstance(size, Variable) for size in sizes):
        return [_whole_number(size, sizes) for size in sizes]
    b = builder_of(like)
    parts = []
    for size in sizes:
        if isinstance(size, Variable):
            parts.append(b.reshape(b.cast(size.value, ir.DataType.INT64), [1]))
        else:
            parts.append(b.constant(np.array([_whole_number(size, sizes)], np.int64)))
    return b.concat(parts, 0)


def _whole_number(size: Any, sizes: Sequence[Any]) -> int:
    try:
        return int(size)
    except (TypeError, ValueError) as error:
        raise InputError(f"sizes are whole numbers and integer variables, got {size!r} in {sizes!r}") from error


def axes_of(x: Variable, axis: Axes) -> list[int]:
    """Return non-negative axes in ascending order; all axes for None.

    Raises:
        InputError: there is no such axis.
    """
    if axis is None:
        return list(range(x.ndim))
    return sorted({axis_of(x, a) for a in ([axis] if isinstance(axis, int) else axis)})


def axis_of(x: Variable, axis: int, *, beyond: int = 0) -> int:
    """Return a non-negative axis.

    Args:
        x: the tensor it is an axis of.
        axis: the axis; a negative number counts from the last.
        beyond: the number of axes that the result has more than `x`.

    Raises:
        InputError: there is no such axis.
    """
    if not isinstance(axis, (int, np.integer)):
        raise InputError(f"an axis of '{x.name}' is a whole number, got {axis!r}")
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


def with_sizes(value: ir.Value, sizes: Sequence[object]) -> ir.Value:
    """Fill in those sizes that are numbers where inference has left a value's open, and return the value.

    Args:
        value: what was just made; its rank is that of `sizes`.
        sizes: the size of each axis as far as the function knows it: a positive number, or anything else.
    """
    inferred = [None] * len(sizes) if value.shape is None else list(value.shape)
    declared = [size if isinstance(size, int) and size > 0 else None for size in sizes]
    value.shape = ir.Shape(
        [k if not isinstance(f, int) and k is not None else f for f, k in zip(inferred, declared, strict=True)]
    )
    return value


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
    values = [value] * count if isinstance(value, int) else [int(number) for number in value]
    if len(values) == 1:
        values = values * count
    if len(values) != count:
        raise OptionError(f"{what}: expected a number or {count} of them, got {value!r}")
    return values


def choice(what: str, value: str, options: Sequence[str]) -> str:
    """Return `value` if it is one of the options.

    Raises:
        OptionError: it is not.
    """
    if value not in options:
        raise OptionError(f"{what} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return value


def accept_name(module: dict[str, Any], names: Iterable[str]) -> None:
    """Let the functions of a module take Paddle's `name=` too, which has no effect, and check their arguments.

    Args:
        module: the module's globals, edited in place.
        names: the module's public names.
    """
    for label in names:
        function = module[label]
        if inspect.isfunction(function) and function.__module__ == module["__name__"]:
            module[label] = function = checked(function)
        if inspect.isfunction(function) and "name" not in inspect.signature(function).parameters:
            module[label] = _with_name(function)


def _with_name(function: Any) -> Any:
    signature = inspect.signature(function)
    parameter_list = list(signature.parameters.values())
    taken = [p for p in parameter_list if p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)]
    kind = inspect.Parameter.KEYWORD_ONLY if taken else inspect.Parameter.POSITIONAL_OR_KEYWORD
    place = len([p for p in parameter_list if p.kind is not p.VAR_KEYWORD])
    count = len(parameter_list)

    @functools.wraps(function)
    def named(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        del name
        if not taken and len(args) == count + 1:  # given by its position, after all others
            args = args[:-1]
        return function(*args, **kwargs)

    extra = inspect.Parameter("name", kind, default=None, annotation="str | None")
    named.__signature__ = signature.replace(parameters=[*parameter_list[:place], extra, *parameter_list[place:]])  # type: ignore[attr-defined]  # Python reads it
    return named
