"""Paddle's functions on tensors; each appends standard ONNX operators to the program of its operands."""
# ruff: noqa: A001, A002  # Paddle's names

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.graph.operands import operate
from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.nn.functional.activation import activate, tanh
from amp_transpiler.paddle.nn.functional.building import axis_of, builder_of, emit, number_or_value, program_of, wrap

__all__ = [
    "abs",
    "add",
    "arange",
    "argmax",
    "cast",
    "clip",
    "concat",
    "divide",
    "equal",
    "exp",
    "flatten",
    "full",
    "gather",
    "log",
    "matmul",
    "max",
    "mean",
    "min",
    "multiply",
    "ones",
    "pow",
    "reshape",
    "scale",
    "slice",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "tanh",
    "transpose",
    "unsqueeze",
    "where",
    "zeros",
]

Axes = int | Sequence[int] | None


# ---- new tensors, in the current program ----


def full(shape: Sequence[int], fill_value: float, dtype: Any = None) -> Variable:
    """Return a constant of one number, float32 unless `dtype` says otherwise."""
    return _constant(np.full(list(shape), fill_value), "float32" if dtype is None else dtype)


def zeros(shape: Sequence[int], dtype: Any = None) -> Variable:
    """Return a constant of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Sequence[int], dtype: Any = None) -> Variable:
    """Return a constant of ones."""
    return full(shape, 1, dtype)


def arange(start: float = 0, end: float | None = None, step: float = 1, dtype: Any = None) -> Variable:
    """Return the constant `start, start + step, ...` below `end`, or `0, 1, ...` below `start` alone.

    It is int64 unless one of the numbers is a float (then float32) or `dtype` says otherwise.
    """
    first, last = (0, start) if end is None else (start, end)
    whole = all(isinstance(number, int) for number in (first, last, step))
    return _constant(np.arange(first, last, step), dtype or ("int64" if whole else "float32"))


def _constant(array: np.ndarray, dtype: Any) -> Variable:
    program = default_main_program()
    return Variable(program, str(program.builder().constant(array, parse_dtype(dtype)).name))


# ---- element by element ----


def add(x: Variable, y: Variable | float) -> Variable:
    """`x + y`."""
    return _binary("Add", x, y)


def subtract(x: Variable, y: Variable | float) -> Variable:
    """`x - y`."""
    return _binary("Sub", x, y)


def multiply(x: Variable, y: Variable | float) -> Variable:
    """`x * y`."""
    return _binary("Mul", x, y)


def divide(x: Variable, y: Variable | float) -> Variable:
    """`x / y`."""
    return _binary("Div", x, y)


def pow(x: Variable, y: Variable | float) -> Variable:
    """`x ** y`."""
    return _binary("Pow", x, y)


def equal(x: Variable, y: Variable | float) -> Variable:
    """`x == y`, element by element, as bool."""
    return _binary("Equal", x, y)


def _binary(op_type: str, x: Variable, y: Variable | float) -> Variable:
    b = builder_of(x, y) if isinstance(y, Variable) else builder_of(x)
    return wrap(x, operate(b, op_type, x.value, number_or_value(y)))


def exp(x: Variable) -> Variable:
    """The exponential."""
    return emit("Exp", [x])


def log(x: Variable) -> Variable:
    """The natural logarithm."""
    return emit("Log", [x])


def sqrt(x: Variable) -> Variable:
    """The square root."""
    return emit("Sqrt", [x])


def square(x: Variable) -> Variable:
    """`x * x`."""
    return emit("Mul", [x, x])


def abs(x: Variable) -> Variable:
    """The absolute value."""
    return emit("Abs", [x])


def cast(x: Variable, dtype: Any) -> Variable:
    """`x` cast to an element type, which mixed precision respects, even if `x` has that type now."""
    return wrap(x, builder_of(x).explicit_cast(x.value, parse_dtype(dtype)))


def scale(
    x: Variable,
    scale: Variable | float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
) -> Variable:
    """`scale * x + bias`, or `scale * (x + bias)`, and an activation."""
    b, value = builder_of(x), x.value
    if bias and not bias_after_scale:
        value = _scaled(b, "Add", value, bias)
    if isinstance(scale, Variable) or scale != 1:
        value = _scaled(b, "Mul", value, number_or_value(scale))
    if bias and bias_after_scale:
        value = _scaled(b, "Add", value, bias)
    return activate(wrap(x, value), act)


def _scaled(builder: GraphBuilder, op_type: str, value: ir.Value, other: ir.Value | float) -> ir.Value:
    """Append a step of `scale`. Numbers become integers where `x` holds integers, as in Paddle."""
    if is_float_tensor(value) or isinstance(other, ir.Value):
        return operate(builder, op_type, value, other)
    return builder.binary(op_type, value, other)


def clip(x: Variable, min: float | None = None, max: float | None = None) -> Variable:
    """`x` with every element moved into [min, max]."""
    b = builder_of(x)
    bounds = [None if bound is None else b.constant(bound, x.value.dtype) for bound in (min, max)]
    return wrap(x, b.op("Clip", [x.value, *bounds]))


def where(condition: Variable, x: Variable | float, y: Variable | float) -> Variable:
    """`x` where the bool `condition` is true, `y` elsewhere."""
    b = builder_of(condition, *(item for item in (x, y) if isinstance(item, Variable)))
    return wrap(condition, b.where(condition.value, number_or_value(x), number_or_value(y)))


# ---- along axes ----


def mean(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """The mean over `axis`, or over all elements.

    Raises:
        InputError: `x` holds no floats. Means of integers would be cut off.
    """
    if not is_float_tensor(x.value):
        raise InputError(f"mean: '{x.name}' is {x.dtype}, and means are of floats: cast it first, astype('float32')")
    return _reduce("ReduceMean", x, axis, keepdim)


def sum(x: Variable, axis: Axes = None, dtype: Any = None, keepdim: bool = False) -> Variable:
    """The sum over `axis`, or over all elements; `x` is cast to `dtype` first, or from bool to int64."""
    if dtype is None and x.value.dtype == ir.DataType.BOOL:
        dtype = "int64"
    summed = x if dtype is None else wrap(x, builder_of(x).cast(x.value, parse_dtype(dtype)))
    return _reduce("ReduceSum", summed, axis, keepdim)


def max(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """The largest element along `axis`, or of all."""
    return _reduce("ReduceMax", x, axis, keepdim)


def min(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """The smallest element along `axis`, or of all."""
    return _reduce("ReduceMin", x, axis, keepdim)


def _reduce(op_type: str, x: Variable, axis: Axes, keepdim: bool) -> Variable:
    b = builder_of(x)
    axes = None if axis is None else [axis_of(x, a) for a in ([axis] if isinstance(axis, int) else axis)]
    return wrap(x, b.cast(b.reduce(op_type, x.value, axes or None, keepdims=keepdim), x.value.dtype))


def argmax(x: Variable, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64") -> Variable:
    """The index of the largest element along `axis`, or of the largest of all in `x` flattened."""
    b = builder_of(x)
    value = b.reshape(x.value, [-1]) if axis is None else x.value
    attributes = {"axis": 0 if axis is None else axis_of(x, axis), "keepdims": int(keepdim and axis is not None)}
    found = b.op("ArgMax", [value], attributes)
    if axis is None and keepdim:
        found = b.reshape(found, [1] * x.ndim)
    return wrap(x, b.cast(found, parse_dtype(dtype)))


def matmul(x: Variable, y: Variable, transpose_x: bool = False, transpose_y: bool = False) -> Variable:
    """The matrix product, batched as numpy's; either may be transposed first, along its last two axes."""
    b = builder_of(x, y)
    if (transpose_x or transpose_y) and x.ndim == y.ndim == 2:
        flips = {"transA": int(transpose_x), "transB": int(transpose_y)}
        return wrap(x, b.op("Gemm", [x.value, y.value], flips))  # Gemm transposes while it reads, without a copy
    sides = [
        b.swap_last(side.value) if flip and side.ndim > 1 else side.value
        for side, flip in ((x, transpose_x), (y, transpose_y))
    ]
    return wrap(x, b.matmul(*sides))


# ---- shapes ----


def reshape(x: Variable, shape: Sequence[int]) -> Variable:
    """`x` in another shape; one size may be -1, to be computed, and 0 keeps the size of that axis."""
    return wrap(x, builder_of(x).reshape(x.value, [int(size) for size in shape]))


def transpose(x: Variable, perm: Sequence[int]) -> Variable:
    """`x` with its axes in the order of `perm`."""
    return emit("Transpose", [x], {"perm": [axis_of(x, axis) for axis in perm]})


def concat(x: Sequence[Variable], axis: int = 0) -> Variable:
    """The parts joined along `axis`."""
    program_of(*x)
    return emit("Concat", list(x), {"axis": axis_of(x[0], axis)})


def stack(x: Sequence[Variable], axis: int = 0) -> Variable:
    """The parts joined along a new axis."""
    b = builder_of(*x)
    place = axis_of(x[0], axis, beyond=1)
    return wrap(x[0], b.op("Concat", [b.unsqueeze(part.value, [place]) for part in x], {"axis": place}))


def split(x: Variable, num_or_sections: int | Sequence[int], axis: int = 0) -> list[Variable]:
    """Return equal parts, or parts of given sizes, of which one may be -1.

    Raises:
        InputError: the axis cannot be split into these parts.
    """
    b, place = builder_of(x), axis_of(x, axis)
    size = x.shape[place]
    if isinstance(num_or_sections, int):
        if size >= 0 and size % num_or_sections:
            raise InputError(f"split: axis {axis} of {x!r} cannot be split into {num_or_sections} equal parts")
        parts = b.nodes("Split", [x.value], {"axis": place, "num_outputs": num_or_sections}, outputs=num_or_sections)
        return [wrap(x, part) for part in parts]
    sections = [int(part) for part in num_or_sections]
    if sections.count(-1) == 1 and size >= 0:
        sections[sections.index(-1)] = size - (int(np.sum(sections)) + 1)
    if -1 in sections or (size >= 0 and int(np.sum(sections)) != size):
        raise InputError(f"split: axis {axis} of {x!r} cannot be split into {list(num_or_sections)}")
    lengths = b.constant(np.array(sections, np.int64))
    parts = b.nodes("Split", [x.value, lengths], {"axis": place}, outputs=len(sections))
    return [wrap(x, part) for part in parts]


def squeeze(x: Variable, axis: Axes = None) -> Variable:
    """`x` without those of the given axes that have size 1; without all axes of size 1 if none are given."""
    wanted = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = sorted({axis_of(x, a) for a in wanted})
    return wrap(x, builder_of(x).squeeze(x.value, [a for a in axes if x.shape[a] == 1]))


def unsqueeze(x: Variable, axis: int | Sequence[int]) -> Variable:
    """`x` with new axes of size 1, inserted one after the other."""
    value, b = x.value, builder_of(x)
    for extra, place in enumerate([axis] if isinstance(axis, int) else axis):
        value = b.unsqueeze(value, [axis_of(x, place, beyond=extra + 1)])
    return wrap(x, value)


def flatten(x: Variable, start_axis: int = 0, stop_axis: int = -1) -> Variable:
    """`x` with the axes from `start_axis` to `stop_axis`, both included, flattened into one.

    Raises:
        OptionError: `start_axis` comes after `stop_axis`.
    """
    first, last = axis_of(x, start_axis), axis_of(x, stop_axis)
    if first > last:
        raise OptionError(f"flatten: start_axis {start_axis} is behind stop_axis {stop_axis} of {x!r}")
    behind = x.shape[last + 1 :]
    if all(size >= 0 for size in behind):
        return reshape(x, [*[0] * first, -1, *behind])
    b = builder_of(x)
    tail = b.slice(b.shape(x.value), [last + 1], [x.ndim], [0])
    return wrap(x, b.reshape(x.value, b.concat([b.constant(np.array([*[0] * first, -1], np.int64)), tail], 0)))


def slice(input: Variable, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Variable:
    """Numpy's `input[start:end]` along each of `axes`."""
    return wrap(input, builder_of(input).slice(input.value, starts, ends, [axis_of(input, axis) for axis in axes]))


def gather(x: Variable, index: Variable, axis: int | None = None) -> Variable:
    """The entries of `x` along `axis` (0 unless given) whose numbers are `index`, a vector or a column."""
    b = builder_of(x, index)
    rows = b.reshape(index.value, [-1]) if index.ndim > 1 else index.value
    return wrap(x, b.op("Gather", [x.value, rows], {"axis": axis_of(x, axis or 0)}))
