"""Gradients of activation functions, ONNX's own and those of ONNX Runtime's `com.microsoft`."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.rules.arithmetic import compare

_CONTRIB = "com.microsoft"
# Defaults of ONNX's Selu: float32 numbers, written out.
_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875


@gradient("Relu")
def relu(n: NodeGradient) -> ir.Value:
    """`g` where `y` is not 0: the cast to bool is the comparison that CUDA has for every element type."""
    return n.b.where(n.b.cast(n.y, ir.DataType.BOOL), n.g, 0)


def _positive(n: NodeGradient) -> ir.Value:
    return compare(n, "Greater", n.x, 0)


@gradient("LeakyRelu")
def leaky_relu(n: NodeGradient) -> ir.Value:
    """`g` where `x > 0`, else `alpha g`."""
    return n.b.where(_positive(n), n.g, n.b.mul(n.g, n.attribute("alpha", 0.01)))


@gradient("PRelu")
def prelu(n: NodeGradient) -> list[ir.Value | None]:
    """`g` where `x > 0`, else `slope g`; to the slope 0 where `x > 0`, else `g x`."""
    positive = _positive(n)
    dx = n.b.where(positive, n.g, n.b.mul(n.g, n.input(1))) if n.wants(0) else None
    return [dx, n.b.where(positive, 0, n.b.mul(n.g, n.x)) if n.wants(1) else None]


@gradient("Elu")
def elu(n: NodeGradient) -> ir.Value:
    """`g` where `x > 0`, else `g (y + alpha)`."""
    return n.b.where(_positive(n), n.g, n.b.mul(n.g, n.b.add(n.y, n.attribute("alpha", 1.0))))


@gradient("Selu")
def selu(n: NodeGradient) -> ir.Value:
    """`gamma g` where `x > 0`, else `g (y + gamma alpha)`."""
    alpha, gamma = n.attribute("alpha", _SELU_ALPHA), n.attribute("gamma", _SELU_GAMMA)
    return n.b.where(_positive(n), n.b.mul(n.g, gamma), n.b.mul(n.g, n.b.add(n.y, gamma * alpha)))


@gradient("Celu")
def celu(n: NodeGradient) -> ir.Value:
    """`g` where `x > 0`, else `g (y / alpha + 1)`."""
    slope = n.b.add(n.b.div(n.y, n.attribute("alpha", 1.0)), 1)
    return n.b.where(_positive(n), n.g, n.b.mul(n.g, slope))


@gradient("ThresholdedRelu")
def thresholded_relu(n: NodeGradient) -> ir.Value:
    """`g` where `x > alpha`, else 0."""
    return n.b.where(compare(n, "Greater", n.x, n.attribute("alpha", 1.0)), n.g, 0)


@gradient("HardSigmoid")
def hard_sigmoid(n: NodeGradient) -> ir.Value:
    """`alpha g` where `0 < y < 1`, else 0."""
    sloped = n.b.op("And", [compare(n, "Greater", n.y, 0), compare(n, "Less", n.y, 1)])
    return n.b.where(sloped, n.b.mul(n.g, n.attribute("alpha", 0.2)), 0)


@gradient("HardSwish")
def hard_swish(n: NodeGradient) -> ir.Value:
    """0 up to -3, `g` from 3 on, `g (x / 3 + 1/2)` between."""
    between = n.b.mul(n.g, n.b.add(n.b.div(n.x, 3), 0.5))
    upper = n.b.where(compare(n, "GreaterOrEqual", n.x, 3), n.g, between)
    return n.b.where(compare(n, "LessOrEqual", n.x, -3), 0, upper)


@gradient("Softplus")
def softplus(n: NodeGradient) -> ir.Value:
    """`g sigmoid(x)`."""
    return n.b.mul(n.g, n.b.op("Sigmoid", [n.x]))


@gradient("Softsign")
def softsign(n: NodeGradient) -> ir.Value:
    """`g / (1 + |x|)^2`, by two divisions: the square would overflow."""
    scale = n.b.add(n.b.op("Abs", [n.x]), 1)
    return n.b.div(n.b.div(n.g, scale), scale)


@gradient("Mish")
def mish(n: NodeGradient) -> ir.Value:
    """`g (t + x sigmoid(x) (1 - t^2))` with `t = tanh(softplus(x))`."""
    t = n.b.op("Tanh", [n.b.op("Softplus", [n.x])])
    falling = n.b.mul(n.b.sub(1, t), n.b.add(t, 1))
    slope = n.b.mul(n.b.mul(n.x, n.b.op("Sigmoid", [n.x])), falling)
    return n.b.mul(n.g, n.b.add(t, slope))


@gradient("Swish")
def swish(n: NodeGradient) -> ir.Value:
    """The gradient of `x sigmoid(alpha x)`."""
    return _swish(n, n.g, n.attribute("alpha", 1.0))


@gradient("QuickGelu", domain=_CONTRIB)
def quick_gelu(n: NodeGradient) -> ir.Value:
    """The gradient of `x sigmoid(alpha x)`, alpha 1.702."""
    return _swish(n, _contrib_gradient(n), n.attribute("alpha", 1.702))


def _swish(n: NodeGradient, g: ir.Value, alpha: float) -> ir.Value:
    """`g s (1 + a x (1 - s))` with `s = sigmoid(a x)`."""
    scaled = n.x if alpha == 1 else n.b.mul(n.x, alpha)
    s = n.b.op("Sigmoid", [scaled])
    slope = n.b.add(n.b.mul(scaled, n.b.sub(1, s)), 1)
    return n.b.mul(n.b.mul(g, s), slope)


@gradient("Gelu")
def gelu(n: NodeGradient) -> ir.Value:
    """The gradient of ONNX's Gelu, exact or by tanh as its attribute says."""
    return _tanh_gelu(n, n.g, n.x) if n.attribute("approximate", "none") == "tanh" else _erf_gelu(n, n.g, n.x)


@gradient("Gelu", domain=_CONTRIB)
def contrib_gelu(n: NodeGradient) -> ir.Value:
    """The gradient of the exact one."""
    return _erf_gelu(n, _contrib_gradient(n), n.x)


@gradient("BiasGelu", domain=_CONTRIB)
def bias_gelu(n: NodeGradient) -> list[ir.Value]:
    """The gradient of the exact one of `x + bias`, to both."""
    both = _erf_gelu(n, _contrib_gradient(n), n.b.add(n.x, n.input(1)))
    return [both, both]


@gradient("FastGelu", domain=_CONTRIB)
def fast_gelu(n: NodeGradient) -> list[ir.Value]:
    """The gradient of the one by tanh of `x`, or of `x + bias`, to both."""
    bias = n.optional(1)
    both = _tanh_gelu(n, _contrib_gradient(n), n.x if bias is None else n.b.add(n.x, bias))
    return [both, both]


def _contrib_gradient(n: NodeGradient) -> ir.Value:
    """`g`, of whose shape ONNX knows nothing: it is that of the first input."""
    if n.g.shape is None and n.x.shape is not None:
        n.g.shape = ir.Shape(n.x.shape)
    return n.g


def _erf_gelu(n: NodeGradient, g: ir.Value, x: ir.Value) -> ir.Value:
    """`g (P(x) + x p(x))`, P and p the normal distribution and its density."""
    below = n.b.mul(n.b.add(n.b.op("Erf", [n.b.mul(x, math.sqrt(0.5))]), 1), 0.5)
    bell = n.b.op("Exp", [n.b.mul(n.b.mul(x, x), -0.5)])
    density = n.b.mul(bell, 1 / math.sqrt(2 * math.pi))
    return n.b.mul(g, n.b.add(below, n.b.mul(x, density)))


def _tanh_gelu(n: NodeGradient, g: ir.Value, x: ir.Value) -> ir.Value:
    """`g ((1 + t) + x (1 - t^2) u') / 2` with `t = tanh(u)`, `u = k (x + c x^3)`; in float32, for the cube."""
    b, k, c = n.b, math.sqrt(2 / math.pi), 0.044715
    x = b.high(x)
    square = b.mul(x, x)
    t = b.op("Tanh", [b.mul(b.mul(x, b.add(b.mul(square, c), 1)), k)])
    rise = b.mul(b.add(b.mul(square, 3 * c), 1), k)
    # The tails of tanh, 0 for a large x, are multiplied in first: x^3 never appears.
    tails = b.mul(b.sub(1, t), b.add(t, 1))
    slope = b.add(b.add(t, 1), b.mul(b.mul(x, tails), rise))
    return b.mul(b.high(g), b.mul(slope, 0.5))
