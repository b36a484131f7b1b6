"""Chooses how BatchNormalization in training is computed: by the price list, for a shape and a type; all sizes known.

Forms differ in what they are fast at. Statistics by rows of whole channels normalise the data on the way, and copy them
where samples lie one after the other; by rows as the data lie they copy nothing, but few short rows are slow and more
vectors are computed with. The gradient by rows needs data that were normalised by rows. Behind a convolution, which
reads the gradient of its result in products, a factor a channel is applied to the weight and to its gradient, or both
layers are computed together, from moments of what is convolved.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.training_passes import batch_norm_rows, batch_norm_views
from amp_transpiler.training_passes.batch_norm_views import Batch
from amp_transpiler.training_passes.form_prices import Tensor, seconds_of_form
from amp_transpiler.training_passes.pointwise_moments import ONES, Moments, summed_products

__all__ = ["BatchNormForm", "ConvolutionSizes", "NormalizedBatch", "cheapest_form"]

Way: TypeAlias = Literal["apart", "slope", "moments"]
_LONGEST = 4096  # numbers of a row that one block of threads takes
_SMALL = 1 << 18  # numbers, up to which the form with the fewest kernels is the fastest: nothing is priced
_EPSILON = 1e-5  # any: no kernel is slower for it
_OPERANDS = 7  # place of a convolution's among the inputs of a form that is priced


@dataclasses.dataclass(frozen=True, slots=True)
class ConvolutionSizes:
    """The sizes of a convolution in front of a BatchNormalization, and which gradients read that of its result.

    Attributes:
        data, weight: shapes.
        is_pointwise: whether it multiplies the data by the weight at each place.
        with_data, with_weight: whether these gradients are wanted.
    """

    data: tuple[int, ...]
    weight: tuple[int, ...]
    is_pointwise: bool
    with_data: bool
    with_weight: bool

    @property
    def places(self) -> int:
        """The number of places of a sample."""
        return math.prod(self.data[2:])


@dataclasses.dataclass(frozen=True, slots=True)
class NormalizedBatch:
    """A BatchNormalization whose statistics are written.

    Attributes:
        form: how it is computed.
        batch: the data, with their statistics.
        rows: the data normalised by rows of whole channels; None if they are not.
        moments: what everything is computed from together with a convolution; None if it is not.
    """

    form: BatchNormForm
    batch: Batch
    rows: batch_norm_rows.Rows | None = None
    moments: Moments | None = None

    def affine(self, builder: GraphBuilder, scale: ir.Value, bias: ir.Value) -> ir.Value:
        """Return the normalised data times `scale` plus `bias`, which are [C]: in their shape and type."""
        if self.moments is not None:
            return self.moments.affine(builder, scale, bias)
        if self.rows is not None and self.rows.are_views:
            return batch_norm_rows.affine(builder, self.rows, scale, bias)
        return batch_norm_views.scaled(builder, self.batch, scale, bias)

    def slope(self, builder: GraphBuilder, scale: ir.Value) -> ir.Value:
        """Return what the gradient of the data is short of where `form.way` is "slope": [C], in float32."""
        inverse = builder.reshape(self.batch.inverse, [self.batch.channels])
        return builder.mul(builder.high(scale), inverse)

    def gradients(
        self, builder: GraphBuilder, g: ir.Value, scale: ir.Value, wanted: Collection[int]
    ) -> dict[int, ir.Value]:
        """Return the gradients of data (0), scale (1) and bias (2), as far as they are wanted: see both forms."""
        form = self.form
        if form.gradient_pieces:
            return batch_norm_views.gradients(
                builder,
                g,
                self.batch,
                scale,
                wanted,
                form.gradient_pieces,
                by_matrices=form.by_matrices,
                over_slope=form.way == "slope",
            )
        assert self.rows is not None, "the gradient by rows reads normalised rows"
        return batch_norm_rows.gradients(builder, g, self.rows, scale, wanted)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchNormForm:
    """How a BatchNormalization in training is computed.

    Attributes:
        pieces: rows that make up a sample's channel, for the statistics; 0 for rows of whole channels.
        gradient_pieces: the same for the gradients.
        by_matrices: whether the gradient of the scale comes from products of matrices, not of rows.
        way: "apart" from a convolution in front; with the "slope" of the gradient of the data applied to the weight and
            to its gradient; or both together, from "moments" of what is convolved.
    """

    pieces: int
    gradient_pieces: int
    by_matrices: bool = False
    way: Way = "apart"

    def normalise(
        self, builder: GraphBuilder, x: ir.Value, epsilon: float, operands: Sequence[ir.Value] = ()
    ) -> NormalizedBatch:
        """Write the statistics of `x`.

        Args:
            builder: where to write them.
            x: the data.
            epsilon: added to the variance.
            operands: data and weight of the convolution that computes `x`; read for "moments".
        """
        if self.way == "moments":
            moments = Moments.of(builder, *operands, epsilon)
            return NormalizedBatch(self, Batch(x, moments.mean, moments.inverse), moments=moments)
        if self.pieces:
            return NormalizedBatch(self, batch_norm_views.statistics(builder, x, epsilon, self.pieces))
        rows = batch_norm_rows.normalise(builder, x, epsilon)
        return NormalizedBatch(self, Batch(x, rows.mean, rows.inverse), rows)


@functools.lru_cache(maxsize=1024)
def cheapest_form(
    shape: tuple[int, ...], dtype: ir.DataType, opset: int, convolution: ConvolutionSizes | None = None
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
    forms = list(_forms(shape, dtype, convolution))
    written = _Layer(shape, dtype, opset, convolution)
    return min(forms, key=written.seconds)


def _forms(shape: tuple[int, ...], dtype: ir.DataType, convolution: ConvolutionSizes | None) -> Iterator[BatchNormForm]:
    """Yield the forms; the first of equal ones is the better."""
    yield BatchNormForm(0, 0)
    length = math.prod(shape[2:])
    # Not in float32, where the product would be one in TF32; and results are no larger than the data.
    products = (False, True) if dtype in LOW_DTYPES and shape[1] <= length else (False,)
    ways: tuple[Way, ...] = ("apart",) if convolution is None or dtype == ir.DataType.BFLOAT16 else ("apart", "slope")
    for pieces in sorted({1, _pieces(length)}):
        yield from (
            BatchNormForm(forward, pieces, by_matrices, way)
            for way in ways
            for by_matrices in products
            for forward in (0, pieces)
        )
    if convolution is not None and _has_moments(convolution, dtype):
        yield BatchNormForm(1, 1, way="moments")


def _has_moments(convolution: ConvolutionSizes, dtype: ir.DataType) -> bool:
    """Whether all gradients may be computed from moments: CUDA has no convolution with data of bfloat16 turned round."""
    return convolution.is_pointwise and convolution.with_weight and dtype != ir.DataType.BFLOAT16


def _pieces(length: int) -> int:
    """Return the fewest equal pieces of a row that one block of threads takes each; 1 if there are none."""
    least = math.ceil(length / _LONGEST)
    return next((pieces for pieces in range(least, 2 * least) if length % pieces == 0), 1)


class _Layer:
    """A BatchNormalization, whose forms are priced in two parts, which forms share.

    Args:
        shape, dtype: of the data.
        opset: of ONNX's own domain.
        convolution: what computes the data.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: ir.DataType, opset: int, convolution: ConvolutionSizes | None
    ) -> None:
        self._shape, self._dtype, self._opset, self._convolution = shape, dtype, opset, convolution
        self._seconds: dict[tuple[object, ...], float] = {}

    def seconds(self, form: BatchNormForm) -> float:
        """Return the seconds of a form, forward and backward, with what of the convolution differs between forms."""
        return self._part(self._forward, form, (form.pieces, form.way == "moments")) + self._part(
            self._backward, form, (form.gradient_pieces, form.by_matrices, form.way)
        )

    def _part(
        self,
        write: Callable[[GraphBuilder, BatchNormForm, Sequence[ir.Value]], None],
        form: BatchNormForm,
        facts: tuple[object, ...],
    ) -> float:
        key = (write.__name__, *facts)
        if key not in self._seconds:
            self._seconds[key] = seconds_of_form(
                lambda builder, inputs: write(builder, form, inputs), self._inputs(), self._opset
            )
        return self._seconds[key]

    def _inputs(self) -> list[Tensor]:
        channels, dtype = self._shape[1], self._dtype
        data, vector, column = (
            (dtype, self._shape),
            (ir.DataType.FLOAT, (channels,)),
            (ir.DataType.FLOAT, (channels, 1)),
        )
        inputs = [data, vector, vector, data, (dtype, (channels, math.prod(self._shape) // channels)), column, column]
        if self._convolution is not None:
            inputs += [(dtype, sizes) for sizes in (self._convolution.data, self._convolution.weight)]
        return inputs

    def _forward(self, builder: GraphBuilder, form: BatchNormForm, inputs: Sequence[ir.Value]) -> None:
        """Write the statistics and the result."""
        x, scale, bias, *_ = inputs
        operands = inputs[_OPERANDS:]
        if self._convolution is not None and self._convolution.is_pointwise and form.way != "moments":
            x = builder.op("Conv", operands)
        form.normalise(builder, x, _EPSILON, operands).affine(builder, scale, bias)

    def _backward(self, builder: GraphBuilder, form: BatchNormForm, inputs: Sequence[ir.Value]) -> None:
        """Write all gradients."""
        x, scale, _, g, rows, mean, inverse, *operands = inputs
        if self._convolution is not None and form.way == "moments":
            _moments(builder, *operands).gradients(builder, g, scale, with_data=self._convolution.with_data)
            return
        batch = NormalizedBatch(form, Batch(x, mean, inverse), batch_norm_rows.Rows(self._shape, rows, mean, inverse))
        to_data = batch.gradients(builder, g, scale, (0, 1, 2))[0]
        if self._convolution is not None:
            _write_gradients(builder, form, self._convolution, to_data, operands)


def _moments(builder: GraphBuilder, data: ir.Value, weight: ir.Value) -> Moments:
    """Return moments as if they had been written: only their shapes and types matter."""
    samples, channels, *plane = shape_of(data)
    rows = shape_of(weight)[0]

    def value(name: str, dtype: ir.DataType | None, shape: Sequence[int]) -> ir.Value:
        assert dtype is not None
        new = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        builder.graph.inputs.append(new)
        return new

    high = ir.DataType.FLOAT
    return Moments(
        shape=(samples, channels, *plane),
        data=value("moments_data", data.dtype, [samples, channels + ONES, math.prod(plane)]),
        weight=value("moments_weight", high, [rows, channels]),
        rest=value("moments_rest", high, [1, channels]),
        turned=value("moments_turned", high, [rows, channels]),
        mean=value("moments_mean", high, [rows, 1]),
        inverse=value("moments_inverse", high, [rows, 1]),
    )


def _write_gradients(
    builder: GraphBuilder,
    form: BatchNormForm,
    convolution: ConvolutionSizes,
    g: ir.Value,
    operands: Sequence[ir.Value],
) -> None:
    """Write the gradients of a pointwise convolution, or of one with taps only what the slope adds to them."""
    data, weight = operands
    rows, channels, *taps = convolution.weight
    if form.way == "slope":
        column = builder.constant(np.ones((rows, *[1] * (len(taps) + 1))), weight.dtype)
        for _ in range(convolution.with_data + convolution.with_weight):
            builder.mul(weight, column)
    if not convolution.is_pointwise:
        return
    if convolution.with_data:
        builder.op("ConvTranspose", [g, weight])
    if convolution.with_weight:
        samples, places = convolution.data[0], convolution.places
        sides = [builder.reshape(side, [samples, size, places]) for side, size in ((g, rows), (data, channels))]
        summed_products(builder, *sides, 1.0)
