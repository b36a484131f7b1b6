"""Lists how BatchNormalization in training can be computed, where all sizes are known.

Forms differ in what they are fast at. Statistics by rows of whole channels normalise the data on the way, and copy them
where samples lie one after the other; by rows as the data lie they copy nothing, but few short rows are slow and more
vectors are computed with. The gradient by rows needs data that were normalised by rows. Behind a convolution, which
reads the gradient of its result in products, a factor a channel is applied to the weight and to its gradient, or both
layers are computed together, from moments of what is convolved.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.training_passes import batch_norm_rows, batch_norm_views
from amp_transpiler.training_passes.batch_norm_views import Batch
from amp_transpiler.training_passes.pointwise_moments import Moments

__all__ = ["BatchNormForm", "ConvolutionSizes", "NormalizedBatch"]

Way: TypeAlias = Literal["apart", "slope", "moments"]


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
            data, weight = operands
            moments = Moments.of(builder, data, weight, epsilon)
            return NormalizedBatch(self, Batch(x, moments.mean, moments.inverse), moments=moments)
        if self.pieces:
            return NormalizedBatch(self, batch_norm_views.statistics(builder, x, epsilon, self.pieces))
        rows = batch_norm_rows.normalise(builder, x, epsilon)
        return NormalizedBatch(self, Batch(x, rows.mean, rows.inverse), rows)
