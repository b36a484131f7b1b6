"""Chooses how BatchNormalization in training is computed: by the price list, for a shape and a type; all sizes known.

Forms differ in what they are fast at. Statistics by rows of whole channels normalise the data on the way, and copy them
where samples lie one after the other; by rows as the data lie they copy nothing, but few short rows are slow and more
vectors are computed with. The gradient by rows needs data that were normalised by rows. Behind a convolution, which
reads the gradient of its result in products, a factor a channel is applied to the weight and to its gradient, or all
gradients are computed from moments of what is convolved.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, TypeAlias

import onnx_ir as ir

from amp_transpiler.cost.products import ALIGNED
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.training_passes import batch_norm_rows, batch_norm_views
from amp_transpiler.training_passes.batch_norm_views import Batch
from amp_transpiler.training_passes.contrib_node import contrib
from amp_transpiler.training_passes.form_prices import Tensor, seconds_of_form
from amp_transpiler.training_passes.pointwise_moments import LayerGradients, layer_gradients

__all__ = ["BatchNormForm", "ConvolutionSizes", "NormalizedBatch", "cheapest_form"]

Way: TypeAlias = Literal["apart", "slope", "moments"]
_LONGEST = 4096  # numbers of a row that one block of threads takes
_SMALL = 1 << 18  # numbers, up to which the form with the fewest kernels is the fastest: nothing is priced
_EPSILON = 1e-5  # any: no kernel is slower for it


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
    """

    form: BatchNormForm
    batch: Batch
    rows: batch_norm_rows.Rows | None

    def affine(self, builder: GraphBuilder, scale: ir.Value, bias: ir.Value) -> ir.Value:
        """Return the normalised data times `scale` plus `bias`, which are [C]: in their shape and type."""
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

    def layer_gradients(
        self, builder: GraphBuilder, g: ir.Value, scale: ir.Value, data: ir.Value, weight: ir.Value, *, with_data: bool
    ) -> LayerGradients:
        """Return all gradients from moments of the data that are convolved."""
        whole = _is_whole(data, math.prod(int(size) for size in list(data.shape or ())[2:]))
        return layer_gradients(builder, g, data, weight, self.batch, scale, with_data=with_data, whole=whole)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchNormForm:
    """How a BatchNormalization in training is computed.

    Attributes:
        pieces: rows that make up a sample's channel, for the statistics; 0 for rows of whole channels.
        gradient_pieces: the same for the gradients.
        by_matrices: whether the gradient of the scale comes from products of matrices, not of rows.
        way: to the gradients of a convolution in front: "apart" from them; with the "slope" of the gradient of the data
            applied to the weight and to its gradient; or from "moments" of what is convolved.
    """

    pieces: int
    gradient_pieces: int
    by_matrices: bool = False
    way: Way = "apart"

    def normalise(self, builder: GraphBuilder, x: ir.Value, epsilon: float) -> NormalizedBatch:
        """Write the statistics of `x`, with `epsilon` added to the variance."""
        if self.pieces:
            return NormalizedBatch(self, batch_norm_views.statistics(builder, x, epsilon, self.pieces), None)
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
    forward = {form.pieces: form for form in forms}
    backward = {dataclasses.replace(form, pieces=0): form for form in forms}
    forward_seconds = {pieces: _forward(form, shape, dtype, opset) for pieces, form in forward.items()}
    backward_seconds = {part: _backward(form, shape, dtype, opset, convolution) for part, form in backward.items()}
    parts = (dataclasses.replace(form, pieces=0) for form in forms)
    times = [forward_seconds[form.pieces] + backward_seconds[part] for form, part in zip(forms, parts, strict=True)]
    return forms[times.index(min(times))]


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
            yield from (BatchNormForm(forward, 1, way="moments") for forward in (0, pieces))


def _has_moments(convolution: ConvolutionSizes, dtype: ir.DataType) -> bool:
    """Whether all gradients may be computed from moments: CUDA has no convolution with data of bfloat16 turned round."""
    return convolution.is_pointwise and convolution.with_weight and dtype != ir.DataType.BFLOAT16


def _is_whole(data: ir.Value, places: int) -> bool:
    """Whether one product sums over all samples: those of rows that are not aligned are slow."""
    return bool(places % ALIGNED["float16" if data.dtype in LOW_DTYPES else "float32"])


def _pieces(length: int) -> int:
    """Return the fewest equal pieces of a row that one block of threads takes each; 1 if there are none."""
    least = math.ceil(length / _LONGEST)
    return next((pieces for pieces in range(least, 2 * least) if length % pieces == 0), 1)


def _forward(form: BatchNormForm, shape: tuple[int, ...], dtype: ir.DataType, opset: int) -> float:
    """Return the seconds of the statistics and of the result."""

    def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        x, scale, bias = inputs
        form.normalise(builder, x, _EPSILON).affine(builder, scale, bias)

    vector = (ir.DataType.FLOAT, shape[1:2])
    return seconds_of_form(write, [(dtype, shape), vector, vector], opset)


def _backward(
    form: BatchNormForm, shape: tuple[int, ...], dtype: ir.DataType, opset: int, convolution: ConvolutionSizes | None
) -> float:
    """Return the seconds of all gradients; with those of a convolution as far as forms differ in them."""
    channels = shape[1]

    def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        x, g, rows, scale, mean, inverse, *layer = inputs
        normalized = batch_norm_rows.Rows(shape, rows, mean, inverse)
        batch = NormalizedBatch(form, Batch(x, mean, inverse), normalized)
        if convolution is not None and form.way == "moments":
            data, weight, _ = layer
            batch.layer_gradients(builder, g, scale, data, weight, with_data=convolution.with_data)
            return
        to_data = batch.gradients(builder, g, scale, (0, 1, 2))[0]
        if convolution is not None:
            _write_gradients(builder, form, convolution, to_data, layer)

    data, vector, column = (dtype, shape), (ir.DataType.FLOAT, (channels,)), (ir.DataType.FLOAT, (channels, 1))
    rows = (dtype, (channels, math.prod(shape) // channels))
    layer: list[Tensor] = []
    if convolution is not None:
        factors = (channels, *[1] * (len(convolution.weight) - 1))
        layer = [(dtype, sizes) for sizes in (convolution.data, convolution.weight, factors)]
    return seconds_of_form(write, [data, data, rows, vector, column, column, *layer], opset)


def _write_gradients(
    builder: GraphBuilder,
    form: BatchNormForm,
    convolution: ConvolutionSizes,
    g: ir.Value,
    layer: Sequence[ir.Value],
) -> None:
    """Write the gradients of a convolution, or of one with taps only what the slope adds to them."""
    data, weight, column = layer
    rows, channels = convolution.weight[:2]
    if form.way == "slope":
        for _ in range(convolution.with_data + convolution.with_weight):
            builder.mul(weight, column)
    if not convolution.is_pointwise:
        return
    if convolution.with_data:
        builder.op("ConvTranspose", [g, weight])
    if convolution.with_weight:
        samples, places = convolution.data[0], convolution.places
        sides = [builder.reshape(g, [samples, rows, places]), builder.reshape(data, [samples, channels, places])]
        count = samples
        if _is_whole(data, places) or samples == 1:
            sides = [builder.transpose(side, [1, 0, 2]) if samples > 1 else side for side in sides]
            sides = [builder.reshape(side, [size, -1]) for side, size in zip(sides, (rows, channels), strict=True)]
            count = 1
        shape = [rows, channels] if count == 1 else [count, rows, channels]
        product = contrib(builder, "FusedMatMul", sides, {"transB": 1}, g.dtype, shape)
        if count > 1:
            builder.reduce("ReduceSum", product, [0])
