"""Gradients of normalizations, with statistics in float32 and always from differences with the mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable, SizesUnknown
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.graph.batch_statistics import mark_batch_statistic
from amp_transpiler.graph.marked_gradients import marks, result

_SCALE_BY_CHANNEL = 21  # the opset from which the scale of GroupNormalization is by channel


def _standardize(x: Expr, axes: Sequence[int], epsilon: float) -> tuple[Expr, Expr]:
    """Return `x` less its mean over `axes`, divided by its standard deviation, and 1 over that deviation."""
    centred = x - x.mean(axes)
    inverse = _inverse_root((centred * centred).mean(axes), epsilon)
    return centred * inverse, inverse


def _inverse_root(variance: Expr, epsilon: float) -> Expr:
    return 1 / (variance + epsilon).sqrt()


def _through(g: Expr, xhat: Expr, inverse: Expr, axes: Sequence[int]) -> Expr:
    """Return the gradient of `x` from the gradient `g` of the standardized `xhat` (arXiv:1502.03167, section 3)."""
    return inverse * (g - (g.mean(axes) + xhat * (g * xhat).mean(axes)))


def _by_channel(value: Expr, x: Expr) -> Expr:
    """Return one number a channel, in the element type of `x`, shaped to broadcast along axis 1 of it."""
    return value.cast(x.dtype).unsqueeze(*range(1, x.rank - 1))


def _other_axes(x: Expr) -> list[int]:
    """All axes but that of the channels."""
    return [0, *range(2, x.rank)]


def _sum_by_channel(value: Expr) -> Expr:
    return value.sum(_other_axes(value), keepdims=False)


def _wide(g: Expr, x: Expr) -> tuple[Expr, Expr]:
    """Return `x` and `g` in float32; `g` has the shape of `x`, which ONNX does not infer of every normalization."""
    x = x.wide()
    return x, _incoming(g, x)


def _incoming(g: Expr, x: Expr) -> Expr:
    return g.with_shape_of(x, only_if_unknown=True).wide()


@gradient("BatchNormalization")
def batch_normalization(
    gs: Sequence[Expr | None],
    x: Expr,
    scale: Expr,
    _bias: Expr,
    mean: Expr,
    variance: Expr,
    *,
    node: NodeGradient,
    epsilon: float = 1e-5,
) -> Gradients:
    """By the statistics of the batch in training, else by those given; the running ones have no gradient."""
    if gs[0] is None:
        return None
    if _trains(node):
        return _of_batch(gs[0], x, scale, epsilon)
    x, g = _wide(gs[0], x)
    scaled = g * _by_channel(scale, x)
    if node.wants(3) or node.wants(4):
        raise NotDifferentiable(
            "its frozen mean and variance have no gradient; make them constants or stop_gradient values"
        )
    inverse = _by_channel(_inverse_root(variance.cast(x.dtype), epsilon), x)
    xhat = (x - _by_channel(mean, x)) * inverse
    return lambda: scaled * inverse, lambda: _sum_by_channel(g * xhat), lambda: _sum_by_channel(g)


def _of_batch(g: Expr, x: Expr, scale: Expr, epsilon: float) -> Gradients:
    """By the statistics of the batch. The scale is one number a channel, so all three share the same two sums.

    At most three tensors of the size of `x` are needed at the same time. The nodes are marked: where a step is compiled
    whose shapes are known, LowerBatchNorm writes them in fewer.
    """
    builder = x.builder
    token = builder.names.fresh("batch_norm_gradient")
    with marks(builder, token):
        x, g = _wide(g, x)
        axes = _other_axes(x)
        centred = x - _over_batch(x.mean(axes))
        inverse = _inverse_root(_over_batch((centred * centred).mean(axes)), epsilon)
        xhat = centred * inverse
        to_scale, to_bias = (g * xhat).sum(axes), g.sum(axes)

    def to_x() -> Expr:
        count = _count(x, axes)
        along, level = _over_batch(to_scale / count), _over_batch(to_bias / count)
        return (g - (xhat * along + level)) * (inverse * _by_channel(scale, x))

    def marked(index: int, gradient: Callable[[], Expr]) -> Callable[[], Expr]:
        def compute() -> Expr:
            with marks(builder, token):
                output = gradient()
            result(output.value, index)
            return output

        return compute

    return marked(0, to_x), marked(1, lambda: to_scale.reshape([-1])), marked(2, lambda: to_bias.reshape([-1]))


def _over_batch(mean: Expr) -> Expr:
    """Mark a mean over the batch, which several processes may share."""
    mark_batch_statistic(mean.value)
    return mean


def _count(x: Expr, axes: Sequence[int]) -> float | Expr:
    """The number of elements along `axes`."""
    if x.is_static:
        return float(np.prod([x.sizes[axis] for axis in axes]))
    sizes = x.shape_tensor().op("Gather", x.constant(np.array(axes, np.int64)))
    return sizes.reduce("ReduceProd", keepdims=False).cast(x.dtype)


def _trains(node: NodeGradient) -> bool:
    if node.opset >= 14:
        return bool(node.attribute("training_mode", 0))
    # Before opset 14, a node trains if the graph names its running statistics.
    return len([value for value in node.source.outputs if value.name]) > 1


@gradient("RMSNormalization")
def rms_normalization(g: Expr, x: Expr, scale: Expr, *, axis: int = -1, epsilon: float = 1e-5) -> Gradients:
    """`r (gs - xhat mean(gs xhat))`, with `r` 1 over the root of the mean square and `gs = g scale`."""
    x, g = _wide(g, x)
    axes = range(axis % x.rank, x.rank)
    inverse = _inverse_root((x * x).mean(axes), epsilon)
    xhat = x * inverse

    def to_x() -> Expr:
        gs = g * scale.cast(x.dtype)
        return inverse * (gs - xhat * (gs * xhat).mean(axes))

    return to_x, lambda: g * xhat


@gradient("InstanceNormalization")
def instance_normalization(g: Expr, x: Expr, scale: Expr, _bias: Expr, *, epsilon: float = 1e-5) -> Gradients:
    """By sample and channel."""
    x, g = _wide(g, x)
    axes = range(2, x.rank)
    xhat, inverse = _standardize(x, axes, epsilon)
    return (
        lambda: _through(g * _by_channel(scale, x), xhat, inverse, axes),
        lambda: _sum_by_channel(g * xhat),
        lambda: _sum_by_channel(g),
    )


@gradient("GroupNormalization")
def group_normalization(
    g: Expr, x: Expr, scale: Expr, _bias: Expr, *, node: NodeGradient, num_groups: int, epsilon: float = 1e-5
) -> Gradients:
    """By sample and group of channels; scale and bias are by channel, before opset 21 by group."""
    x, g = _wide(g, x)

    def grouped(value: Expr) -> Expr:
        return value.reshape([0, num_groups, -1])

    xhat, inverse = _standardize(grouped(x), [2], epsilon)
    by_group = node.opset < _SCALE_BY_CHANNEL

    def to_x() -> Expr:
        scaled = grouped(g) * _by_channel(scale, xhat) if by_group else grouped(g * _by_channel(scale, x))
        return _through(scaled, xhat, inverse, [2]).reshape_like(x)

    if by_group:
        return to_x, lambda: _sum_by_channel(grouped(g) * xhat), lambda: _sum_by_channel(grouped(g))
    return to_x, lambda: _sum_by_channel(g * xhat.reshape_like(x)), lambda: _sum_by_channel(g)


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(g: Expr, x: Expr, *, axes: Sequence[int] = (0, 2, 3)) -> Expr:
    """Over `axes`. ONNX defines it with the epsilon added to the deviation, not to the variance."""
    x = x.wide()
    centred = x - x.mean(list(axes))
    deviation = (centred * centred).mean(list(axes)).sqrt()
    inverse = 1 / (deviation + 1e-9)
    return _through(_incoming(g, x), centred * inverse, inverse, list(axes))


@gradient("LpNormalization")
def lp_normalization(g: Expr, x: Expr, *, axis: int = -1, p: int = 2) -> Expr:
    """`(g - d sum(g y)) / norm`, `d` the slope of the norm: `y` for p = 2, `sign(x)` for p = 1; 0 where the norm is."""
    x, g = _wide(g, x)
    if p not in (1, 2):
        raise NotDifferentiable(f"the attribute p must be 1 or 2, got {p}")
    norm = x.abs().sum([axis]) if p == 1 else (x * x).sum([axis]).sqrt()
    zero = norm.equals(0)
    norm = zero.where(1, norm)
    y = x / norm
    direction = x.sign() if p == 1 else y
    return zero.where(0, (g - direction * (g * y).sum([axis])) / norm)


@gradient("LRN")
def lrn(g: Expr, x: Expr, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Expr:
    """Of `x d^-beta`, `d` affine in the windowed sum of squares: a product with a band matrix over the channels."""
    x, g = _wide(g, x)
    channels = x.size(1)
    if channels is None:
        raise SizesUnknown(f"the number of channels must be known, got {x.shape}")
    factor = alpha / size
    distance = np.arange(channels) - np.arange(channels)[:, None]  # of channel [column] from the one normalized [row]
    band = ((distance >= -((size - 1) // 2)) & (distance <= size // 2)).astype(np.float32)

    def windowed(matrix: npt.NDArray[np.float32], value: Expr) -> Expr:
        flat = value.reshape([0, channels, -1])
        return (x.constant(matrix, x.dtype) @ flat).reshape_like(x)

    d = windowed(band, x * x) * factor + bias
    scaled = g * d**-beta
    others = windowed(band.T, scaled * x / d)
    return scaled - x * others * (2 * factor * beta)
