"""Computes the gradients of a pointwise convolution and of the BatchNormalization behind it from moments of the data.

A convolution of one tap multiplies the data `z` by its weight at each place: `x = W z`. So what the gradients of
BatchNormalization sum up over `x` and `g`, that of its result, follows from sums over `z` and `g`. With `z` centred, `P`
the sums of `g z'`, `G` those of `z z'`, and the `a`, `b` and `c` of `batch_norm_views`,

    dscale = i * (P * W summed over a row),  dW = a * P + b * (W G),  dz = (a W)' g + (b W)' W z + W' c.

The gradient of `x`, as large as `g`, is never written, and `x` not read: where a layer widens, `z` is much smaller. Rows
of ones beside the data give the sums of `g` and, in the last product, the term that does not depend on the place.

In 16 bits the sums of samples are rounded before they are added up in float32. So the data are centred first: sums that
cancel would be rounded otherwise. What is left of their mean is taken off afterwards; in float32 that is all of it.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.training_passes.batch_norm_views import Batch, ChannelSums
from amp_transpiler.training_passes.contrib_node import contrib

__all__ = ["LayerGradients", "layer_gradients"]

_ONES = 8  # rows, as products on tensor cores want
_DIVISOR = 32.0  # of data in 16 bits: the factors of the last product are smaller than 16 bits resolve


@dataclasses.dataclass(frozen=True, slots=True)
class LayerGradients:
    """The gradients of a convolution and a BatchNormalization.

    Attributes:
        scale, bias: [M], float32.
        weight: float32, in the shape of the weight.
        data: in the data's shape and type; None if it was not wanted.
    """

    scale: ir.Value
    bias: ir.Value
    weight: ir.Value
    data: ir.Value | None


def layer_gradients(
    builder: GraphBuilder,
    g: ir.Value,
    data: ir.Value,
    weight: ir.Value,
    batch: Batch,
    scale: ir.Value,
    *,
    with_data: bool,
    whole: bool,
) -> LayerGradients:
    """Return the gradients of a layer.

    Args:
        builder: where to write them.
        g: the gradient of the result of BatchNormalization, [N, M, ...].
        data: what is convolved, [N, C, ...].
        weight: [M, C, 1, ...], in their type.
        batch: the statistics of the convolution's result.
        scale: [M].
        with_data: whether the gradient of the data is wanted.
        whole: whether one product sums over all samples, for which a channel of all samples is made one row first.
    """
    sums = _Sums.of(builder, g, data, whole)
    rows, channels = shape_of(weight)[:2]
    matrix = builder.high(builder.reshape(weight, [rows, channels]))
    inverse = builder.reshape(batch.inverse, [rows, 1])
    slope = builder.mul(builder.reshape(builder.high(scale), [rows, 1]), inverse)
    along = builder.reduce("ReduceSum", builder.mul(sums.products, matrix), [1])
    to_scale = builder.mul(along, inverse)
    share = builder.mul(to_scale, inverse)
    apart = builder.sub(sums.products, builder.mul(builder.matmul(matrix, sums.spread), share))
    to_weight = builder.mul(apart, _times(builder, slope, 1 / sums.factor))
    to_data = None
    if with_data:
        per_place = builder.mul(slope, -1 / (sums.factor * batch.count))
        turned = builder.transpose(matrix, [1, 0])
        mixing = builder.matmul(turned, builder.mul(matrix, builder.mul(per_place, share)))
        level = builder.matmul(turned, builder.mul(per_place, sums.totals))
        if g.dtype not in LOW_DTYPES:  # what is left of the mean there is smaller than 16 bits resolve
            level = builder.sub(level, builder.matmul(mixing, builder.reshape(sums.rest, [channels, 1])))
        to_data = _to_data(builder, g, sums.data, builder.mul(matrix, slope), mixing, level, shape_of(data))
    return LayerGradients(
        scale=builder.reshape(_times(builder, to_scale, 1 / sums.factor), [rows]),
        bias=builder.reshape(_times(builder, sums.totals, 1 / sums.factor), [rows]),
        weight=builder.reshape(to_weight, shape_of(weight)),
        data=to_data,
    )


def _to_data(
    builder: GraphBuilder,
    g: ir.Value,
    data: ir.Value,
    scaled: ir.Value,
    mixing: ir.Value,
    level: ir.Value,
    shape: tuple[int, ...],
) -> ir.Value:
    """Return `scaled' g + mixing z + level`."""
    rows, channels = shape_of(scaled)
    taps = [1] * (len(shape) - 2)
    first = builder.reshape(builder.cast(scaled, g.dtype), [rows, channels, *taps])
    rest = builder.constant(np.zeros((channels, _ONES - 1)))
    second = _times(builder, builder.concat([mixing, level, rest], 1), _divisor(g))
    second = builder.reshape(builder.cast(second, g.dtype), [channels, channels + _ONES, *taps])
    from_g = builder.op("ConvTranspose", [g, first])
    return builder.add(
        from_g, builder.op("Conv", [builder.reshape(data, [shape[0], channels + _ONES, *shape[2:]]), second])
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over the places of a batch, in float32.

    Attributes:
        data: [N, C + 8, n], the data and ones; in 16 bits centred and divided by `_DIVISOR`.
        products: [M, C], of the gradient with the centred data, times `factor`.
        totals: [M, 1], of the gradient, times `factor`.
        spread: [C, C], the mean products of the centred data.
        rest: [1, C], the mean of `data` before they are divided.
        factor: a power of two.
    """

    data: ir.Value
    products: ir.Value
    totals: ir.Value
    spread: ir.Value
    rest: ir.Value
    factor: float

    @classmethod
    def of(cls, builder: GraphBuilder, g: ir.Value, data: ir.Value, whole: bool) -> _Sums:
        """Write the sums."""
        samples, channels, *plane = shape_of(data)
        rows, places = shape_of(g)[1], math.prod(plane)
        count = samples * places
        length = count if whole else places
        factor = 2.0 ** -round(math.log2(length) / 2) if g.dtype in LOW_DTYPES else 1.0
        divisor = _divisor(g)
        beside = _with_ones(builder, data)
        sides = [builder.reshape(g, [samples, rows, places]), beside]
        if whole:
            sides = [_whole(builder, side) for side in sides]
        products = _summed(builder, sides[0], sides[1], factor * divisor)
        squares = _summed(builder, sides[1], sides[1], divisor**2 / count)
        totals = builder.slice(products, [channels], [channels + 1], [1])
        rest = builder.slice(squares, [channels, 0], [channels + 1, channels], [0, 1])
        products = builder.slice(products, [0], [channels], [1])
        spread = builder.slice(squares, [0, 0], [channels, channels], [0, 1])
        products = builder.sub(products, builder.mul(totals, rest))
        if g.dtype not in LOW_DTYPES:
            spread = builder.sub(spread, builder.mul(builder.reshape(rest, [channels, 1]), rest))
        assert shape_of(products) == (rows, channels), "the sums are of the gradient's rows and of the data's"
        return cls(beside, products, totals, spread, rest, factor)


def _whole(builder: GraphBuilder, side: ir.Value) -> ir.Value:
    """Return [N, C, n] as [1, C, N * n]."""
    samples, channels, places = shape_of(side)
    turned = builder.transpose(side, [1, 0, 2]) if samples > 1 else side
    return builder.reshape(turned, [1, channels, samples * places])


def _divisor(g: ir.Value) -> float:
    return _DIVISOR if g.dtype in LOW_DTYPES else 1.0


def _with_ones(builder: GraphBuilder, data: ir.Value) -> ir.Value:
    """Return data with rows of ones behind, [N, C + 8, n]; in 16 bits centred, and all divided."""
    samples, channels, *plane = shape_of(data)
    share = 1.0
    if data.dtype in LOW_DTYPES:
        sums = ChannelSums.of(data, 1)
        mean = builder.mul(sums.sums(builder, data), 1 / (sums.factor * samples * math.prod(plane)))
        column = builder.reshape(builder.cast(mean, data.dtype), [channels, *[1] * len(plane)])
        share = 1 / _DIVISOR
        data = builder.mul(builder.sub(data, column), share)
    rows = builder.reshape(data, [samples, channels, math.prod(plane)])
    pads = builder.constant(np.array([0, 0, 0, 0, _ONES, 0], np.int64))
    return builder.op("Pad", [rows, pads, builder.constant(share, rows.dtype)])


def _summed(builder: GraphBuilder, first: ir.Value, second: ir.Value, alpha: float) -> ir.Value:
    """Return the products of the rows of two stacks of matrices, summed over the stack: [m, n], in float32."""
    (count, m, _), n = shape_of(first), shape_of(second)[1]
    attributes = {"transB": 1, "alpha": alpha}
    if count == 1:
        sides = [builder.reshape(side, shape_of(side)[1:]) for side in (first, second)]
        return builder.high(contrib(builder, "FusedMatMul", sides, attributes, first.dtype, [m, n]))
    product = contrib(builder, "FusedMatMul", [first, second], attributes, first.dtype, [count, m, n])
    return builder.reduce("ReduceSum", product, [0], keepdims=False)


def _times(builder: GraphBuilder, value: ir.Value, factor: float) -> ir.Value:
    return value if factor == 1 else builder.mul(value, factor)
