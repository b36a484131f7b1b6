"""Gradients of normalizations, with statistics in float32 and always from differences with the mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.graph.builder import GraphBuilder, rank_of


def _standardize(b: GraphBuilder, x: ir.Value, axes: Sequence[int], epsilon: float) -> tuple[ir.Value, ir.Value]:
    """`x` less its mean over `axes`, times the second result, one over its standard deviation."""
    centred = b.sub(x, b.mean(x, axes))
    variance = b.mean(b.mul(centred, centred), axes)
    inverse = _inverse_root(b, variance, epsilon)
    return b.mul(centred, inverse), inverse


def _inverse_root(b: GraphBuilder, variance: ir.Value, epsilon: float) -> ir.Value:
    return b.div(1.0, b.op("Sqrt", [b.add(variance, epsilon)]))


def _through(b: GraphBuilder, g: ir.Value, xhat: ir.Value, inverse: ir.Value, axes: Sequence[int]) -> ir.Value:
    """The gradient of `x`, from the gradient `g` of the standardized `xhat`."""
    steady = b.add(b.mean(g, axes), b.mul(xhat, b.mean(b.mul(g, xhat), axes)))
    return b.mul(inverse, b.sub(g, steady))


def _like(b: GraphBuilder, value: ir.Value, other: ir.Value) -> ir.Value:
    """`value` in the element type of `other`, in which the gradient is computed."""
    return b.cast(value, other.dtype)


def _by_channel(b: GraphBuilder, value: ir.Value, x: ir.Value) -> ir.Value:
    """One number a channel, in the element type of `x` and made to broadcast along axis 1 of it."""
    return b.unsqueeze(_like(b, value, x), list(range(1, rank_of(x) - 1)))


def _other_axes(x: ir.Value) -> list[int]:
    """All axes but that of the channels."""
    return [0, *range(2, rank_of(x))]


def _sum_by_channel(b: GraphBuilder, value: ir.Value) -> ir.Value:
    return b.sum(value, _other_axes(value), keepdims=False)


def _incoming(n: NodeGradient) -> ir.Value:
    """`g`, for the computation; it has the shape of `x`, which ONNX does not infer of every normalization."""
    if n.g.shape is None and n.x.shape is not None:
        n.g.shape = ir.Shape(n.x.shape)
    return n.b.high(n.g)


@gradient("BatchNormalization")
def batch_normalization(n: NodeGradient) -> list[ir.Value | None]:
    """By the statistics of the batch in training, else by those given; the running ones have no gradient."""
    if n.grads[0] is None:
        return []
    b, x, g, epsilon = n.b, n.b.high(n.x), _incoming(n), n.attribute("epsilon", 1e-5)
    # Before opset 14, a node that trains is one that is asked for the running statistics.
    training = n.attribute("training_mode", 0) if b.opset >= 14 else len([v for v in n.node.outputs if v.name]) > 1
    gs = b.mul(g, _by_channel(b, n.input(1), x))
    if training:
        xhat, inverse = _standardize(b, x, _other_axes(x), epsilon)
        dx = _through(b, gs, xhat, inverse, _other_axes(x)) if n.wants(0) else None
    else:
        if n.wants(3) or n.wants(4):
            raise n.error("its frozen mean and variance have no gradient; make them constants or stop_gradient values")
        inverse = _by_channel(b, _inverse_root(b, _like(b, n.input(4), x), epsilon), x)
        xhat = b.mul(b.sub(x, _by_channel(b, n.input(3), x)), inverse)
        dx = b.mul(gs, inverse) if n.wants(0) else None
    dscale = _sum_by_channel(b, b.mul(g, xhat)) if n.wants(1) else None
    return [dx, dscale, _sum_by_channel(b, g) if n.wants(2) else None]


@gradient("LayerNormalization")
def layer_normalization(n: NodeGradient) -> list[ir.Value | None]:
    """From the mean and inverse deviation that the forward pass saves, if it does in float32."""
    b, x = n.b, n.b.high(n.x)
    rank = rank_of(x)
    axes = list(range(n.attribute("axis", -1) % rank, rank))
    if any(grad is not None for grad in n.grads[1:]):
        raise n.error("its Mean and InvStdDev have no gradient, and one of them is used; compute it by ReduceMean")
    if n.attribute("stash_type", 1) == 1:
        mean, inverse = n.output(1), n.output(2)
        mean, inverse = _like(b, mean, x), _like(b, inverse, x)
        xhat = b.mul(b.sub(x, mean), inverse)
    else:
        xhat, inverse = _standardize(b, x, axes, n.attribute("epsilon", 1e-5))
    g = _incoming(n)
    dx = None
    if n.wants(0):
        dx = _through(b, b.mul(g, _like(b, n.input(1), x)), xhat, inverse, axes)
    return [dx, b.mul(g, xhat) if n.wants(1) else None, g if n.wants(2) else None]


@gradient("RMSNormalization")
def rms_normalization(n: NodeGradient) -> list[ir.Value | None]:
    """`r (gs - xhat mean(gs xhat))` with `r` one over the root of the mean square."""
    b, x, g = n.b, n.b.high(n.x), _incoming(n)
    axes = list(range(n.attribute("axis", -1) % rank_of(x), rank_of(x)))
    inverse = _inverse_root(b, b.mean(b.mul(x, x), axes), n.attribute("epsilon", 1e-5))
    xhat = b.mul(x, inverse)
    dx = None
    if n.wants(0):
        gs = b.mul(g, _like(b, n.input(1), x))
        dx = b.mul(inverse, b.sub(gs, b.mul(xhat, b.mean(b.mul(gs, xhat), axes))))
    return [dx, b.mul(g, xhat) if n.wants(1) else None]


@gradient("InstanceNormalization")
def instance_normalization(n: NodeGradient) -> list[ir.Value | None]:
    """By sample and channel."""
    b, x, g = n.b, n.b.high(n.x), _incoming(n)
    axes = list(range(2, rank_of(x)))
    xhat, inverse = _standardize(b, x, axes, n.attribute("epsilon", 1e-5))
    dx = _through(b, b.mul(g, _by_channel(b, n.input(1), x)), xhat, inverse, axes) if n.wants(0) else None
    dscale = _sum_by_channel(b, b.mul(g, xhat)) if n.wants(1) else None
    return [dx, dscale, _sum_by_channel(b, g) if n.wants(2) else None]


@gradient("GroupNormalization")
def group_normalization(n: NodeGradient) -> list[ir.Value | None]:
    """By sample and group of channels; scale and bias are by channel."""
    b, x, g = n.b, n.b.high(n.x), _incoming(n)
    if b.opset < 21:
        raise n.error("before opset 21 it is deprecated, since its scale is by group; write it for opset 21")

    def grouped(value: ir.Value) -> ir.Value:
        return b.reshape(value, [0, n.attribute("num_groups"), -1])

    xhat, inverse = _standardize(b, grouped(x), [2], n.attribute("epsilon", 1e-5))
    dx = None
    if n.wants(0):
        gs = grouped(b.mul(g, _by_channel(b, n.input(1), x)))
        dx = b.reshape_like(_through(b, gs, xhat, inverse, [2]), x)
    dscale = _sum_by_channel(b, b.mul(g, b.reshape_like(xhat, x))) if n.wants(1) else None
    return [dx, dscale, _sum_by_channel(b, g) if n.wants(2) else None]


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(n: NodeGradient) -> ir.Value:
    """Over `axes`; the epsilon is that of ONNX's definition, where it is added to the deviation."""
    b, x, axes = n.b, n.b.high(n.x), list(n.attribute("axes", [0, 2, 3]))
    centred = b.sub(x, b.mean(x, axes))
    deviation = b.op("Sqrt", [b.mean(b.mul(centred, centred), axes)])
    inverse = b.div(1.0, b.add(deviation, 1e-9))
    return _through(b, _incoming(n), b.mul(centred, inverse), inverse, axes)


@gradient("LpNormalization")
def lp_normalization(n: NodeGradient) -> ir.Value:
    """`(g - y sum(g y)) / norm` for p = 2, with the sign of `x` for the first `y` for p = 1; zero where the norm is."""
    b, x, g = n.b, n.b.high(n.x), _incoming(n)
    axes, p = [n.attribute("axis", -1)], n.attribute("p", 2)
    if p not in (1, 2):
        raise n.error(f"the attribute p must be 1 or 2, got {p}")
    norm = b.sum(b.op("Abs", [x]), axes) if p == 1 else b.op("Sqrt", [b.sum(b.mul(x, x), axes)])
    zero = b.compare("Equal", norm, 0.0)
    norm = b.where(zero, 1.0, norm)
    y = b.div(x, norm)
    direction = b.op("Sign", [x]) if p == 1 else y
    found = b.div(b.sub(g, b.mul(direction, b.sum(b.mul(g, y), axes))), norm)
    return b.where(zero, 0.0, found)


@gradient("LRN")
def lrn(n: NodeGradient) -> ir.Value:
    """Of `x d^-beta`, `d` affine in the windowed sum of squares: a product with a band matrix over the channels."""
    b, x, g = n.b, n.b.high(n.x), _incoming(n)
    channels = x.shape[1] if x.shape is not None else None
    if not isinstance(channels, int):
        raise n.error(f"the number of channels must be known, got {x.shape}")
    size, beta = n.attribute("size"), n.attribute("beta", 0.75)
    factor = n.attribute("alpha", 1e-4) / size
    distance = np.arange(channels) - np.arange(channels)[:, None]  # of channel [column] from the one normalized [row]
    band = ((distance >= -((size - 1) // 2)) & (distance <= size // 2)).astype(np.float32)

    def windowed(matrix: np.ndarray, value: ir.Value) -> ir.Value:
        flat = b.reshape(value, [0, channels, -1])
        return b.reshape_like(b.matmul(b.constant(matrix, x.dtype), flat), x)

    d = b.add(b.mul(windowed(band, b.mul(x, x)), factor), n.attribute("bias", 1.0))
    scaled = b.mul(g, b.pow(d, -beta))
    others = windowed(band.T, b.div(b.mul(scaled, x), d))
    return b.sub(scaled, b.mul(b.mul(x, others), 2.0 * factor * beta))
