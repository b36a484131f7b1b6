"""Computes BatchNormalization in training from data as they lie: nothing is transposed; needs all sizes.

[N, C, ...] is seen as rows of one sample and channel, or of a piece of it where they are few. LayerNormalization gives
mean and inverse deviation of each row in float32, and those of a channel follow from them: its mean is the mean of
theirs, its variance the mean of theirs and of the squares of the distances between the means.

The gradient of the data is a combination of them and of `g`, the gradient of the result, with one number a channel
each. With `m` the mean of a channel, `i` 1 over its deviation and `n` the count of its numbers,

    dscale = i * (sum of g * x - m * sum of g),  dbias = sum of g,
    dx = a * g + b * (x - m) + c,  a = scale * i,  b = -a * i * dscale / n,  c = -a * dbias / n.

BatchNormalization with given statistics computes what is behind `a * g` in one kernel, or in bfloat16 a product and a
sum do. The sums of rows are products: of `g` with ones and of `g` with `x`, row by row or matrix by matrix. In 16 bits
their results are divided by the root of the length of a row, as which the sum of independent numbers grows, so that it
neither overflows nor vanishes; they are added up in float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.affine import affine, times
from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.contrib_node import contrib
from amp_transpiler.graph.dtypes import LOW_DTYPES

__all__ = ["Batch", "ChannelSums", "gradients", "scaled", "statistics"]

_DEVIATION = 128.0  # by which a kernel divides: `b` is smaller than 16 bits resolve, `_DEVIATION * b` is not
_COLUMNS = 8  # of ones, that 16-bit products on tensor cores need


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Holds the statistics of the channels of some data [N, C, ...].

    Attributes:
        data: the data.
        mean, inverse: [C, 1], float32: the mean, and 1 over the deviation.
    """

    data: ir.Value
    mean: ir.Value
    inverse: ir.Value

    @property
    def channels(self) -> int:
        """The number of channels, C."""
        return shape_of(self.data)[1]

    @property
    def count(self) -> int:
        """How many numbers a channel has."""
        return math.prod(shape_of(self.data)) // self.channels


def statistics(builder: GraphBuilder, x: ir.Value, epsilon: float, pieces: int) -> Batch:
    """Return the statistics of `x`, from rows of which so many make up a sample's channel."""
    n, c, *rest = shape_of(x)
    length = math.prod(rest) // pieces
    ones = builder.constant(np.ones(length), x.dtype)
    rows = builder.reshape(x, [n * c * pieces, length])
    attributes = {"axis": 1, "epsilon": epsilon}
    _, *of_rows = builder.nodes("LayerNormalization", [rows, ones], attributes, outputs=3)
    means, inverses = (builder.reshape(value, [n, c, pieces]) for value in of_rows)
    mean = _over_rows(builder, "ReduceMean", means)
    apart = builder.sub(means, mean)
    spread = builder.add(builder.mul(apart, apart), builder.pow(inverses, -2.0))  # epsilon is in the second
    inverse = builder.pow(_over_rows(builder, "ReduceMean", spread), -0.5)
    return Batch(x, *(builder.reshape(value, [c, 1]) for value in (mean, inverse)))


def _over_rows(builder: GraphBuilder, op_type: str, values: ir.Value) -> ir.Value:
    """Reduce [N, C, pieces] to one number a channel: kernels are fast over first and over last axes alone."""
    n, _, pieces = shape_of(values)
    for axis, size in ((2, pieces), (0, n)):
        if size > 1:
            values = builder.reduce(op_type, values, [axis])
    return values


def scaled(builder: GraphBuilder, batch: Batch, scale: ir.Value, bias: ir.Value) -> ir.Value:
    """Return the normalised data times `scale` plus `bias`, which are [C]: in their shape and type.

    The mean has their type too. In 16 bits it is as far off as they are at that place.
    """
    mean, inverse = (builder.reshape(value, [batch.channels]) for value in (batch.mean, batch.inverse))
    return affine(builder, batch.data, builder.mul(builder.high(scale), inverse), bias, mean)


def gradients(
    builder: GraphBuilder,
    g: ir.Value,
    batch: Batch,
    scale: ir.Value,
    wanted: Collection[int],
    pieces: int,
    *,
    by_matrices: bool = False,
    over_slope: bool = False,
) -> dict[int, ir.Value]:
    """Return the gradients of data (0), scale (1) and bias (2), as far as they are wanted.

    That of the data has their shape and type, the others are [C] in float32.

    Args:
        builder: where to write them.
        g: the gradient of the result, in the data's shape and type.
        batch: the data and their statistics.
        scale: [C].
        wanted: which ones.
        pieces: how many rows make up a sample's channel.
        by_matrices: whether the sums of products come from products of matrices; see `ChannelSums.diagonals`.
        over_slope: whether that of the data is returned over `a`, which what reads it applies.
    """
    rows = ChannelSums.of(batch.data, pieces)
    mean, inverse = (builder.reshape(value, [batch.channels]) for value in (batch.mean, batch.inverse))
    to_bias = rows.sums(builder, g)
    results = {2: to_bias} if 2 in wanted else {}
    if {0, 1} & set(wanted):
        sums = (rows.diagonals if by_matrices else rows.dots)(builder, g, batch.data)
        against = builder.sub(sums, builder.mul(mean, to_bias))
        to_scale = builder.mul(against, inverse)
        results.update({1: to_scale} if 1 in wanted else {})
    results = {index: times(builder, value, 1 / rows.factor) for index, value in results.items()}
    if 0 in wanted:
        per_number = -1 / (rows.factor * batch.count)
        if over_slope:
            along = builder.mul(builder.mul(inverse, per_number * _deviation(g)), to_scale)
            level = builder.mul(to_bias, per_number)
            return {**results, 0: builder.add(g, _moved(builder, g, batch, along, level))}
        slope = builder.mul(builder.high(scale), inverse)
        share = builder.mul(slope, per_number)
        along, level = builder.mul(share, inverse), builder.mul(share, to_bias)
        results[0] = _combined(builder, g, batch, slope, along, to_scale, level)
    return results


def _combined(
    builder: GraphBuilder,
    g: ir.Value,
    batch: Batch,
    slope: ir.Value,
    share: ir.Value,
    to_scale: ir.Value,
    level: ir.Value,
) -> ir.Value:
    """Return `slope * g + share * to_scale * (x - mean) + level`."""
    along = builder.mul(times(builder, share, _deviation(g)), to_scale)
    moved = _moved(builder, g, batch, along, level)
    column = builder.reshape(builder.cast(slope, g.dtype), [batch.channels, *[1] * (len(shape_of(g)) - 2)])
    return builder.add(builder.mul(g, column), moved)


def _moved(builder: GraphBuilder, g: ir.Value, batch: Batch, along: ir.Value, level: ir.Value) -> ir.Value:
    """Return `along * (x - mean) + level`, with `along` given times `_deviation`."""
    mean = builder.reshape(batch.mean, [batch.channels])
    return affine(builder, batch.data, along, level, mean, _deviation(g))


def _deviation(g: ir.Value) -> float:
    return _DEVIATION if g.dtype == ir.DataType.FLOAT16 else 1.0


def _multiplied(
    builder: GraphBuilder, first: ir.Value, second: ir.Value, shape: Sequence[int], attributes: Mapping[str, float]
) -> ir.Value:
    if not attributes:
        return builder.matmul(first, second)
    return contrib(builder, "FusedMatMul", [first, second], attributes, first.dtype, shape)


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelSums:
    """Sums over the numbers of each channel, by rows.

    Attributes:
        samples, channels, pieces: whose product is the number of rows.
        length: of a row.
        factor: a power of two, which all sums are multiplied with.
    """

    samples: int
    channels: int
    pieces: int
    length: int
    factor: float

    @classmethod
    def of(cls, x: ir.Value, pieces: int) -> ChannelSums:
        """Return the rows of data, of which so many make up a sample's channel."""
        n, c, *rest = shape_of(x)
        length = math.prod(rest) // pieces
        factor = 2.0 ** -round(math.log2(length) / 2) if x.dtype in LOW_DTYPES else 1.0
        return cls(n, c, pieces, length, factor)

    @property
    def number(self) -> int:
        """The number of rows."""
        return self.samples * self.channels * self.pieces

    def sums(self, builder: GraphBuilder, g: ir.Value, more: float = 1.0) -> ir.Value:
        """Return the sum of each channel, times `factor` and `more`: [C], in float32."""
        rows = builder.reshape(g, [self.number, self.length])
        columns = _COLUMNS if g.dtype in LOW_DTYPES else 1
        share = self.factor / columns  # equal columns are added up
        if self.samples == 1:
            ones = builder.constant(np.full((self.length, columns), share), g.dtype)
            product = _multiplied(builder, rows, ones, [self.number, columns], {} if more == 1 else {"alpha": more})
            return self._added(builder, product, 1, self.pieces * columns)
        ones = builder.constant(np.full((columns, self.length), share), g.dtype)
        attributes = {"transB": 1} if more == 1 else {"transB": 1, "alpha": more}
        product = _multiplied(builder, ones, rows, [columns, self.number], attributes)
        return self._added(builder, product, columns * self.samples, self.pieces)

    def dots(self, builder: GraphBuilder, g: ir.Value, x: ir.Value) -> ir.Value:
        """Return the sum of products with `x` of each channel: [C], in float32."""
        sides = [builder.reshape(value, [self.number, 1, self.length]) for value in (g, x)]
        attributes = {"transB": 1, "alpha": self.factor}
        product = contrib(builder, "FusedMatMul", sides, attributes, g.dtype, [self.number, 1, 1])
        return self._added(builder, product, self.samples, self.pieces)

    def diagonals(self, builder: GraphBuilder, g: ir.Value, x: ir.Value) -> ir.Value:
        """Return what `dots` does, by products of whole matrices [C, n], one a sample.

        They compute all pairs of channels, of which those on the diagonal are wanted; others may overflow. On tensor
        cores that takes less time than to go through the rows one by one.
        """
        samples = [self.samples] if self.samples > 1 else []
        sides = [builder.reshape(value, [*samples, self.channels, self.pieces * self.length]) for value in (g, x)]
        attributes = {"transB": 1, "alpha": self.factor}
        shape = [*samples, self.channels, self.channels]
        product = contrib(builder, "FusedMatMul", sides, attributes, g.dtype, shape)
        flat = builder.reshape(product, [self.samples, self.channels**2])
        places = builder.constant(np.arange(self.channels, dtype=np.int64) * (self.channels + 1))
        return self._added(builder, builder.op("Gather", [flat, places], {"axis": 1}), self.samples, 1)

    def _added(self, builder: GraphBuilder, values: ir.Value, samples: int, pieces: int) -> ir.Value:
        total = _over_rows(builder, "ReduceSum", builder.reshape(values, [samples, self.channels, pieces]))
        return builder.reshape(builder.high(total), [self.channels])
