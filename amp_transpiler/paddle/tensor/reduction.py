"""Computes sums, means, extremes and other reductions, over axes and along them."""
# ruff: noqa: A001  # Paddle's names

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.graph.origins import ROUNDS_KEY
from amp_transpiler.paddle.building import (
    Axes,
    accept_name,
    as_dtype,
    axes_of,
    axis_of,
    binary,
    builder_of,
    emit,
    floats,
    size_at,
    wrap,
)
from amp_transpiler.program.program import Variable

__all__ = [
    "amax",
    "amin",
    "count_nonzero",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_trapezoid",
    "diff",
    "dist",
    "logcumsumexp",
    "logsumexp",
    "max",
    "mean",
    "min",
    "nanmean",
    "nansum",
    "norm",
    "prod",
    "reduce_as",
    "renorm",
    "std",
    "sum",
    "trapezoid",
    "var",
]

_LAST = 2**63 - 1


def mean(x: Variable, axis: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Variable:
    """Return the mean over `axis`, or over all elements; `x` is cast to `dtype` first.

    Raises:
        InputError: `x` holds no floats. Means of integers would be cut off.
    """
    x = as_dtype(x, dtype)
    if not is_float_tensor(x.value):
        raise InputError(f"mean: '{x.name}' is {x.dtype}, and means are of floats: cast it first, astype('float32')")
    return _reduce("ReduceMean", x, axis, keepdim)


def sum(x: Variable, axis: Axes = None, dtype: Any = None, keepdim: bool = False) -> Variable:
    """Return the sum over `axis`, or over all elements, of `x` cast to `dtype`, or from bool and int32 to int64."""
    return _reduce("ReduceSum", as_dtype(x, _wide(x, dtype)), axis, keepdim)


def prod(x: Variable, axis: Axes = None, keepdim: bool = False, dtype: Any = None) -> Variable:
    """Return the product over `axis`, or of all elements; `x` is cast to `dtype` first, or from bool to int64."""
    if dtype is None and x.value.dtype == ir.DataType.BOOL:
        dtype = "int64"
    return _reduce("ReduceProd", as_dtype(x, dtype), axis, keepdim)


def _wide(x: Variable, dtype: Any) -> Any:
    small = x.value.dtype in (ir.DataType.BOOL, ir.DataType.INT32)
    return ir.DataType.INT64 if dtype is None and small else dtype


def max(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the largest element along `axis`, or of all. Equal ones share the gradient."""
    return _reduce("ReduceMax", x, axis, keepdim)


def min(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the smallest element along `axis`, or of all. Equal ones share the gradient."""
    return _reduce("ReduceMin", x, axis, keepdim)


def amax(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the largest element along `axis`, or of all, as `max`."""
    return _reduce("ReduceMax", x, axis, keepdim)


def amin(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the smallest element along `axis`, or of all, as `min`."""
    return _reduce("ReduceMin", x, axis, keepdim)


def _reduce(op_type: str, x: Variable, axis: Axes, keepdim: bool) -> Variable:
    b = builder_of(x)
    axes = None if axis is None else axes_of(x, axis)
    reduced = b.reduce(op_type, x.value, axes or None, keepdims=keepdim)
    rounded = b.cast(reduced, x.value.dtype)
    producer = rounded.producer()
    if rounded is not reduced and producer is not None:
        producer.meta[ROUNDS_KEY] = True
    return wrap(x, rounded)


def logsumexp(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return `log(sum(exp(x)))` over `axis`, or over all elements, without overflow."""
    return _reduce("ReduceLogSumExp", floats(x), axis, keepdim)


def count_nonzero(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return how many elements along `axis`, or of all, are not 0: int64."""
    b = builder_of(x)
    ones = b.cast(b.cast(x.value, ir.DataType.BOOL), ir.DataType.INT64)
    return _reduce("ReduceSum", wrap(x, ones), axis, keepdim)


def nansum(x: Variable, axis: Axes = None, dtype: Any = None, keepdim: bool = False) -> Variable:
    """Return the sum of those elements that are not NaN."""
    b = builder_of(x)
    return sum(wrap(x, b.where(b.op("IsNaN", [x.value]), 0.0, x.value)), axis, dtype, keepdim)


def nanmean(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the mean of those elements that are not NaN."""
    b = builder_of(x)
    there = b.cast(b.op("Not", [b.op("IsNaN", [x.value])]), ir.DataType.FLOAT)
    count = _reduce("ReduceSum", wrap(x, there), axis, keepdim)
    total = as_dtype(nansum(x, axis, ir.DataType.FLOAT, keepdim), ir.DataType.FLOAT)
    return as_dtype(binary("Div", total, count), x.value.dtype)


# ---- spreads and lengths ----


def var(
    x: Variable, axis: Axes = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float = 1
) -> Variable:
    """Return the variance over `axis`, or of all elements.

    Args:
        x: floats.
        axis: the axes.
        unbiased: whether to divide by the count less 1; False: by the count.
        keepdim: whether the axes stay, with size 1.
        correction: what to take off the count, if `unbiased` is not given.
    """
    less = correction if unbiased is None else int(unbiased)
    return as_dtype(_variance(x, axis, less, keepdim), x.value.dtype)


def std(x: Variable, axis: Axes = None, unbiased: bool = True, keepdim: bool = False) -> Variable:
    """Return the standard deviation, the root of `var`."""
    return as_dtype(emit("Sqrt", [_variance(x, axis, int(unbiased), keepdim)]), x.value.dtype)


def _variance(x: Variable, axis: Axes, less: float, keepdim: bool) -> Variable:
    """Compute the variance, in float32 for a 16-bit `x`."""
    b, axes = builder_of(x), axes_of(x, axis)
    wide = b.high(x.value)
    distance = b.sub(wide, b.mean(wide, axes))
    square = b.mul(distance, distance)
    if not less:
        return wrap(x, b.mean(square, axes, keepdims=keepdim))
    total = b.sum(square, axes, keepdims=keepdim)
    if all(x.shape[a] >= 0 for a in axes):
        return wrap(x, b.div(total, math.prod(x.shape[a] for a in axes) - less))
    count = b.op("Gather", [b.shape(x.value), b.constant(np.array(axes, np.int64))])
    return wrap(x, b.div(total, b.sub(b.cast(b.reduce("ReduceProd", count, None, keepdims=False), total.dtype), less)))


def norm(x: Variable, p: float | str | None = None, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return the length of the vectors along `axis`, or of all elements unless given.

    Args:
        x: floats.
        p: 2 or `fro` (the default): the root of the sum of squares; infinity or minus infinity: the largest or smallest
            size; 0: how many are not 0; another number: the p-th root of the sum of p-th powers of the sizes.
        axis: one axis, or two for matrices, whose elements count as a vector's.
        keepdim: whether the axes stay, with size 1.

    Raises:
        OptionError: `p` is a norm of matrices that needs singular values.
    """
    axes = None if axis is None else axes_of(x, axis)
    if p is None or p == "fro" or (p == 2 and (axes is None or len(axes) == 1)):
        return _reduce("ReduceL2", x, axes, keepdim)
    if isinstance(p, str) or (axes is not None and len(axes) == 2 and axes != axes_of(x, None)):
        raise OptionError(f"norm: p={p!r} of matrices needs singular values, which ONNX has not: use p='fro'")
    size = emit("Abs", [x])
    if math.isinf(p):
        return _reduce("ReduceMax" if p > 0 else "ReduceMin", size, axes, keepdim)
    if p == 0:
        return as_dtype(count_nonzero(x, axes, keepdim), x.value.dtype)
    if p == 1:
        return _reduce("ReduceL1", x, axes, keepdim)
    b = builder_of(x)
    total = b.sum(b.pow(b.high(size.value), float(p)), axes, keepdims=keepdim)
    return wrap(x, b.cast(b.pow(total, 1.0 / p), x.value.dtype))


def dist(x: Variable, y: Variable, p: float = 2) -> Variable:
    """Return the `norm` of `x - y`, which broadcast."""
    return norm(binary("Sub", x, y), float(p))


# ---- running along an axis ----


def cumsum(x: Variable, axis: int | None = None, dtype: Any = None) -> Variable:
    """Return the running sums along `axis`, or of `x` flattened; `x` is cast to `dtype` first."""
    x, place = _line(as_dtype(x, _wide(x, dtype)), axis)
    b = builder_of(x)
    return wrap(x, b.cast(b.op("CumSum", [b.high(x.value), b.constant(np.array(place, np.int64))]), x.value.dtype))


def cumprod(x: Variable, dim: int | None = None, dtype: Any = None) -> Variable:
    """Return the running products along `dim`, whose size must be known, or of `x` flattened."""
    x, place = _line(as_dtype(x, dtype), dim)
    return _scan(x, place, 1, lambda b, a, c: b.mul(a, c))


def logcumsumexp(x: Variable, axis: int | None = None, dtype: Any = None) -> Variable:
    """Return the running `logsumexp` along `axis`, whose size must be known, or of `x` flattened."""
    x, place = _line(floats(as_dtype(x, dtype)), axis)
    lowest = -1e30 if x.value.dtype == ir.DataType.FLOAT else -6e4  # stands for the logarithm of 0

    def join(b: GraphBuilder, a: ir.Value, c: ir.Value) -> ir.Value:
        larger = b.maximum(a, c)
        return b.add(larger, b.op("Softplus", [b.neg(b.op("Abs", [b.sub(a, c)]))]))

    return _scan(x, place, lowest, join)


def cummax(x: Variable, axis: int | None = None, dtype: Any = "int64") -> tuple[Variable, Variable]:
    """Return the largest element so far along `axis`, whose size must be known, and the last place where it is."""
    return _extreme_so_far("Max", x, axis, dtype)


def cummin(x: Variable, axis: int | None = None, dtype: Any = "int64") -> tuple[Variable, Variable]:
    """Return the smallest element so far along `axis`, whose size must be known, and the last place where it is."""
    return _extreme_so_far("Min", x, axis, dtype)


def _extreme_so_far(op_type: str, x: Variable, axis: int | None, dtype: Any) -> tuple[Variable, Variable]:
    x, place = _line(x, axis)
    b, size = builder_of(x), size_at(x, place, op_type)
    kind = (x.value.dtype or ir.DataType.FLOAT).numpy()
    bounds = np.iinfo(kind) if kind.kind in "iu" else None
    if bounds is None:
        outside = -np.inf if op_type == "Max" else np.inf
    else:
        outside = bounds.min if op_type == "Max" else bounds.max
    values = _scan(x, place, outside, functools.partial(_combine, op_type))
    numbers = np.arange(size).reshape([-1 if i == place else 1 for i in range(x.ndim)])
    here = b.where(b.compare("Equal", x.value, values.value), b.constant(numbers.astype(np.int64)), -1)
    places = _scan(wrap(x, here), place, -1, functools.partial(_combine, "Max"))
    return values, as_dtype(places, parse_dtype(dtype))


def _combine(op_type: str, b: GraphBuilder, a: ir.Value, c: ir.Value) -> ir.Value:
    return b.op(op_type, [a, c])


def _line(x: Variable, axis: int | None) -> tuple[Variable, int]:
    """Return `x` and the axis, or `x` flattened."""
    if axis is not None:
        return x, axis_of(x, axis)
    return (x if x.ndim == 1 else wrap(x, builder_of(x).reshape(x.value, [-1]))), 0


def _scan(
    x: Variable, axis: int, neutral: float, join: Callable[[GraphBuilder, ir.Value, ir.Value], ir.Value]
) -> Variable:
    """Join all elements up to each one: in step k with what is 2^k places before, and `neutral` before the first."""
    b, size, value = builder_of(x), size_at(x, axis, "running along an axis"), x.value
    distance = 1
    while distance < size:
        before = [0] * (2 * x.ndim)
        before[axis], before[x.ndim + axis] = distance, -distance
        fill = b.constant(neutral, value.dtype)
        value = join(b, value, b.op("Pad", [value, b.constant(np.array(before, np.int64)), fill]))
        distance *= 2
    return wrap(x, value)


# ---- differences and areas ----


def diff(
    x: Variable, n: int = 1, axis: int = -1, prepend: Variable | None = None, append: Variable | None = None
) -> Variable:
    """Return the differences of neighbours along `axis`, taken `n` times; `prepend` and `append` join `x` first."""
    place, b = axis_of(x, axis), builder_of(x, prepend, append)
    parts = [part.value for part in (prepend, x, append) if part is not None]
    value = b.concat(parts, place)
    for _ in range(n):
        value = b.sub(b.slice(value, [1], [_LAST], [place]), b.slice(value, [0], [-1], [place]))
    return wrap(x, value)


def _areas(y: Variable, x: Variable | None, dx: float | None, place: int) -> Variable:
    b = builder_of(y, x)
    both = b.add(b.slice(y.value, [1], [_LAST], [place]), b.slice(y.value, [0], [-1], [place]))
    if x is None:
        return wrap(y, b.mul(both, 0.5 * (1.0 if dx is None else dx)))
    width = diff(x, axis=-1 if x.ndim == 1 else place).value
    if x.ndim == 1 and y.ndim > 1:
        width = b.reshape(width, [-1 if i == place else 1 for i in range(y.ndim)])
    return wrap(y, b.mul(b.mul(both, width), 0.5))


def trapezoid(y: Variable, x: Variable | None = None, dx: float | None = None, axis: int = -1) -> Variable:
    """Return the area below `y` along `axis` by the trapezoidal rule, at the places `x`, or at distances of `dx`."""
    place = axis_of(y, axis)
    return sum(_areas(y, x, dx, place), place)


def cumulative_trapezoid(y: Variable, x: Variable | None = None, dx: float | None = None, axis: int = -1) -> Variable:
    """Return the areas below `y` up to each place behind the first; see `trapezoid`."""
    place = axis_of(y, axis)
    return cumsum(_areas(y, x, dx, place), place)


def renorm(x: Variable, p: float, axis: int, max_norm: float) -> Variable:
    """Return `x` with those slices along `axis` shortened to `max_norm` whose `p`-norm is above it."""
    place, b = axis_of(x, axis), builder_of(x)
    others = [i for i in range(x.ndim) if i != place]
    size = b.op("Abs", [b.high(x.value)])
    length = b.pow(b.sum(b.pow(size, float(p)), others), 1.0 / p)
    factor = b.where(b.compare("Greater", length, max_norm), b.div(float(max_norm), b.add(length, 1e-7)), 1.0)
    return wrap(x, b.mul(x.value, b.cast(factor, x.value.dtype)))


def reduce_as(x: Variable, target: Variable) -> Variable:
    """Return the sum of `x` over the axes along which `target` was repeated to its shape."""
    b = builder_of(x, target)
    return wrap(x, b.cast(b.sum_to(x.value, target.value), x.value.dtype))


accept_name(globals(), __all__)
