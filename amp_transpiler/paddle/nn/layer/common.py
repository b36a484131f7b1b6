"""Offers linear, embedding, dropout, resizing and other common layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import axis_of, builder_of, wrap
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.paddle.nn.layer.function_layer import FunctionLayer
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.program.program import Variable

__all__ = [
    "AlphaDropout",
    "Bilinear",
    "ChannelShuffle",
    "CosineSimilarity",
    "Dropout",
    "Dropout2D",
    "Dropout3D",
    "Embedding",
    "FeatureAlphaDropout",
    "Flatten",
    "Fold",
    "Identity",
    "Linear",
    "PairwiseDistance",
    "PixelShuffle",
    "PixelUnshuffle",
    "Unflatten",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2D",
    "UpsamplingNearest2D",
]


class Linear(Layer):
    """Computes `x @ weight + bias`.

    Args:
        in_features: the size of the last axis of `x`.
        out_features: that of the result.
        weight_attr: of the weight `linear_0.w_0`, [in, out]; starts with Xavier's uniform values.
        bias_attr: of the bias `linear_0.b_0`, [out]; starts at 0; False for no bias.
        name: Paddle's, no effect.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        del name
        super().__init__()
        self.weight = self._weight([in_features, out_features], weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)

    def forward(self, x: Variable) -> Variable:
        """Return the product and sum."""
        return functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"in_features={self.weight.shape[0]}, out_features={self.weight.shape[1]}"


class Embedding(Layer):
    """Looks up rows of a table by their numbers.

    Args:
        num_embeddings: rows of the table.
        embedding_dim: its columns.
        padding_idx: a row that reads as zeros and gets no gradient; a negative number counts from the last row.
        max_norm: rows that are longer read as rows of this length. A bool here is `sparse`, which came fourth before
            Paddle 3.
        norm_type: the `p` of the length.
        sparse: no effect: gradients are dense.
        scale_grad_by_freq: whether the gradient of a row is divided by how often the input names it.
        weight_attr: of the table `embedding_0.w_0`; starts with Xavier's uniform values.
        name: Paddle's, no effect.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        sparse: bool = False,
        scale_grad_by_freq: bool = False,
        weight_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        del name, sparse
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise OptionError(f"Embedding: padding_idx {padding_idx} is no row of a table of {num_embeddings}")
        self._padding_idx = padding_idx
        self._settings: dict[str, Any] = {
            "max_norm": max_norm,
            "norm_type": norm_type,
            "scale_grad_by_freq": scale_grad_by_freq,
        }
        self.weight = self._weight([num_embeddings, embedding_dim], weight_attr)

    def forward(self, x: Variable) -> Variable:
        """Return the rows whose numbers are `x`, int64 or int32."""
        return functional.embedding(x, self.weight, self._padding_idx, **self._settings)

    def extra_repr(self) -> str:
        """Return the size of the table."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


class Bilinear(Layer):
    """Computes `x1 @ weight[i] @ x2 + bias[i]` for each feature of the result.

    Args:
        in1_features: the size of the last axis of the first input.
        in2_features: that of the second.
        out_features: that of the result.
        weight_attr: of the weight `bilinear_0.w_0`, [out, in1, in2].
        bias_attr: of the bias `bilinear_0.b_0`, [1, out]; False for none.
        name: Paddle's, no effect.
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        del name
        super().__init__()
        self.weight = self._weight([out_features, in1_features, in2_features], weight_attr)
        self.bias = self.create_parameter([1, out_features], bias_attr, is_bias=True)

    def forward(self, x1: Variable, x2: Variable) -> Variable:
        """Return the form of [batch, in1] and [batch, in2]: [batch, out]."""
        b = builder_of(x1, x2, self.weight)
        value = b.op("Einsum", [x1.value, self.weight.value, x2.value], {"equation": "bi,oij,bj->bo"})
        return wrap(x1, value if self.bias is None else b.add(value, self.bias.value))


class Identity(Layer):
    """Returns its input; arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        super().__init__()

    def forward(self, x: Variable) -> Variable:
        """Return `x` itself."""
        return x


class Flatten(Layer):
    """Joins the axes from one to another into one.

    Args:
        start_axis: the first axis.
        stop_axis: the last one.
    """

    def __init__(self, start_axis: int = 1, stop_axis: int = -1) -> None:
        super().__init__()
        self._ends = start_axis, stop_axis

    def forward(self, x: Variable) -> Variable:
        """Return `x` with these axes flattened.

        Raises:
            InputError: there are no such axes, or the sizes behind them are not known.
        """
        first, last = (axis_of(x, axis) for axis in self._ends)
        behind = x.shape[last + 1 :]
        if first > last or any(size < 0 for size in behind):
            raise InputError(f"Flatten: axes {first} to {last} of {x!r} cannot be made one: known sizes must follow")
        return wrap(x, builder_of(x).reshape(x.value, [*[0] * first, -1, *behind]))


class Unflatten(Layer):
    """Splits an axis into several.

    Args:
        axis: the axis.
        shape: the sizes that it is split into; one may be -1.
        name: Paddle's, no effect.
    """

    def __init__(self, axis: int, shape: Sequence[int], name: str | None = None) -> None:
        del name
        super().__init__()
        self._axis = axis
        self._sizes = [int(size) for size in shape]

    def forward(self, x: Variable) -> Variable:
        """Return `x` with the axis split.

        Raises:
            InputError: the sizes do not make up the axis, or are not known behind it.
        """
        axis = axis_of(x, self._axis)
        size, product = x.shape[axis], math.prod(s for s in self._sizes if s >= 0)
        if size >= 0 and (size % product if -1 in self._sizes else size != product):
            raise InputError(f"Unflatten: axis {axis} of {x!r} cannot be split into {self._sizes}")
        behind = x.shape[axis + 1 :]
        if any(s < 0 for s in behind):
            raise InputError(f"Unflatten: the sizes of {x!r} behind axis {axis} must be known")
        return wrap(x, builder_of(x).reshape(x.value, [*[0] * axis, *self._sizes, *behind]))


class Dropout(FunctionLayer):
    """Sets elements to 0 at random: `functional.dropout`. Built with `eval` it does nothing."""

    function = "dropout"


class Dropout2D(FunctionLayer):
    """Sets whole channels of images to 0 at random."""

    function = "dropout2d"


class Dropout3D(FunctionLayer):
    """Sets whole channels of volumes to 0 at random."""

    function = "dropout3d"


class AlphaDropout(FunctionLayer):
    """Sets elements to SELU's lower bound at random, so that mean and variance stay."""

    function = "alpha_dropout"


class FeatureAlphaDropout(FunctionLayer):
    """Sets whole channels to SELU's lower bound at random, so that mean and variance stay."""

    function = "feature_alpha_dropout"


class Upsample(FunctionLayer):
    """Resizes images: `functional.interpolate`."""

    function = "interpolate"
    order = ("size", "scale_factor", "mode", "align_corners", "align_mode", "data_format")


class UpsamplingNearest2D(FunctionLayer):
    """Resizes images by repeating the nearest pixel."""

    function = "interpolate"
    order = ("size", "scale_factor", "data_format")
    fixed: ClassVar[dict[str, Any]] = {"mode": "nearest"}


class UpsamplingBilinear2D(FunctionLayer):
    """Resizes images by bilinear interpolation, with corners that stay where they are."""

    function = "interpolate"
    order = ("size", "scale_factor", "data_format")
    fixed: ClassVar[dict[str, Any]] = {"mode": "bilinear", "align_corners": True}


class CosineSimilarity(FunctionLayer):
    """Computes the cosine of the angle between two tensors along an axis."""

    function = "cosine_similarity"
    tensors = 2


class PairwiseDistance(FunctionLayer):
    """Computes the norm of the difference of rows."""

    function = "pairwise_distance"
    tensors = 2


class Unfold(FunctionLayer):
    """Makes columns of the windows of an image."""

    function = "unfold"
    order = ("kernel_sizes", "dilations", "paddings", "strides")


class Fold(FunctionLayer):
    """Adds columns up as windows of an image."""

    function = "fold"
    order = ("output_sizes", "kernel_sizes", "dilations", "paddings", "strides")


class PixelShuffle(FunctionLayer):
    """Turns channels into pixels."""

    function = "pixel_shuffle"


class PixelUnshuffle(FunctionLayer):
    """Turns pixels into channels."""

    function = "pixel_unshuffle"


class ChannelShuffle(FunctionLayer):
    """Interleaves the channels of groups."""

    function = "channel_shuffle"


check_arguments(globals(), __all__)
