"""Creates tensors in the current program: constants, ranges, diagonals, and tensors in the shape of others."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.paddle.building import (
    Number,
    Size,
    accept_name,
    as_dtype,
    axis_of,
    builder_of,
    emit,
    overwrite,
    shape_operand,
    wrap,
)
from amp_transpiler.paddle.framework.default_dtype import get_default_dtype
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.program.program import Variable

__all__ = [
    "arange",
    "as_tensor",
    "asarray",
    "assign",
    "clone",
    "diag",
    "diag_embed",
    "diagflat",
    "diagonal",
    "empty",
    "empty_like",
    "eye",
    "fill_constant",
    "from_numpy",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "meshgrid",
    "ones",
    "ones_like",
    "to_tensor",
    "tril",
    "tril_indices",
    "triu",
    "triu_indices",
    "vander",
    "zeros",
    "zeros_like",
]

Shape = Variable | Sequence[Size] | int


def full(shape: Shape, fill_value: Number, dtype: Any = None) -> Variable:
    """Return a tensor that holds one number everywhere.

    Args:
        shape: sizes; numbers, or integer variables of one element, or an integer vector.
        fill_value: the number, which may be a variable of one element.
        dtype: element type; bool for a truth value, and otherwise the default float type, unless given.
    """
    if dtype is None:
        if isinstance(fill_value, Variable):
            dtype = fill_value.dtype
        else:
            dtype = "bool" if np.asarray(fill_value).dtype.kind == "b" else get_default_dtype()
    sizes = [shape] if isinstance(shape, int) else shape
    variables = [sizes] if isinstance(sizes, Variable) else [size for size in sizes if isinstance(size, Variable)]
    if isinstance(fill_value, Variable):
        return _expanded(as_dtype(fill_value, dtype), sizes)
    if not variables:
        return _constant(np.full([int(size) for size in sizes], fill_value), dtype)
    like, element = variables[0], parse_dtype(dtype)
    fill = ir.tensor(np.full(1, fill_value).astype(element.numpy()), dtype=element)
    vector = shape_operand(like, sizes)
    assert isinstance(vector, ir.Value)
    result = builder_of(*variables).op("ConstantOfShape", [vector], {"value": fill})
    if not isinstance(sizes, Variable):
        result.shape = ir.Shape([size if isinstance(size, int) else None for size in sizes])
    return wrap(like, result)


def _expanded(number: Variable, sizes: Variable | Sequence[Size]) -> Variable:
    b, vector = builder_of(number), shape_operand(number, sizes)
    target = vector if isinstance(vector, ir.Value) else b.constant(np.array(vector, np.int64))
    return wrap(number, b.op("Expand", [b.reshape(number.value, []), target]))


def fill_constant(
    shape: Shape, dtype: Any, value: Number, force_cpu: bool = False, out: Variable | None = None
) -> Variable:
    """Return a tensor that holds one number everywhere, as `full`.

    Raises:
        OptionError: `out` is given: a variable is computed once.
    """
    del force_cpu
    if out is not None:
        return assign(full(shape, value, dtype), out)
    return full(shape, value, dtype)


def zeros(shape: Shape, dtype: Any = None) -> Variable:
    """Return zeros, of the default float type unless `dtype` is given."""
    return full(shape, 0, dtype)


def ones(shape: Shape, dtype: Any = None) -> Variable:
    """Return ones, of the default float type unless `dtype` is given."""
    return full(shape, 1, dtype)


empty = zeros


def full_like(x: Variable, fill_value: Number, dtype: Any = None) -> Variable:
    """Return a tensor of one number in the shape of `x`, and of its element type unless `dtype` is given."""
    b = builder_of(x)
    element = x.value.dtype if dtype is None else parse_dtype(dtype)
    if isinstance(fill_value, Variable):
        return wrap(x, b.expand_like(b.reshape(b.cast(fill_value.value, element), []), x.value))
    return wrap(x, b.expand_like(b.constant(fill_value, element), x.value))


def zeros_like(x: Variable, dtype: Any = None) -> Variable:
    """Return zeros in the shape of `x`, and of its element type unless `dtype` is given."""
    return full_like(x, 0, dtype)


def ones_like(x: Variable, dtype: Any = None) -> Variable:
    """Return ones in the shape of `x`, and of its element type unless `dtype` is given."""
    return full_like(x, 1, dtype)


empty_like = zeros_like


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Variable:
    """Return a constant: a number, nested lists, an array; a variable as it is.

    Args:
        data: its content.
        dtype: element type; unless given, that of an array, int64 for integers, the default one for Python's floats.
        place: no effect: a program runs where its executor says.
        stop_gradient: whether no gradient passes through it.
    """
    del place
    if isinstance(data, Variable):
        return as_dtype(data, dtype)
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise InputError("to_tensor: the rows of what is given differ in length: pad them to one") from error
    if array.dtype.kind not in "fiubV" and dtype is None:
        raise InputError(f"to_tensor takes numbers, got {data!r:.80}")
    if dtype is None:
        of_python = array.dtype == np.float64 and not isinstance(data, (np.ndarray, np.generic))
        dtype = get_default_dtype() if of_python else array.dtype
    tensor = _constant(array, dtype)
    if not stop_gradient:
        tensor.stop_gradient = False
    return tensor


def assign(x: Any, output: Variable | None = None) -> Variable:
    """Return a copy of a variable, or a constant.

    Args:
        x: a variable, a number, nested lists or an array.
        output: the variable that is the result from then on. A persistable one gets it after each run. What was built
            from another one before keeps its earlier value.
    """
    result = emit("Identity", [x]) if isinstance(x, Variable) else to_tensor(x)
    return result if output is None else overwrite(output, result)


def clone(x: Variable) -> Variable:
    """Return a copy of `x`."""
    return emit("Identity", [x])


def _constant(array: np.ndarray, dtype: Any) -> Variable:
    program = default_main_program()
    return Variable(program, str(program.builder().constant(array, parse_dtype(dtype)).name))


# ---- rows of numbers ----


def arange(
    start: Variable | float = 0, end: Variable | float | None = None, step: Variable | float = 1, dtype: Any = None
) -> Variable:
    """Return `start, start + step, ...` below `end`, or `0, 1, ...` below `start` without `end`.

    It is int64 unless one of the numbers is a float (then float32) or `dtype` says otherwise. A variable among them has
    one element.
    """
    if not isinstance(step, Variable) and step == 0:
        raise OptionError("arange: step must not be 0")
    first, last = (0, start) if end is None else (start, end)
    variables = [item for item in (first, last, step) if isinstance(item, Variable)]
    if isinstance(first, Variable) or isinstance(last, Variable) or isinstance(step, Variable):
        return _range_of_variables((first, last, step), variables, dtype)
    integers = all(isinstance(number, (int, np.integer)) for number in (first, last, step))
    return _constant(np.arange(first, last, step), dtype or ("int64" if integers else "float32"))


def _range_of_variables(bounds: Sequence[Variable | float], variables: Sequence[Variable], dtype: Any) -> Variable:
    b = builder_of(*variables)
    element = parse_dtype(variables[0].dtype if dtype is None else dtype)
    ends = [
        b.reshape(b.cast(item.value, element), []) if isinstance(item, Variable) else b.constant(item, element)
        for item in bounds
    ]
    return wrap(variables[0], b.op("Range", ends))


def linspace(start: float, stop: float, num: int, dtype: Any = None) -> Variable:
    """Return `num` numbers at equal distances from `start` to `stop`, both included."""
    return _constant(np.linspace(start, stop, int(num)), dtype or get_default_dtype())


def logspace(start: float, stop: float, num: int, base: float = 10.0, dtype: Any = None) -> Variable:
    """Return `base` to the powers of `linspace`."""
    return _constant(np.logspace(start, stop, int(num), base=base), dtype or get_default_dtype())


def meshgrid(*args: Variable | Sequence[Variable]) -> list[Variable]:
    """Return a tensor for each vector, with an axis per vector: it runs along its axis and repeats along the others."""
    vectors = [x for item in args for x in ([item] if isinstance(item, Variable) else item)]
    b = builder_of(*vectors)
    sizes = b.concat([b.reshape(b.op("Shape", [x.value]), [1]) for x in vectors], 0)
    lengths = [x.shape[0] for x in vectors]
    target = b.constant(np.array(lengths, np.int64)) if min(lengths) >= 0 else sizes
    rows = [b.reshape(x.value, [-1 if i == axis else 1 for i in range(len(vectors))]) for axis, x in enumerate(vectors)]
    return [wrap(vectors[0], b.op("Expand", [row, target])) for row in rows]


# ---- matrices ----


def eye(num_rows: int, num_columns: int | None = None, dtype: Any = None) -> Variable:
    """Return a matrix with ones on its diagonal and zeros elsewhere."""
    return _constant(np.eye(num_rows, num_columns), dtype or get_default_dtype())


def tril(x: Variable, diagonal: int = 0) -> Variable:
    """Return `x` with zeros above a diagonal of its matrices: the main one, or the one `diagonal` places above it."""
    return _triangle(x, diagonal, 0)


def triu(x: Variable, diagonal: int = 0) -> Variable:
    """Return `x` with zeros below a diagonal of its matrices: the main one, or the one `diagonal` places above it."""
    return _triangle(x, diagonal, 1)


def _triangle(x: Variable, diagonal: int, upper: int) -> Variable:
    b = builder_of(x)
    return wrap(x, b.op("Trilu", [x.value, b.constant(np.array(diagonal, np.int64))], {"upper": upper}))


def tril_indices(row: int, col: int, offset: int = 0, dtype: Any = "int64") -> Variable:
    """Return the positions on and below a diagonal of a matrix, as two rows."""
    return _constant(np.array(np.tril_indices(row, offset, col)), dtype)


def triu_indices(row: int, col: int | None = None, offset: int = 0, dtype: Any = "int64") -> Variable:
    """Return the positions on and above a diagonal of a matrix, as two rows."""
    return _constant(np.array(np.triu_indices(row, offset, col)), dtype)


def diag(x: Variable, offset: int = 0, padding_value: float = 0) -> Variable:
    """Return a matrix with a vector on a diagonal and `padding_value` elsewhere; or the diagonal of a matrix.

    Raises:
        InputError: `x` is neither a vector nor a matrix.
    """
    if x.ndim == 2:
        return diagonal(x, offset)
    if x.ndim != 1:
        raise InputError(f"diag: expected a vector or a matrix, got {x!r}")
    if not padding_value:
        return diag_embed(x, offset)
    b = builder_of(x)
    matrix = diag_embed(x, offset)
    on = b.constant(np.eye(matrix.shape[-1], k=offset, dtype=bool))
    return wrap(x, b.where(on, matrix.value, padding_value))


def diagflat(x: Variable, offset: int = 0) -> Variable:
    """Return a matrix with the elements of `x` on a diagonal and zeros elsewhere."""
    return diag_embed(wrap(x, builder_of(x).reshape(x.value, [-1])), offset)


def diag_embed(input: Variable, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Variable:
    """Return matrices with the last axis of `input` on a diagonal and zeros elsewhere, along axes `dim1` and `dim2`.

    Raises:
        InputError: the size of the last axis is not known.
    """
    size = input.shape[-1]
    if size < 0:
        raise InputError(f"diag_embed: the last axis of '{input.name}' must be of a known size, got {input!r}")
    b, width = builder_of(input), size + abs(offset)
    rows = np.eye(width, k=offset, dtype=bool)
    before = [0] * input.ndim
    before[-1] = max(offset, 0)
    after = [0] * input.ndim
    after[-1] = max(-offset, 0)
    line = b.op("Pad", [input.value, b.constant(np.array(before + after, np.int64))]) if offset else input.value
    wide = b.unsqueeze(line, [input.ndim - 1])  # each column's element along the columns
    zero = b.constant(0, input.value.dtype)
    matrix = b.op("Where", [b.constant(rows), wide, zero])
    row_axis, column_axis = axis_of(input, dim1, beyond=1), axis_of(input, dim2, beyond=1)
    rank = input.ndim + 1
    matrix_axes, rest = {column_axis: rank - 1, row_axis: rank - 2}, iter(range(rank - 2))
    order = [matrix_axes[axis] if axis in matrix_axes else next(rest) for axis in range(rank)]
    return wrap(input, b.transpose(matrix, order))


def diagonal(x: Variable, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """Return the diagonals of the matrices along two axes, whose sizes must be known, as the last axis.

    Raises:
        InputError: the sizes are not known, or there is no such diagonal.
    """
    row_axis, column_axis = axis_of(x, axis1), axis_of(x, axis2)
    rows, columns = x.shape[row_axis], x.shape[column_axis]
    if rows < 0 or columns < 0:
        raise InputError(f"diagonal: axes {axis1} and {axis2} of '{x.name}' must be of known sizes, got {x!r}")
    first = max(-offset, 0)
    count = min(rows - first, columns - max(offset, 0))
    if count < 1:
        raise InputError(f"diagonal: {x!r} has no diagonal at offset {offset}")
    b = builder_of(x)
    rest = [axis for axis in range(x.ndim) if axis not in (row_axis, column_axis)]
    flat = b.transpose(x.value, [row_axis, column_axis, *rest])
    sizes = [x.shape[axis] for axis in rest]
    keep = b.constant(np.array([rows * columns], np.int64))
    tail = b.slice(b.shape(flat), [2], [x.ndim], [0]) if rest else None
    target = keep if tail is None else b.concat([keep, tail], 0)
    lines = b.reshape(flat, [rows * columns, *sizes] if all(s >= 0 for s in sizes) else target)
    index = np.arange(count)
    positions = (index + first) * columns + index + max(offset, 0)
    taken = b.op("Gather", [lines, b.constant(positions.astype(np.int64))], {"axis": 0})
    return wrap(x, b.transpose(taken, [*range(1, len(rest) + 1), 0]))


def as_tensor(data: Any, dtype: Any = None) -> Variable:
    """Return a constant, as `to_tensor`."""
    return to_tensor(data, dtype)


def asarray(obj: Any, *, dtype: Any = None) -> Variable:
    """Return a constant, as `to_tensor`."""
    return to_tensor(obj, dtype)


def from_numpy(ndarray: np.ndarray) -> Variable:
    """Return an array as a constant."""
    return to_tensor(ndarray)


def vander(x: Variable, n: int | None = None, increasing: bool = False) -> Variable:
    """Return the powers of the elements of a vector as rows: `n` of them, as many as elements unless given."""
    count = x.shape[0] if n is None else n
    if count < 0:
        raise InputError(f"vander: give n, since the size of {x!r} is not known")
    powers = np.arange(count) if increasing else np.arange(count)[::-1]
    b = builder_of(x)
    return wrap(x, b.op("Pow", [b.unsqueeze(x.value, [1]), b.constant(powers.copy(), x.value.dtype)]))


accept_name(globals(), __all__)
