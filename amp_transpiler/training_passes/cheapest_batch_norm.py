"""Chooses how BatchNormalization in training is computed: by the price list, for a shape and a type; sizes known."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.training_passes import batch_norm_rows
from amp_transpiler.training_passes.batch_norm_forms import BatchNormForm, ConvolutionSizes, NormalizedBatch
from amp_transpiler.training_passes.batch_norm_views import Batch
from amp_transpiler.training_passes.pointwise_moments import Moments, summed_products

__all__ = ["cheapest_form"]

Shape: TypeAlias = tuple[int, ...]
_LONGEST = 4096  # numbers of a row that one block of threads takes
_SMALL = 1 << 18  # numbers, up to which the form with the fewest kernels is the fastest: nothing is priced
_EPSILON = 1e-5  # any: no kernel is slower for it
_CONV_OF_BFLOAT16 = 22  # the opset from which there is one
_WORTH = 1e-5  # seconds: what a form that touches the nodes of a convolution must save


@functools.lru_cache(maxsize=1024)
def cheapest_form(
    shape: Shape, dtype: ir.DataType, opset: int, convolution: ConvolutionSizes | None = None
) -> BatchNormForm:
    """Return the form that takes the least time, forward and backward, by the price list.

    Args:
        shape: of the data.
        dtype: theirs.
        opset: of ONNX's own domain.
        convolution: what computes the data, if its gradients alone read that of the data.
    """
    if math.prod(shape) <= _SMALL:
        return BatchNormForm(0, 0)
    facts = shape, dtype, opset
    apart = min(_forms(shape, dtype), key=lambda form: _seconds(form, *facts))
    if convolution is None:
        return apart
    best, least = apart, _seconds(apart, *facts) - _WORTH
    views = min(
        (form for form in _forms(shape, dtype) if form.gradient_pieces), key=lambda form: _seconds(form, *facts)
    )
    slope = dataclasses.replace(views, way="slope")
    seconds = _seconds(slope, *facts) + _slope_of_weight(convolution, dtype, opset)
    if seconds < least:
        best, least = slope, seconds
    rows, channels = convolution.weight[:2]
    has_conv = dtype != ir.DataType.BFLOAT16 or opset >= _CONV_OF_BFLOAT16
    if convolution.is_pointwise and convolution.with_weight and channels <= rows and has_conv:
        least += _seconds_of_convolution(convolution, dtype, opset)
        if _seconds_of_moments(convolution, dtype, opset) < least:
            best = BatchNormForm(1, 1, way="moments")
    return best


def _forms(shape: Shape, dtype: ir.DataType) -> Iterator[BatchNormForm]:
    """Yield the forms apart from a convolution; the first of equal ones is the better."""
    yield BatchNormForm(0, 0)
    length = math.prod(shape[2:])
    # Not in float32, where the product would be one in TF32; and results are no larger than the data.
    ways = (False, True) if dtype in LOW_DTYPES and shape[1] <= length else (False,)
    for pieces in sorted({1, _pieces(length)}):
        yield from (BatchNormForm(forward, pieces, way) for way in ways for forward in (0, pieces))


def _pieces(length: int) -> int:
    """Return the fewest equal pieces of a row that one block of threads takes each; 1 if there are none."""
    least = math.ceil(length / _LONGEST)
    return next((pieces for pieces in range(least, 2 * least) if length % pieces == 0), 1)


def _seconds(form: BatchNormForm, shape: Shape, dtype: ir.DataType, opset: int) -> float:
    """Return the seconds of a form, forward and backward."""
    backward = dataclasses.replace(form, pieces=0)
    return _forward(form.pieces, shape, dtype, opset) + _backward(backward, shape, dtype, opset)


@functools.lru_cache(maxsize=1024)
def _forward(pieces: int, shape: Shape, dtype: ir.DataType, opset: int) -> float:
    """Return the seconds of the statistics and of the result."""

    def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        x, scale, bias = inputs
        BatchNormForm(pieces, 1).normalise(builder, x, _EPSILON).affine(builder, scale, bias)

    vector = (ir.DataType.FLOAT, shape[1:2])
    return seconds_of_form(write, [(dtype, shape), vector, vector], opset)


@functools.lru_cache(maxsize=1024)
def _backward(form: BatchNormForm, shape: Shape, dtype: ir.DataType, opset: int) -> float:
    """Return the seconds of all gradients."""
    channels = shape[1]

    def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        x, g, rows, scale, mean, inverse = inputs
        normalized = batch_norm_rows.Rows(shape, rows, mean, inverse)
        batch = NormalizedBatch(form, Batch(x, mean, inverse), normalized)
        batch.gradients(builder, g, scale, (0, 1, 2))

    data, vector, column = (dtype, shape), (ir.DataType.FLOAT, (channels,)), (ir.DataType.FLOAT, (channels, 1))
    rows = (dtype, (channels, math.prod(shape) // channels))
    return seconds_of_form(write, [data, data, rows, vector, column, column], opset)


@functools.lru_cache(maxsize=1024)
def _slope_of_weight(convolution: ConvolutionSizes, dtype: ir.DataType, opset: int) -> float:
    """Return the seconds of applying a slope to the weight of a convolution and to its gradient."""
    rows, *rest = convolution.weight

    def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        weight, slope = inputs
        column = builder.reshape(builder.cast(slope, dtype), [rows, *[1] * len(rest)])
        for _ in range(convolution.with_data + convolution.with_weight):
            builder.mul(weight, column)

    return seconds_of_form(write, [(dtype, convolution.weight), (ir.DataType.FLOAT, (rows,))], opset)


@functools.lru_cache(maxsize=1024)
def _seconds_of_convolution(convolution: ConvolutionSizes, dtype: ir.DataType, opset: int) -> float:
    """Return the seconds of a pointwise convolution and its gradients."""
    samples, channels, *plane = convolution.data
    rows, places = convolution.weight[0], math.prod(plane)

    def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        data, weight, g = inputs
        builder.op("Conv", [data, weight])
        if convolution.with_data:
            builder.op("ConvTranspose", [g, weight])
        gradient = builder.reshape(g, [samples, rows, places])
        unfolded = builder.reshape(data, [samples, channels, places])
        summed_products(builder, gradient, unfolded, 1.0)

    shapes = (convolution.data, convolution.weight, (samples, rows, *plane))
    return seconds_of_form(write, [(dtype, shape) for shape in shapes], opset)


@functools.lru_cache(maxsize=1024)
def _seconds_of_moments(convolution: ConvolutionSizes, dtype: ir.DataType, opset: int) -> float:
    """Return the seconds of a pointwise convolution and a BatchNormalization together, and of all gradients."""
    samples, _, *plane = convolution.data
    rows = convolution.weight[0]

    def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        data, weight, g, scale, bias = inputs
        moments = Moments.of(builder, data, weight, _EPSILON)
        moments.affine(builder, scale, bias)
        moments.gradients(builder, g, scale, with_data=convolution.with_data)

    shapes = (convolution.data, convolution.weight, (samples, rows, *plane))
    vector = (ir.DataType.FLOAT, (rows,))
    return seconds_of_form(write, [*((dtype, shape) for shape in shapes), vector, vector], opset)
