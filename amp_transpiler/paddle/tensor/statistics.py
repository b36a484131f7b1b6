"""Computes statistics: medians and quantiles without NaN, the most frequent element, histograms, runs of equal ones."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.building import (
    Axes,
    accept_name,
    as_dtype,
    axes_of,
    axis_of,
    builder_of,
    choice,
    size_at,
    wrap,
)
from amp_transpiler.paddle.tensor.search import check_quantile, sort
from amp_transpiler.program.program import Variable

__all__ = ["histogram_bin_edges", "histogramdd", "mode", "nanmedian", "nanquantile", "unique_consecutive"]

_LAST = 2**63 - 1


def nanquantile(
    x: Variable, q: float | Sequence[float], axis: Axes = None, keepdim: bool = False, interpolation: str = "linear"
) -> Variable:
    """Return the numbers that a share `q` of those elements that are not NaN are below; NaN where there are none.

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
    shares, place = check_quantile("nanquantile", x, q, axis, interpolation)
    b = builder_of(x)
    flat = b.high(b.reshape(x.value, [-1]) if axis is None else x.value)
    missing = b.op("IsNaN", [flat])
    last = np.inf  # sorted behind all others
    ordered = sort(wrap(x, b.where(missing, last, flat)), place).value
    count = b.sum(b.cast(b.op("Not", [missing]), ir.DataType.FLOAT), [place])
    quantiles = []
    for share in shares:
        between = b.where(
            b.compare("Equal", count, 0.0), np.nan, _at_share(b, ordered, count, share, place, interpolation)
        )
        between = between if keepdim else b.squeeze(between, [place])
        if axis is None and keepdim:
            between = b.reshape(between, [1] * x.ndim)
        quantiles.append(b.cast(between, x.value.dtype))
    if isinstance(q, (int, float)):
        return wrap(x, quantiles[0])
    return wrap(x, b.op("Concat", [b.unsqueeze(value, [0]) for value in quantiles], {"axis": 0}))


def _at_share(b: GraphBuilder, ordered: ir.Value, count: ir.Value, share: float, axis: int, between: str) -> ir.Value:
    """Return the element at a share of the first `count` ordered ones, or a number between two."""
    position = b.maximum(b.mul(b.sub(count, 1.0), share), 0.0)
    if between == "nearest":
        position = b.op("Round", [position])
    low, high = b.op("Floor", [position]), b.op("Ceil", [position])
    below, above = (
        b.op("GatherElements", [ordered, b.cast(place, ir.DataType.INT64)], {"axis": axis}) for place in (low, high)
    )
    if between in ("lower", "nearest"):
        return below
    if between == "higher":
        return above
    part = b.sub(position, low)
    if between == "midpoint":
        part = b.mul(b.sub(high, low), 0.5)
    part = b.cast(part, ordered.dtype)
    return b.where(b.compare("Equal", part, 0.0), below, b.add(b.mul(below, b.sub(1.0, part)), b.mul(above, part)))


def nanmedian(x: Variable, axis: Axes = None, keepdim: bool = False, mode: str = "avg") -> Any:
    """Return the element in the middle of those that are not NaN, along an axis, or of all; NaN where there are none.

    Args:
        x: floats.
        axis: the axis.
        keepdim: whether the axis stays, with size 1.
        mode: of two in the middle, `avg` takes their mean, `min` the smaller.

    Returns:
        The median; with `min` and an axis, the median and its index.

    Raises:
        InputError: several axes are given.
        OptionError: there is no such mode.
    """
    choice("nanmedian: mode", mode, ("avg", "min"))
    medians = nanquantile(x, 0.5, axis, keepdim, "linear" if mode == "avg" else "lower")
    if mode == "avg" or axis is None:
        return medians
    b, place = builder_of(x), axes_of(x, axis)[0]
    wide = medians.value if keepdim else b.unsqueeze(medians.value, [place])
    same = b.cast(b.compare("Equal", x.value, wide), ir.DataType.INT32)
    return medians, wrap(x, b.op("ArgMax", [same], {"axis": place, "keepdims": int(keepdim)}))


def mode(x: Variable, axis: int = -1, keepdim: bool = False) -> tuple[Variable, Variable]:
    """Return the most frequent element along `axis`, of several the smallest, and the last index where it is.

    Each element is compared with each: memory grows with the square of the axis's size.
    """
    b, place = builder_of(x), axis_of(x, axis)
    ordered = sort(x, place)
    elements, others = b.unsqueeze(ordered.value, [place + 1]), b.unsqueeze(ordered.value, [place])
    often = b.reduce(
        "ReduceSum", b.cast(b.compare("Equal", elements, others), ir.DataType.INT64), [place + 1], keepdims=False
    )
    first = b.op("ArgMax", [often], {"axis": place})  # in order, so the smallest of the most frequent
    value = b.op("GatherElements", [ordered.value, first], {"axis": place})
    same = b.cast(b.compare("Equal", x.value, value), ir.DataType.INT32)
    index = b.op("ArgMax", [same], {"axis": place, "select_last_index": 1})
    value = b.op("GatherElements", [x.value, index], {"axis": place})  # its gradient goes to that index
    parts = (value, index) if keepdim else (b.squeeze(value, [place]), b.squeeze(index, [place]))
    return wrap(x, parts[0]), wrap(x, parts[1])


# ---- histograms ----


def histogram_bin_edges(input: Variable, bins: int = 100, min: float = 0.0, max: float = 0.0) -> Variable:
    """Return the `bins + 1` edges of `histogram`'s bins: from `min` to `max`, or of the data if both are 0; float32."""
    b = builder_of(input)
    if min or max:
        return wrap(input, b.op("Identity", [b.constant(np.linspace(min, max, bins + 1))]))
    low, high = _ends(b, b.cast(b.reshape(input.value, [-1]), ir.DataType.FLOAT))
    return wrap(input, _edges(b, low, high, bins))


def _ends(b: GraphBuilder, flat: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the smallest and the largest element; where they are equal, a half below and a half above."""
    low, high = (b.reduce(op_type, flat, [0]) for op_type in ("ReduceMin", "ReduceMax"))
    same = b.compare("Equal", low, high)
    return b.where(same, b.sub(low, 0.5), low), b.where(same, b.add(high, 0.5), high)


def _edges(b: GraphBuilder, low: ir.Value, high: ir.Value, bins: int) -> ir.Value:
    steps = b.constant((np.arange(bins + 1) / bins).astype(np.float32))
    return b.add(low, b.mul(steps, b.sub(high, low)))


def histogramdd(
    x: Variable,
    bins: int | Sequence[int] = 10,
    ranges: Sequence[float] | None = None,
    density: bool = False,
    weights: Variable | None = None,
) -> tuple[Variable, list[Variable]]:
    """Return how many points are in each cell of a grid, and the edges of its bins along each axis.

    Args:
        x: points, [..., axes]; floats.
        bins: how many along each axis, or along all.
        ranges: the first and last edge of each axis, one pair behind the other; the data's unless given.
        density: whether the counts are divided by their sum and by the size of a cell.
        weights: what each point counts, [...].

    Raises:
        OptionError: `bins` or `ranges` do not fit the number of axes.
    """
    axes = size_at(x, -1, "histogramdd")
    counts = [bins] * axes if isinstance(bins, int) else list(bins)
    if len(counts) != axes or (ranges is not None and len(ranges) != 2 * axes):
        raise OptionError(f"histogramdd: expected {axes} bins and {2 * axes} ranges, got {bins!r} and {ranges!r}")
    b = builder_of(x, weights)
    flat = b.cast(b.reshape(x.value, [-1, axes]), ir.DataType.FLOAT)
    kind = ir.DataType.FLOAT
    cell, inside, edges = None, None, []
    for axis, count in enumerate(counts):
        column = b.squeeze(b.slice(flat, [axis], [axis + 1], [1]), [1])
        if ranges is None:
            low, high = _ends(b, column)
        else:
            low, high = (b.constant([float(ranges[2 * axis + end])]) for end in (0, 1))
        edges.append(_edges(b, low, high, count))
        place = b.op("Floor", [b.div(b.mul(b.sub(column, low), float(count)), b.sub(high, low))])
        there = b.op("And", [b.compare("GreaterOrEqual", column, low), b.compare("LessOrEqual", column, high)])
        index = b.cast(b.minimum(b.maximum(place, 0.0), float(count - 1)), ir.DataType.INT64)
        cell = index if cell is None else b.add(b.mul(cell, count), index)
        inside = there if inside is None else b.op("And", [inside, there])
    assert cell is not None
    assert inside is not None
    weight = b.cast(inside, kind)
    if weights is not None:
        weight = b.mul(weight, b.cast(b.reshape(weights.value, [-1]), kind))
    zeros = b.constant(np.zeros(int(np.prod(counts)), np.float32))
    totals = b.op("ScatterElements", [zeros, cell, weight], {"axis": 0, "reduction": "add"})
    if density:
        sizes = [
            b.div(b.sub(b.slice(e, [-1], [_LAST], [0]), b.slice(e, [0], [1], [0])), float(n))
            for e, n in zip(edges, counts, strict=True)
        ]
        totals = b.div(totals, b.mul(b.sum(totals, [0]), functools.reduce(b.mul, sizes)))
    return wrap(x, b.reshape(totals, counts)), [wrap(x, edge) for edge in edges]


# ---- runs ----


def unique_consecutive(
    x: Variable,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    dtype: Any = "int64",
) -> Any:
    """Return the elements of `x`, of equal neighbours only the first; how many depends on the data.

    Args:
        x: what to look through.
        return_inverse: whether to return where each element of `x` is among them.
        return_counts: whether to return how often each is there.
        axis: compare whole slices along this axis; `x` is flattened unless given.
        dtype: of the places and counts.

    Returns:
        The elements; with one of the two others, a tuple.
    """
    b = builder_of(x)
    flat = b.reshape(x.value, [-1]) if axis is None else x.value
    place = 0 if axis is None else axis_of(x, axis)
    differ = b.op("Not", [b.op("Equal", [b.slice(flat, [1], [_LAST], [place]), b.slice(flat, [0], [-1], [place])])])
    others = [other for other in range(x.ndim if axis is not None else 1) if other != place]
    changed = b.reduce("ReduceMax", b.cast(differ, ir.DataType.INT64), others, keepdims=False)
    changed = b.concat([b.constant(np.array([1], np.int64)), changed], 0)
    starts = b.cast(changed, ir.DataType.BOOL)
    results = [wrap(x, b.op("Compress", [flat, starts], {"axis": place}))]
    if return_inverse:
        numbers = b.sub(b.op("CumSum", [changed, b.constant(np.array(0, np.int64))]), 1)
        results.append(as_dtype(wrap(x, numbers), dtype))
    if return_counts:
        places = b.reshape(b.op("NonZero", [starts]), [-1])
        ends = b.concat([b.slice(places, [1], [_LAST], [0]), b.shape(changed)], 0)
        results.append(as_dtype(wrap(x, b.sub(ends, places)), dtype))
    return tuple(results) if len(results) > 1 else results[0]


accept_name(globals(), __all__)
