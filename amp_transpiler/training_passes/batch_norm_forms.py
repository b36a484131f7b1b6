"""Chooses how BatchNormalization in training is computed: by the price list, for a shape and a type; all sizes known.

Forms differ in what they are fast at. Statistics by rows of whole channels normalise the data on the way, and copy them
where samples lie one after the other; by rows as the data lie they copy nothing, but few short rows are slow and more
vectors are computed with. The gradient by rows needs data that were normalised by rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.training_passes import batch_norm_rows, batch_norm_views
from amp_transpiler.training_passes.batch_norm_views import Batch
from amp_transpiler.training_passes.form_prices import seconds_of_form

__all__ = ["BatchNormForm", "NormalizedBatch", "cheapest_form"]

_LONGEST = 4096  # numbers of a row that one block of threads takes
_SMALL = 1 << 18  # numbers, up to which the form with the fewest kernels is the fastest: nothing is priced
_EPSILON = 1e-5  # any: no kernel is slower for it


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

    def gradients(
        self, builder: GraphBuilder, g: ir.Value, scale: ir.Value, wanted: Collection[int]
    ) -> dict[int, ir.Value]:
        """Return the gradients of data (0), scale (1) and bias (2), as far as they are wanted: see both forms."""
        if self.form.gradient_pieces:
            pieces, by_matrices = self.form.gradient_pieces, self.form.by_matrices
            return batch_norm_views.gradients(builder, g, self.batch, scale, wanted, pieces, by_matrices=by_matrices)
        assert self.rows is not None, "the gradient by rows reads normalised rows"
        return batch_norm_rows.gradients(builder, g, self.rows, scale, wanted)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchNormForm:
    """How a BatchNormalization in training is computed.

    Attributes:
        pieces: rows that make up a sample's channel, for the statistics; 0 for rows of whole channels.
        gradient_pieces: the same for the gradients.
        by_matrices: whether the gradient of the scale comes from products of matrices, not of rows.
    """

    pieces: int
    gradient_pieces: int
    by_matrices: bool = False

    def normalise(self, builder: GraphBuilder, x: ir.Value, epsilon: float) -> NormalizedBatch:
        """Write the statistics of `x`, with `epsilon` added to the variance."""
        if self.pieces:
            return NormalizedBatch(self, batch_norm_views.statistics(builder, x, epsilon, self.pieces), None)
        rows = batch_norm_rows.normalise(builder, x, epsilon)
        return NormalizedBatch(self, Batch(x, rows.mean, rows.inverse), rows)


@functools.lru_cache(maxsize=1024)
def cheapest_form(shape: tuple[int, ...], dtype: ir.DataType, opset: int) -> BatchNormForm:
    """Return the form that takes the least time, forward and backward, by the price list."""
    if math.prod(shape) <= _SMALL:
        return BatchNormForm(0, 0)
    forms = list(_forms(shape, dtype))
    forward = {form.pieces: form for form in forms}
    backward = {dataclasses.replace(form, pieces=0): form for form in forms}
    forward_seconds = {pieces: _forward(form, shape, dtype, opset) for pieces, form in forward.items()}
    backward_seconds = {part: _backward(form, shape, dtype, opset) for part, form in backward.items()}
    parts = (dataclasses.replace(form, pieces=0) for form in forms)
    times = [forward_seconds[form.pieces] + backward_seconds[part] for form, part in zip(forms, parts, strict=True)]
    return forms[times.index(min(times))]


def _forms(shape: tuple[int, ...], dtype: ir.DataType) -> Iterator[BatchNormForm]:
    """Yield the forms; the first of equal ones is the better."""
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


def _forward(form: BatchNormForm, shape: tuple[int, ...], dtype: ir.DataType, opset: int) -> float:
    """Return the seconds of the statistics and of the result."""

    def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        x, scale, bias = inputs
        form.normalise(builder, x, _EPSILON).affine(builder, scale, bias)

    vector = (ir.DataType.FLOAT, shape[1:2])
    return seconds_of_form(write, [(dtype, shape), vector, vector], opset)


def _backward(form: BatchNormForm, shape: tuple[int, ...], dtype: ir.DataType, opset: int) -> float:
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
