"""Computes BatchNormalization in training by rows, one a channel, in few passes over the data; needs all sizes.

LayerNormalization of the rows gives the normalised data in their own type, and mean and inverse deviation in float32,
by one kernel. A BatchNormalization with given statistics, which is another, scales and shifts. The gradient `g` of the
result is normalised as the data are. Then `r`, the mean product of the two, lies between -1 and 1 and loses nothing in
16 bits, and the gradient of the data is a combination of two tensors with one number a channel each: with `s` the
deviation of `g`, `d` that of the data,

    dx = scale * s / d * (normalised g - r * normalised x),  dscale = n * s * r,  dbias = n * mean of g.

The combination keeps its factors in float32 beside 16-bit data, by an operator of ONNX Runtime whose kernel is
elementwise: `HyperConnectionPostMix` of `com.microsoft`, with one stream.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.affine import affine as affine_of_data
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.contrib_node import CONTRIB, contrib
from amp_transpiler.ops.schema import signature

__all__ = ["Rows", "affine", "can_be_rows", "gradients", "normalise"]

_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_LAYER_NORM = 17  # the opset that brought LayerNormalization
_TINY = 1e-36  # in place of epsilon for gradients: it must be small beside the square of any, and not 0


def can_be_rows(x: ir.Value, opset: int) -> bool:
    """Whether the data can be normalised by rows."""
    mixes = signature(CONTRIB, "HyperConnectionPostMix", 1) is not None
    has_sizes = is_static(x) and len(shape_of(x)) > 1 and math.prod(shape_of(x)) > 0
    return has_sizes and mixes and opset >= _LAYER_NORM and x.dtype in _TYPES


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Holds normalised data [N, C, ...] with one row a channel.

    Attributes:
        shape: of the data.
        values: [C, n], normalised, in the data's type.
        mean, inverse: [C, 1], float32: the mean, and 1 over the deviation.
    """

    shape: tuple[int, ...]
    values: ir.Value
    mean: ir.Value
    inverse: ir.Value

    @property
    def channels(self) -> int:
        """The number of channels, C."""
        return self.shape[1]

    @property
    def count(self) -> int:
        """How many numbers a channel has."""
        return math.prod(self.shape) // self.channels

    @property
    def are_views(self) -> bool:
        """Whether rows lie in memory as the data do: of one sample, or of one channel."""
        return 1 in self.shape[:2]


def normalise(builder: GraphBuilder, x: ir.Value, epsilon: float) -> Rows:
    """Return the rows of `x`, normalised with `epsilon` added to the variance."""
    shape = shape_of(x)
    count = math.prod(shape) // shape[1]
    ones = builder.constant(np.ones(count), x.dtype)
    attributes = {"axis": 1, "epsilon": epsilon}
    outputs = builder.nodes("LayerNormalization", [_to_rows(builder, x), ones], attributes, outputs=3)
    return Rows(shape, *outputs)


def affine(builder: GraphBuilder, rows: Rows, scale: ir.Value, bias: ir.Value) -> ir.Value:
    """Return normalised data, whose rows are views, times `scale` plus `bias`, [C] both: in their shape and type."""
    zeros = builder.constant(np.zeros(rows.channels))
    return affine_of_data(builder, builder.reshape(rows.values, rows.shape), scale, bias, zeros)


def _slope(builder: GraphBuilder, rows: Rows, scale: ir.Value) -> ir.Value:
    """Return `scale` over the deviation: [C, 1], in float32."""
    return builder.mul(builder.reshape(builder.high(scale), [rows.channels, 1]), rows.inverse)


def gradients(
    builder: GraphBuilder, g: ir.Value, data: Rows, scale: ir.Value, wanted: Collection[int]
) -> dict[int, ir.Value]:
    """Return the gradients of data (0), scale (1) and bias (2), as far as they are wanted.

    That of the data has their shape and type, the others are [C] in float32.

    Args:
        builder: where to write them.
        g: the gradient of the result, in the data's shape and type.
        data: the data.
        scale: [C].
        wanted: which ones.
    """
    gradient = normalise(builder, g, _TINY)
    results: dict[int, ir.Value] = {}
    if {0, 1} & set(wanted):
        against = _minus_product(builder, data, gradient)
    if 0 in wanted:
        results[0] = _of_data(builder, data, gradient, scale, against)
    if 1 in wanted:
        results[1] = builder.mul(builder.div(against, gradient.inverse), -float(data.count))
    if 2 in wanted:
        results[2] = builder.mul(gradient.mean, float(data.count))
    return {index: builder.reshape(value, [-1]) if index else value for index, value in results.items()}


def _minus_product(builder: GraphBuilder, data: Rows, gradient: Rows) -> ir.Value:
    """Return minus the mean product of the two in each row: [C, 1], in float32."""
    sides = [builder.reshape(rows.values, [rows.channels, 1, rows.count]) for rows in (gradient, data)]
    attributes = {"transB": 1, "alpha": -1.0 / data.count}
    product = contrib(builder, "FusedMatMul", sides, attributes, data.values.dtype, [data.channels, 1, 1])
    return builder.reshape(builder.high(product), [data.channels, 1])


def _of_data(builder: GraphBuilder, data: Rows, gradient: Rows, scale: ir.Value, against: ir.Value) -> ir.Value:
    gradient_factor = builder.div(_slope(builder, data, scale), gradient.inverse)
    data_factor = builder.reshape(builder.mul(gradient_factor, against), [data.channels, 1, 1])
    streams = builder.reshape(data.values, [data.channels, 1, data.count])
    operands = [streams, gradient.values, gradient_factor, data_factor]
    mixed = contrib(builder, "HyperConnectionPostMix", operands, {}, streams.dtype, shape_of(streams))
    return _from_rows(builder, mixed, data.shape)


def _to_rows(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return [N, C, ...] as [C, n]: as a view if there is one sample or channel."""
    n, c, *rest = shape_of(x)
    if n != 1 and c != 1:
        x = builder.transpose(x, [1, 0, *range(2, 2 + len(rest))])
    return builder.reshape(x, [c, n * math.prod(rest)])


def _from_rows(builder: GraphBuilder, rows: ir.Value, shape: Sequence[int]) -> ir.Value:
    n, c, *rest = shape
    if n == 1 or c == 1:
        return builder.reshape(rows, shape)
    return builder.transpose(builder.reshape(rows, [c, n, *rest]), [1, 0, *range(2, 2 + len(rest))])
