"""Multiplies each channel of data by a number and adds another, by one kernel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, shape_of

__all__ = ["affine", "times"]

_EPSILON = 1e-5  # that a kernel adds to a variance


def affine(
    builder: GraphBuilder, x: ir.Value, scale: ir.Value, bias: ir.Value, mean: ir.Value, deviation: float = 1.0
) -> ir.Value:
    """Return `(x - mean) / deviation * scale + bias`, by one kernel, whose factors have the type of the data.

    CUDA has none for bfloat16, of which the range is large enough for any factor: a product and a sum compute it.
    """
    if x.dtype == ir.DataType.BFLOAT16:
        return _affine_in_bfloat16(builder, x, scale, bias, mean, deviation)
    variance = np.full(shape_of(x)[1], deviation**2 - _EPSILON)
    inputs = [builder.cast(value, x.dtype) for value in (scale, bias, mean)]
    inputs.append(builder.constant(variance, x.dtype))
    return builder.op("BatchNormalization", [x, *inputs], {"epsilon": _EPSILON})


def _affine_in_bfloat16(
    builder: GraphBuilder, x: ir.Value, scale: ir.Value, bias: ir.Value, mean: ir.Value, deviation: float
) -> ir.Value:
    """Return what `affine` does; the mean is taken off with the factor as it is rounded."""
    factor = builder.cast(times(builder, scale, 1 / deviation), x.dtype)
    shift = builder.sub(builder.high(bias), builder.mul(builder.high(factor), mean))
    column = [shape_of(x)[1], *[1] * (len(shape_of(x)) - 2)]
    product = builder.mul(x, builder.reshape(factor, column))
    return builder.add(product, builder.reshape(builder.cast(shift, x.dtype), column))


def times(builder: GraphBuilder, value: ir.Value, factor: float) -> ir.Value:
    """Return a value times a number: the value itself for 1."""
    return value if factor == 1 else builder.mul(value, factor)
