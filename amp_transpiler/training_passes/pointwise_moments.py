"""Computes a pointwise convolution and the BatchNormalization behind it, and their gradients, from moments of the data.

A convolution of one tap multiplies the data `z` by its weight at each place: `x = W z`. So the mean of `x` is `W`
times that of `z`, and with `z` centred and `G` the mean products of its channels, the variance is the diagonal of
`W G W'`. The result is one convolution, whose weight has the slope and whose bias is that of BatchNormalization. With
`P` the sums of `g z'`, where `g` is the gradient of the result, `n` numbers in a channel, and `a`, `b` and `c` as in
`batch_norm_views`,

    dscale = i * (P * W summed over a row),  dW = a * P + n * b * (W G),  dz = (a W)' g + (b W)' W z + W' c.

Neither `x` nor its gradient is ever written: where a layer widens, `z` is much smaller. Rows of ones beside the data
give the bias, the sums of `g`, and in `dz` the term that does not depend on the place.

The sums of a sample are rounded to 16 bits before they are added up in float32. So the data must be centred first:
sums that cancel would be rounded otherwise. Of `P` what is left of the mean, which 16 bits do not resolve, is taken
off. `G` is computed in float32 where few such sums are added up: where channels of the data are alike, variances are
small beside it. Centring rounds the data once more, in bfloat16 to eight bits: what channels differ by is as far off.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.products import ALIGNED
from amp_transpiler.graph.affine import times
from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.contrib_node import contrib
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.training_passes.batch_norm_views import ChannelSums

__all__ = ["LayerGradients", "Moments", "summed_products"]

_ALIGNED = 8  # channels, as products on tensor cores want
_MANY = 32  # sums of samples, of which the roundings to 16 bits cancel mostly
_DIVISOR = 32.0  # of data in 16 bits: the factors of the data in their gradient are smaller than 16 bits resolve


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


@dataclasses.dataclass(frozen=True, slots=True)
class Moments:
    """Holds the statistics of what a pointwise convolution computes.

    Attributes:
        shape: of the data, [N, C, ...].
        data: [N, D, n], the data, centred, and ones behind up to a multiple of 8; in 16 bits divided by `_DIVISOR`.
        weight: [M, C], float32.
        rest: [1, C], float32: the mean of the centred data, before they are divided; None in float32, where it is none.
        turned: [M, C], float32: `W G`.
        mean, inverse: [M, 1], float32: of the convolution's result, the mean and 1 over the deviation.
    """

    shape: tuple[int, ...]
    data: ir.Value
    weight: ir.Value
    rest: ir.Value | None
    turned: ir.Value
    mean: ir.Value
    inverse: ir.Value

    @classmethod
    def of(cls, builder: GraphBuilder, data: ir.Value, weight: ir.Value, epsilon: float) -> Moments:
        """Write the statistics of `weight` [M, C, 1, ...] times `data` [N, C, ...], which have one type.

        Args:
            builder: where to write them.
            data: the data.
            weight: the weight.
            epsilon: added to the variance.
        """
        samples, channels, *plane = shape_of(data)
        rows = shape_of(weight)[0]
        matrix = builder.high(builder.reshape(weight, [rows, channels]))
        beside, mean = _centred(builder, data)
        exact = beside if samples >= _MANY and not _is_whole(beside) else builder.high(beside)
        length = samples * math.prod(plane) if _is_whole(exact) else math.prod(plane)
        squares = summed_products(builder, exact, exact, _divisor(data) ** 2 / length)
        squares = times(builder, squares, length / (samples * math.prod(plane)))
        spread = builder.slice(squares, [0, 0], [channels, channels], [0, 1])
        rest = None
        if data.dtype in LOW_DTYPES:
            rest = builder.slice(squares, [channels, 0], [channels + 1, channels], [0, 1])
        turned = builder.matmul(matrix, spread)
        variance = builder.reduce("ReduceSum", builder.mul(turned, matrix), [1])  # of rounded sums: it may be below 0
        inverse = builder.pow(builder.add(builder.maximum(variance, 0.0), epsilon), -0.5)
        mean = builder.matmul(matrix, builder.reshape(mean, [channels, 1]))
        return cls(shape_of(data), beside, matrix, rest, turned, mean, inverse)

    @property
    def count(self) -> int:
        """How many numbers a channel has."""
        return math.prod(self.shape) // self.shape[1]

    @property
    def channels(self) -> int:
        """The number of channels of the result, M."""
        return shape_of(self.weight)[0]

    @property
    def ones(self) -> int:
        """The number of channels of ones behind the data, D - C."""
        return shape_of(self.data)[1] - self.shape[1]

    def affine(self, builder: GraphBuilder, scale: ir.Value, bias: ir.Value) -> ir.Value:
        """Return the normalised result of the convolution times `scale` plus `bias`, which are [M]."""
        shift = builder.reshape(builder.high(bias), [self.channels, 1])
        matrix = self._with_column(builder, builder.mul(self.weight, self._slope(builder, scale)), shift)
        return self._convolved(builder, times(builder, matrix, _divisor(self.data)))

    def gradients(self, builder: GraphBuilder, g: ir.Value, scale: ir.Value, *, with_data: bool) -> LayerGradients:
        """Return the gradients of a layer.

        Args:
            builder: where to write them.
            g: the gradient of the result of BatchNormalization, [N, M, ...].
            scale: [M].
            with_data: whether the gradient of the data is wanted.
        """
        channels, slope = self.shape[1], self._slope(builder, scale)
        products, totals = self._sums(builder, g)
        along = builder.reduce("ReduceSum", builder.mul(products, self.weight), [1])
        to_scale = builder.mul(along, self.inverse)
        share = builder.mul(to_scale, self.inverse)
        apart = builder.sub(products, builder.mul(self.turned, share))
        to_data = None
        if with_data:
            per_place = builder.mul(slope, -_divisor(g) / self.count)
            right = builder.mul(self.weight, builder.mul(per_place, share))
            right = self._with_column(builder, right, builder.mul(per_place, totals))
            from_data = self._convolved(builder, builder.matmul(builder.transpose(self.weight, [1, 0]), right))
            to_data = builder.add(self._turned_back(builder, g, builder.mul(self.weight, slope)), from_data)
        return LayerGradients(
            scale=builder.reshape(to_scale, [self.channels]),
            bias=builder.reshape(totals, [self.channels]),
            weight=builder.reshape(builder.mul(apart, slope), [self.channels, channels, *self._taps]),
            data=to_data,
        )

    def _turned_back(self, builder: GraphBuilder, g: ir.Value, matrix: ir.Value) -> ir.Value:
        """Return a matrix [M, C] turned, times `g` [N, M, ...]. CUDA has no ConvTranspose of bfloat16."""
        op_type, sides = "ConvTranspose", [self.channels, self.shape[1]]
        if g.dtype == ir.DataType.BFLOAT16:
            op_type, sides, matrix = "Conv", sides[::-1], builder.transpose(matrix, [1, 0])
        return builder.op(op_type, [g, builder.reshape(builder.cast(matrix, g.dtype), [*sides, *self._taps])])

    @property
    def _taps(self) -> list[int]:
        return [1] * (len(self.shape) - 2)

    def _slope(self, builder: GraphBuilder, scale: ir.Value) -> ir.Value:
        return builder.mul(builder.reshape(builder.high(scale), [self.channels, 1]), self.inverse)

    def _with_column(self, builder: GraphBuilder, matrix: ir.Value, column: ir.Value) -> ir.Value:
        """Return a matrix [M, C] with what is multiplied with ones behind, [M, D]."""
        columns = [matrix, column]
        if self.ones > 1:
            columns.append(builder.constant(np.zeros((self.channels, self.ones - 1))))
        return builder.concat(columns, 1)

    def _convolved(self, builder: GraphBuilder, matrix: ir.Value) -> ir.Value:
        """Return a matrix times the data, with their plane and in their type."""
        rows, (samples, channels, *plane) = shape_of(matrix)[0], self.shape
        weight = builder.reshape(builder.cast(matrix, self.data.dtype), [rows, channels + self.ones, *self._taps])
        return builder.op("Conv", [builder.reshape(self.data, [samples, channels + self.ones, *plane]), weight])

    def _sums(self, builder: GraphBuilder, g: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the sums of `g` with the centred data, [M, C], and those of `g`, [M, 1]."""
        samples, channels, *plane = self.shape
        length = self.count if _is_whole(self.data) else math.prod(plane)
        factor = 2.0 ** -round(math.log2(length) / 2) if g.dtype in LOW_DTYPES else 1.0
        side = builder.reshape(g, [samples, self.channels, math.prod(plane)])
        sums = times(builder, summed_products(builder, side, self.data, factor * _divisor(g)), 1 / factor)
        totals = builder.slice(sums, [channels], [channels + 1], [1])
        products = builder.slice(sums, [0], [channels], [1])
        if self.rest is not None:
            products = builder.sub(products, builder.mul(totals, self.rest))
        return products, totals


def summed_products(builder: GraphBuilder, first: ir.Value, second: ir.Value, alpha: float) -> ir.Value:
    """Return the products of the rows of [N, M, n] and [N, C, n], summed over N and n: [M, C], in float32.

    Products of single samples need no copies. But where rows are not aligned they are slow, so a channel of all samples
    is made one row.
    """
    (samples, m, length), n = shape_of(first), shape_of(second)[1]
    attributes = {"transB": 1, "alpha": alpha}
    if samples > 1 and not _is_whole(second):
        product = contrib(builder, "FusedMatMul", [first, second], attributes, first.dtype, [samples, m, n])
        return builder.reduce("ReduceSum", product, [0], keepdims=False)
    sides = [builder.transpose(side, [1, 0, 2]) if samples > 1 else side for side in (first, second)]
    sides = [builder.reshape(side, [rows, samples * length]) for side, rows in zip(sides, (m, n), strict=True)]
    return builder.high(contrib(builder, "FusedMatMul", sides, attributes, first.dtype, [m, n]))


def _is_whole(data: ir.Value) -> bool:
    """Whether one product sums over all samples."""
    return bool(shape_of(data)[2] % ALIGNED["float16" if data.dtype in LOW_DTYPES else "float32"])


def _divisor(data: ir.Value) -> float:
    return _DIVISOR if data.dtype in LOW_DTYPES else 1.0


def _centred(builder: GraphBuilder, data: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return centred data with rows of ones behind, [N, D, n], and the mean that was taken off, [C] in float32."""
    samples, channels, *plane = shape_of(data)
    sums = ChannelSums.of(data, 1)
    mean = sums.sums(builder, data, 1 / (sums.factor * samples * math.prod(plane)))
    column = builder.reshape(builder.cast(mean, data.dtype), [channels, *[1] * len(plane)])
    share = 1 / _divisor(data)
    rows = builder.reshape(times(builder, builder.sub(data, column), share), [samples, channels, math.prod(plane)])
    ones = _ALIGNED - channels % _ALIGNED  # one at least
    if data.dtype == ir.DataType.BFLOAT16:  # CUDA has no Pad of it
        sizes = builder.constant(np.array([samples, ones, math.prod(plane)], np.int64))
        return builder.concat([rows, builder.op("Expand", [builder.constant([[[share]]], rows.dtype), sizes])], 1), mean
    pads = builder.constant(np.array([0, 0, 0, 0, ones, 0], np.int64))
    return builder.op("Pad", [rows, pads, builder.constant(share, rows.dtype)]), mean
