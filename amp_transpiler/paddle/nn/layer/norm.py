"""Offers normalisation as layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import axis_of, builder_of, size_at, wrap
from amp_transpiler.paddle.initial_values import Constant, Normal
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.functional.activation import activate
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.paddle.nn.layer.function_layer import FunctionLayer
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.program.program import Variable

__all__ = [
    "BatchNorm",
    "BatchNorm1D",
    "BatchNorm2D",
    "BatchNorm3D",
    "GroupNorm",
    "InstanceNorm1D",
    "InstanceNorm2D",
    "InstanceNorm3D",
    "LayerNorm",
    "LocalResponseNorm",
    "SpectralNorm",
    "SyncBatchNorm",
]


class _BatchNorm(Layer):
    """Batch normalisation with running statistics.

    Scale `.w_0` starts at 1, bias `.b_0` at 0, mean `.w_1` at 0 and variance `.w_2` at 1.

    Attributes:
        ranks: how many axes the input may have.
        layout: the layout unless another is given.

    Args:
        num_features: the number of channels.
        momentum: how much of the old running statistics stays.
        epsilon: added to the variance.
        weight_attr: of the scale; False for a scale of 1 that is not trained.
        bias_attr: of the bias; False for a bias of 0 that is not trained.
        data_format: where the channels are.
        use_global_stats: True to normalise by the running statistics in training too.
        name: Paddle's, no effect.
    """

    ranks: ClassVar[tuple[int, ...]] = ()
    layout: ClassVar[str] = "NCHW"
    stays_wide = True

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        data_format: str | None = None,
        use_global_stats: bool | None = None,
        name: str | None = None,
    ) -> None:
        del name
        super().__init__()
        self._settings: dict[str, Any] = {
            "momentum": momentum,
            "epsilon": epsilon,
            "data_format": data_format or self.layout,
            "use_global_stats": use_global_stats,
        }
        self._make(num_features, weight_attr, bias_attr, None, None)

    def _make(
        self, size: int, weight_attr: Attr, bias_attr: Attr, mean_name: str | None, variance_name: str | None
    ) -> None:
        self.weight = self.create_parameter([size], weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([size], bias_attr, is_bias=True)
        self._statistic("_mean", mean_name, size, 0.0)
        self._statistic("_variance", variance_name, size, 1.0)

    def forward(self, x: Variable) -> Variable:
        """Return `x`, normalised; in training the running statistics are updated after each run.

        Raises:
            InputError: `x` has another number of axes than such a layer takes.
        """
        if self.ranks and x.ndim not in self.ranks:
            raise InputError(f"{type(self).__name__} takes {' or '.join(map(str, self.ranks))} dimensions, got {x!r}")
        training = self.training
        return functional.batch_norm(
            x, self._mean, self._variance, self.weight, self.bias, training=training, **self._settings
        )

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"num_features={self._mean.shape[0]}, {', '.join(f'{k}={v!r}' for k, v in self._settings.items())}"


class BatchNorm1D(_BatchNorm):
    """Batch normalisation of [batch, channels] or [batch, channels, length]; see the base of `BatchNorm2D`."""

    ranks, layout = (2, 3), "NCL"

    def forward(self, x: Variable) -> Variable:
        """Return `x`, normalised."""
        if x.ndim == 2 and self._settings["data_format"] == "NCL":
            settings = {**self._settings, "data_format": "NC"}
            weights = self._mean, self._variance, self.weight, self.bias
            return functional.batch_norm(x, *weights, training=self.training, **settings)
        return super().forward(x)


class BatchNorm2D(_BatchNorm):
    """Batch normalisation of images. The arguments are described at its base."""

    ranks = (4,)


class BatchNorm3D(_BatchNorm):
    """Batch normalisation of volumes; see the base of `BatchNorm2D`."""

    ranks, layout = (5,), "NCDHW"


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation; each process normalises by the statistics of its part of a batch."""

    @classmethod
    def convert_sync_batchnorm(cls, layer: Layer) -> Layer:
        """Return the layer: batch normalisation is the same here with and without `Sync`."""
        return layer


class BatchNorm(_BatchNorm):
    """Batch normalisation with an activation, in the form of Paddle 1.

    Args:
        num_channels: the number of channels.
        act: an activation, such as `relu`.
        is_test: normalise by the running statistics.
        momentum: how much of the old running statistics stays.
        epsilon: added to the variance.
        param_attr: of the scale.
        bias_attr: of the bias.
        dtype: must be float32: scale, bias and statistics are.
        data_layout: where the channels are.
        in_place: no effect.
        moving_mean_name: the mean's name.
        moving_variance_name: the variance's name.
        do_model_average_for_mean_and_var: no effect.
        use_global_stats: normalise by the running statistics in training too.
        trainable_statistics: no effect.
    """

    def __init__(
        self,
        num_channels: int,
        act: str | None = None,
        is_test: bool = False,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        param_attr: Attr = None,
        bias_attr: Attr = None,
        dtype: Any = "float32",
        data_layout: str = "NCHW",
        in_place: bool = False,
        moving_mean_name: str | None = None,
        moving_variance_name: str | None = None,
        do_model_average_for_mean_and_var: bool = True,
        use_global_stats: bool = False,
        trainable_statistics: bool = False,
    ) -> None:
        del in_place, do_model_average_for_mean_and_var, trainable_statistics
        Layer.__init__(self, dtype=dtype)
        self._act = act
        self._settings = {
            "momentum": momentum,
            "epsilon": epsilon,
            "data_format": data_layout,
            "use_global_stats": True if is_test or use_global_stats else None,
        }
        self._make(num_channels, param_attr, bias_attr, moving_mean_name, moving_variance_name)

    def forward(self, x: Variable) -> Variable:
        """Return `x`, normalised and activated."""
        return activate(super().forward(x), self._act)


class LayerNorm(Layer):
    """Normalisation over the last axes; scale `layer_norm_0.w_0` starts at 1, bias `.b_0` at 0: flat vectors.

    Args:
        normalized_shape: the sizes of those axes.
        epsilon: added to the variance.
        weight_attr: of the scale; False for none.
        bias_attr: of the bias; False for none.
        name: Paddle's, no effect.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        epsilon: float = 1e-05,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        del name
        super().__init__()
        self._sizes = [normalized_shape] if isinstance(normalized_shape, int) else [int(s) for s in normalized_shape]
        self._epsilon = epsilon
        count = [math.prod(self._sizes)]
        self.weight = self.create_parameter(count, weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter(count, bias_attr, is_bias=True)

    def forward(self, x: Variable) -> Variable:
        """Return `x`, normalised."""
        return functional.layer_norm(x, self._sizes, self.weight, self.bias, self._epsilon)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"normalized_shape={self._sizes}, epsilon={self._epsilon}"


class GroupNorm(Layer):
    """Normalisation of groups of channels of each sample; scale `group_norm_0.w_0` starts at 1, bias `.b_0` at 0.

    Args:
        num_groups: the number of groups.
        num_channels: the number of channels.
        epsilon: added to the variance.
        weight_attr: of the scale; False for none.
        bias_attr: of the bias; False for none.
        data_format: where the channels are.
        name: Paddle's, no effect.

    Raises:
        OptionError: the channels cannot be split into so many groups.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        epsilon: float = 1e-05,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        del name
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise OptionError(f"GroupNorm: {num_channels} channels cannot be split into {num_groups} groups")
        self._settings = num_groups, epsilon, data_format
        self.weight = self.create_parameter([num_channels], weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([num_channels], bias_attr, is_bias=True)

    def forward(self, x: Variable) -> Variable:
        """Return `x`, normalised."""
        groups, epsilon, layout = self._settings
        return functional.group_norm(x, groups, epsilon, self.weight, self.bias, layout)


class _InstanceNorm(Layer):
    """Normalisation of each channel of each sample; the scale starts at 1, the bias at 0.

    Attributes:
        layout: the layout unless another is given.

    Args:
        num_features: the number of channels.
        epsilon: added to the variance.
        momentum: no effect: there are no running statistics.
        weight_attr: of the scale; False, together with `bias_attr`, for neither.
        bias_attr: of the bias.
        data_format: where the channels are.
        name: Paddle's, no effect.
    """

    layout: ClassVar[str] = "NCHW"

    def __init__(
        self,
        num_features: int,
        epsilon: float = 1e-05,
        momentum: float = 0.9,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        del name, momentum
        super().__init__()
        self._epsilon = epsilon
        self._layout = data_format or self.layout
        self.scale = self.create_parameter([num_features], weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([num_features], bias_attr, is_bias=True)

    def forward(self, x: Variable) -> Variable:
        """Return `x`, normalised."""
        return functional.instance_norm(
            x, weight=self.scale, bias=self.bias, eps=self._epsilon, data_format=self._layout
        )


class InstanceNorm1D(_InstanceNorm):
    """Normalisation of each channel of each sequence; see the base of `InstanceNorm2D`."""

    layout = "NCL"


class InstanceNorm2D(_InstanceNorm):
    """Normalisation of each channel of each image. The arguments are described at its base."""


class InstanceNorm3D(_InstanceNorm):
    """Normalisation of each channel of each volume; see the base of `InstanceNorm2D`."""

    layout = "NCDHW"


class LocalResponseNorm(FunctionLayer):
    """Divides each element by a power of its neighbours' squares along the channels."""

    function = "local_response_norm"


class SpectralNorm(Layer):
    """Divides a weight by its largest singular value, which is estimated by power iteration.

    The iteration starts again in each run from two random vectors, `.w_0` and `.w_1`, that are not trained.

    Args:
        weight_shape: the weight's shape.
        dim: the axis whose index numbers the rows of the weight as a matrix.
        power_iters: steps of the iteration.
        eps: added to norms, so that nothing is divided by 0.
        dtype: the weight's element type.
    """

    def __init__(
        self,
        weight_shape: Sequence[int],
        dim: int = 0,
        power_iters: int = 1,
        eps: float = 1e-12,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        self._dim, self._steps, self._eps = dim, power_iters, eps
        rows = int(weight_shape[dim])
        self.weight_u = self._weight([rows], None, Normal(0.0, 1.0))
        self.weight_v = self._weight([math.prod(weight_shape) // rows], None, Normal(0.0, 1.0))
        for vector in (self.weight_u, self.weight_v):
            vector.trainable, vector.stop_gradient = False, True

    def forward(self, x: Variable) -> Variable:
        """Return the weight `x` over its largest singular value."""
        b, axis = builder_of(x), axis_of(x, self._dim)
        order = [axis, *(other for other in range(x.ndim) if other != axis)]
        matrix = b.reshape(b.transpose(x.value, order), [size_at(x, axis, "SpectralNorm"), -1])
        u, v = (b.unsqueeze(vector.value, [1]) for vector in (self.weight_u, self.weight_v))
        for _ in range(self._steps):
            v = self._unit(x, b.matmul(b.transpose(matrix, [1, 0]), u))
            u = self._unit(x, b.matmul(matrix, v))
        sigma = b.matmul(b.transpose(u, [1, 0]), b.matmul(matrix, v))
        return wrap(x, b.div(x.value, b.reshape(sigma, [])))

    def _unit(self, x: Variable, column: Any) -> Any:
        """Return a column over its norm; no gradient passes it."""
        b = builder_of(x)
        unit = wrap(x, b.div(column, b.add(b.reduce("ReduceL2", column, None), self._eps)))
        unit.stop_gradient = True
        return unit.value


check_arguments(globals(), __all__)
