"""Sorts and searches: the largest few, the index of the largest, quantiles, positions in sorted vectors, histograms."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.paddle.building import (
    Axes,
    accept_name,
    as_dtype,
    axes_of,
    axis_of,
    builder_of,
    choice,
    size_at,
    with_sizes,
    wrap,
)
from amp_transpiler.program.program import Variable

__all__ = [
    "argmax",
    "argmin",
    "argsort",
    "bincount",
    "bucketize",
    "histogram",
    "kthvalue",
    "median",
    "msort",
    "quantile",
    "searchsorted",
    "sort",
    "topk",
    "unique",
]


def argmax(x: Variable, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64") -> Variable:
    """Return the index of the largest element along `axis`, or of the largest of all in `x` flattened."""
    return _place("ArgMax", x, axis, keepdim, dtype)


def argmin(x: Variable, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64") -> Variable:
    """Return the index of the smallest element along `axis`, or of the smallest of all in `x` flattened."""
    return _place("ArgMin", x, axis, keepdim, dtype)


def _place(op_type: str, x: Variable, axis: int | None, keepdim: bool, dtype: Any) -> Variable:
    b = builder_of(x)
    value = b.reshape(x.value, [-1]) if axis is None else x.value
    attributes = {"axis": 0 if axis is None else axis_of(x, axis), "keepdims": int(keepdim and axis is not None)}
    index = b.op(op_type, [value], attributes)
    if axis is None and keepdim:
        index = b.reshape(index, [1] * x.ndim)
    return wrap(x, b.cast(index, parse_dtype(dtype)))


def topk(
    x: Variable, k: int | Variable, axis: int | None = None, largest: bool = True, sorted: bool = True
) -> tuple[Variable, Variable]:
    """Return the `k` largest elements along `axis` (the last unless given), or the smallest, and their indices.

    Args:
        x: floats or integers.
        k: how many; may be a variable of one element.
        axis: the axis.
        largest: False for the smallest.
        sorted: whether they are in order; they are in any case.
    """
    del sorted
    b, place = builder_of(x), x.ndim - 1 if axis is None else axis_of(x, axis)
    count = (
        b.reshape(b.cast(k.value, ir.DataType.INT64), [1])
        if isinstance(k, Variable)
        else b.constant(np.array([k], np.int64))
    )
    results = _top(x, count, place, largest)
    sizes = [k if axis == place else size for axis, size in enumerate(x.shape)]
    for result in results:
        with_sizes(result.value, sizes)
    return results


def _top(x: Variable, count: ir.Value, axis: int, largest: bool) -> tuple[Variable, Variable]:
    attributes = {"axis": axis, "largest": int(largest)}
    b, dtype = builder_of(x), x.value.dtype
    ordered = b.cast(x.value, ir.DataType.FLOAT) if dtype == ir.DataType.BFLOAT16 else x.value  # TopK takes no bfloat16
    values, places = b.nodes("TopK", [ordered, count], attributes, outputs=2)
    return wrap(x, b.cast(values, dtype)), wrap(x, places)


def _in_order(x: Variable, axis: int, descending: bool) -> tuple[Variable, Variable]:
    """Sort stably, and return the elements and their indices."""
    place, b = axis_of(x, axis), builder_of(x)
    size = x.shape[place]
    count = (
        b.constant(np.array([size], np.int64)) if size >= 0 else b.slice(b.shape(x.value), [place], [place + 1], [0])
    )
    values, places = _top(x, count, place, descending)
    for variable in (values, places):
        variable.value.shape = x.value.shape
    return values, places


def sort(x: Variable, axis: int = -1, descending: bool = False, stable: bool = False) -> Variable:
    """Return the elements in order along `axis`. Sorting is always stable."""
    del stable
    return _in_order(x, axis, descending)[0]


def msort(input: Variable) -> Variable:
    """Return the elements in order along axis 0."""
    return sort(input, 0)


def argsort(x: Variable, axis: int = -1, descending: bool = False, stable: bool = False) -> Variable:
    """Return the indices that put the elements in order along `axis`. Sorting is always stable."""
    del stable
    return _in_order(x, axis, descending)[1]


def kthvalue(x: Variable, k: int, axis: int | None = None, keepdim: bool = False) -> tuple[Variable, Variable]:
    """Return the `k`-th smallest element along `axis` (the last unless given), and its index."""
    b, place = builder_of(x), x.ndim - 1 if axis is None else axis_of(x, axis)
    taken = []
    for part in topk(x, k, place, largest=False):
        last = b.slice(part.value, [k - 1], [k], [place])
        taken.append(wrap(x, last if keepdim else b.squeeze(last, [place])))
    return taken[0], taken[1]


def median(x: Variable, axis: int | None = None, keepdim: bool = False, mode: str = "avg") -> Any:
    """Return the element in the middle, along an `axis` whose size is known, or of all.

    Args:
        x: floats.
        axis: the axis.
        keepdim: whether the axis stays, with size 1.
        mode: of two in the middle, `avg` takes their mean, `min` the smaller.

    Returns:
        The median; with `min` and an axis, the median and its index.

    Raises:
        OptionError: there is no such mode.
    """
    choice("median: mode", mode, ("avg", "min"))
    flattened = axis is None
    flat = wrap(x, builder_of(x).reshape(x.value, [-1])) if axis is None else x
    place = 0 if axis is None else axis_of(x, axis)
    size = math.prod(x.shape) if flattened and min(x.shape, default=1) >= 0 else size_at(flat, place, "median")
    low = (size + 1) // 2
    if mode == "min":
        value_and_index = kthvalue(flat, low, place, keepdim)
        result = value_and_index[0] if flattened else value_and_index
    elif size % 2:
        result = kthvalue(flat, low, place, keepdim)[0]
    else:
        b, ordered = builder_of(x), topk(flat, low + 1, place, largest=False)[0]
        middle = b.slice(ordered.value, [low - 1], [low + 1], [place])
        result = wrap(x, b.cast(b.mean(middle, [place], keepdims=keepdim), x.value.dtype))
    if flattened and keepdim and isinstance(result, Variable):
        return wrap(x, builder_of(x).reshape(result.value, [1] * x.ndim))
    return result


def quantile(
    x: Variable, q: float | Sequence[float], axis: Axes = None, keepdim: bool = False, interpolation: str = "linear"
) -> Variable:
    """Return the numbers that a share `q` of the elements are below, along an axis of known size, or of all.

    Args:
        x: floats.
        q: from 0 to 1; several make a new first axis.
        axis: the axis; all elements unless given.
        keepdim: whether the axis stays, with size 1.
        interpolation: what is between two elements: `linear`, `lower`, `higher`, `midpoint` or `nearest`.

    Raises:
        InputError: several axes are given.
        OptionError: there is no such interpolation, or `q` is outside of [0, 1].
    """
    shares, place = check_quantile("quantile", x, q, axis, interpolation)
    b = builder_of(x)
    flat = wrap(x, b.reshape(x.value, [-1])) if axis is None else x
    size = math.prod(x.shape) if axis is None and min(x.shape) >= 0 else size_at(flat, place, "quantile")
    ordered, quantiles = b.high(topk(flat, size, place, largest=False)[0].value), []
    for share in shares:
        position = share * (size - 1)
        if interpolation in _PLACES:
            position = _PLACES[interpolation](position)
        low, high = math.floor(position), math.ceil(position)
        part = 0.5 if interpolation == "midpoint" and low != high else position - low
        below, above = (b.slice(ordered, [i], [i + 1], [place]) for i in (low, high))
        between = b.add(b.mul(below, 1 - part), b.mul(above, part)) if part else below
        between = between if keepdim else b.squeeze(between, [place])
        if axis is None and keepdim:
            between = b.reshape(between, [1] * x.ndim)
        quantiles.append(b.cast(between, x.value.dtype))
    if isinstance(q, (int, float)):
        return wrap(x, quantiles[0])
    return wrap(x, b.op("Concat", [b.unsqueeze(value, [0]) for value in quantiles], {"axis": 0}))


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def check_quantile(
    what: str, x: Variable, q: float | Sequence[float], axis: Axes, interpolation: str
) -> tuple[list[float], int]:
    """Return the shares that a quantile is asked for, and its axis: 0 where all elements count.

    Args:
        what: the function, for messages.
        x: the operand.
        q: one share or several.
        axis: one axis, or None.
        interpolation: what is between two elements.

    Raises:
        InputError: several axes are given.
        OptionError: there is no such interpolation, or `q` is outside of [0, 1].
    """
    choice(f"{what}: interpolation", interpolation, _INTERPOLATIONS)
    shares = [q] if isinstance(q, (int, float)) else list(q)
    if not shares or min(shares) < 0 or max(shares) > 1:
        raise OptionError(f"{what}: q must be from 0 to 1, got {q!r}")
    axes = axes_of(x, axis)
    if axis is not None and len(axes) > 1:
        raise InputError(f"{what}: expected one axis or none, got {axis!r}: flatten them first")
    return shares, 0 if axis is None else axes[0]


_PLACES: dict[str, Callable[[float], float]] = {"lower": math.floor, "higher": math.ceil, "nearest": round}


# ---- counting, and places in what is sorted ----


def searchsorted(sorted_sequence: Variable, values: Variable, out_int32: bool = False, right: bool = False) -> Variable:
    """Return where to insert values so that a sequence stays sorted: how many of its elements are below each of them.

    Args:
        sorted_sequence: sorted along its last axis; a vector, or with the other axes of `values`.
        values: what to look for.
        out_int32: whether the result is int32 and not int64.
        right: whether elements that are equal count, too.
    """
    b = builder_of(sorted_sequence, values)
    sequence = sorted_sequence.value
    if sorted_sequence.ndim > 1:
        sequence = b.unsqueeze(sequence, [sorted_sequence.ndim - 1])
    sought = b.unsqueeze(b.cast(values.value, sequence.dtype), [values.ndim])
    below = b.compare("LessOrEqual" if right else "Less", sequence, sought)
    count = b.sum(b.cast(below, ir.DataType.INT64), [values.ndim], keepdims=False)
    return wrap(values, b.cast(count, ir.DataType.INT32 if out_int32 else ir.DataType.INT64))


def bucketize(x: Variable, sorted_sequence: Variable, out_int32: bool = False, right: bool = False) -> Variable:
    """Return the bucket, between the numbers of a sorted vector, that each element is in; see `searchsorted`."""
    return searchsorted(sorted_sequence, x, out_int32, right)


def bincount(x: Variable, weights: Variable | None = None, minlength: int = 0) -> Variable:
    """Count how often each of 0, 1, ... is among the integers of a vector, or sum up their weights."""
    b = builder_of(x, weights)
    places = b.cast(x.value, ir.DataType.INT64)
    most = b.reduce("ReduceMax", b.concat([places, b.constant(np.array([minlength - 1], np.int64))], 0), [0])
    kind = ir.DataType.INT64 if weights is None or weights.value.dtype is None else weights.value.dtype
    fill = ir.tensor(np.zeros(1, kind.numpy()), dtype=kind)
    zeros = b.op("ConstantOfShape", [b.add(most, 1)], {"value": fill})
    added = b.expand_like(b.constant(1, kind), places) if weights is None else weights.value
    counts = b.op("ScatterElements", [zeros, places, added], {"axis": 0, "reduction": "add"})
    counts.shape = ir.Shape([None])
    return wrap(x, counts)


def histogram(input: Variable, bins: int = 100, min: float = 0.0, max: float = 0.0) -> Variable:
    """Count the elements in equal bins from `min` to `max`, or over the range of the data if both are 0; int64."""
    b = builder_of(input)
    flat = b.cast(b.reshape(input.value, [-1]), ir.DataType.FLOAT)
    if min or max:
        low, high = b.constant(float(min)), b.constant(float(max))
    else:
        low, high = (b.reduce(op_type, flat, None, keepdims=False) for op_type in ("ReduceMin", "ReduceMax"))
        same = b.compare("Equal", low, high)
        low, high = b.where(same, b.sub(low, 0.5), low), b.where(same, b.add(high, 0.5), high)
    place = b.op("Floor", [b.div(b.mul(b.sub(flat, low), float(bins)), b.sub(high, low))])
    inside = b.op("And", [b.compare("GreaterOrEqual", flat, low), b.compare("LessOrEqual", flat, high)])
    index = b.cast(b.minimum(b.maximum(place, 0.0), float(bins - 1)), ir.DataType.INT64)
    zeros = b.constant(np.zeros(bins, np.int64))
    count = b.op("ScatterElements", [zeros, index, b.cast(inside, ir.DataType.INT64)], {"axis": 0, "reduction": "add"})
    return wrap(input, count)


def unique(
    x: Variable,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    dtype: Any = "int64",
) -> Any:
    """Return the elements of `x` in order, each once, or its slices along `axis`; how many depends on the data.

    Args:
        x: floats or integers.
        return_index: whether to return the first index of each.
        return_inverse: whether to return where each element of `x` is among them.
        return_counts: whether to return how often each is there.
        axis: the axis; `x` is flattened unless given.
        dtype: of indices and counts.

    Returns:
        The elements; with one of the three others, a tuple.
    """
    attributes = {"sorted": 1} | ({} if axis is None else {"axis": axis_of(x, axis)})
    outputs = builder_of(x).nodes("Unique", [x.value], attributes, outputs=4)
    extras = zip(outputs[1:], (return_index, return_inverse, return_counts), strict=True)
    rest = [as_dtype(wrap(x, value), dtype) for value, asked in extras if asked]
    return (wrap(x, outputs[0]), *rest) if rest else wrap(x, outputs[0])


accept_name(globals(), __all__)
