"""Gradients of activation functions: ONNX's own and those of ONNX Runtime's `com.microsoft`."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient

_CONTRIB = "com.microsoft"
_HARD_SIGMOID_OF_BFLOAT16 = 22  # the opset from which HardSigmoid takes bfloat16
# Defaults of ONNX's Selu: float32 numbers, written out.
_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875


@gradient("Relu")
def relu(g: Expr, *, y: Expr) -> Expr:
    return y.cast(ir.DataType.BOOL).where(g, 0)  # Cast to bool compares with 0, on CUDA for every element type


@gradient("LeakyRelu")
def leaky_relu(g: Expr, x: Expr, *, alpha: float = 0.01) -> Expr:
    return (x > 0).where(g, g * alpha)


@gradient("PRelu")
def prelu(g: Expr, x: Expr, slope: Expr) -> Gradients:
    positive = x > 0
    return lambda: positive.where(g, g * slope), lambda: positive.where(0, g * x)


@gradient("Elu")
def elu(g: Expr, x: Expr, *, y: Expr, alpha: float = 1.0) -> Expr:
    return (x > 0).where(g, g * (y + alpha))


@gradient("Selu")
def selu(g: Expr, x: Expr, *, y: Expr, alpha: float = _SELU_ALPHA, gamma: float = _SELU_GAMMA) -> Expr:
    return (x > 0).where(g * gamma, g * (y + gamma * alpha))


@gradient("Celu")
def celu(g: Expr, x: Expr, *, y: Expr, alpha: float = 1.0) -> Expr:
    slope = y / alpha + 1
    return (x > 0).where(g, g * slope)


@gradient("ThresholdedRelu")
def thresholded_relu(g: Expr, x: Expr, *, alpha: float = 1.0) -> Expr:
    return (x > alpha).where(g, 0)


@gradient("HardSigmoid")
def hard_sigmoid(g: Expr, *, y: Expr, alpha: float = 0.2) -> Expr:
    return ((y > 0) & (y < 1)).where(g * alpha, 0)


@gradient("HardSwish")
def hard_swish(g: Expr, x: Expr) -> Expr:
    between = g * (x / 3 + 0.5)  # -3 < x < 3
    upper = (x >= 3).where(g, between)
    return (x <= -3).where(0, upper)


@gradient("Softplus")
def softplus(g: Expr, x: Expr) -> Expr:
    return g * x.sigmoid()


@gradient("Softsign")
def softsign(g: Expr, x: Expr) -> Expr:
    scale = 1 + x.abs()
    return g / scale / scale  # not g / scale^2: the square would overflow in float16


@gradient("Mish")
def mish(g: Expr, x: Expr) -> Expr:
    t = x.softplus().tanh()
    return g * (t + x * x.sigmoid() * ((1 - t) * (1 + t)))  # (1-t)(1+t), not 1-t^2: no cancellation near 1


@gradient("Swish")
def swish(g: Expr, x: Expr, *, alpha: float = 1.0) -> Expr:
    return _swish(g, x, alpha)


@gradient("QuickGelu", domain=_CONTRIB)
def quick_gelu(g: Expr, x: Expr, *, alpha: float = 1.702) -> Expr:
    return _swish(_shaped(g, x), x, alpha)


def _swish(g: Expr, x: Expr, alpha: float) -> Expr:
    """The gradient of `x sigmoid(alpha x)`."""
    scaled = x if alpha == 1 else x * alpha
    s = scaled.sigmoid()
    slope = 1 + scaled * (1 - s)
    return g * s * slope


@gradient("Gelu")
def gelu(g: Expr, x: Expr, *, approximate: str = "none") -> Expr:
    return _tanh_gelu(g, x) if approximate == "tanh" else _erf_gelu(g, x)


@gradient("Gelu", domain=_CONTRIB)
def contrib_gelu(g: Expr, x: Expr) -> Expr:
    return _erf_gelu(_shaped(g, x), x)


@gradient("BiasGelu", domain=_CONTRIB)
def bias_gelu(g: Expr, x: Expr, bias: Expr) -> Gradients:
    both = _erf_gelu(_shaped(g, x), x + bias)
    return both, both


@gradient("FastGelu", domain=_CONTRIB)
def fast_gelu(g: Expr, x: Expr, bias: Expr | None = None) -> Gradients:
    both = _tanh_gelu(_shaped(g, x), x if bias is None else x + bias)
    return both, both


def _shaped(g: Expr, x: Expr) -> Expr:
    """`g` with the shape of `x`, since ONNX infers no shape of the outputs of `com.microsoft`."""
    return g.with_shape_of(x, only_if_unknown=True)


def _erf_gelu(g: Expr, x: Expr) -> Expr:
    """`g (P(x) + x p(x))`, with P the standard normal distribution and p its density (arXiv:1606.08415)."""
    a = x * math.sqrt(0.5)
    x_density = a / (a * a).exp() * (1 / math.sqrt(math.pi))
    return g * (_half_of_one_plus(a.erf()) + x_density)


def _half_of_one_plus(x: Expr) -> Expr:
    """`(1 + x) / 2` of numbers from -1 to 1: one operator where there is one for the element type."""
    if x.dtype == ir.DataType.BFLOAT16 and x.builder.opset < _HARD_SIGMOID_OF_BFLOAT16:
        return (1 + x) * 0.5
    return x.op("HardSigmoid", alpha=0.5, beta=0.5)


def _tanh_gelu(g: Expr, x: Expr) -> Expr:
    """`g ((1 + t) + x (1 - t^2) u') / 2` with `t = tanh(u)`, `u = k (x + c x^3)` (arXiv:1606.08415)."""
    k, c = math.sqrt(2 / math.pi), 0.044715
    x = x.wide()  # the cube overflows float16 from 41 on
    square = x * x
    t = (x * (1 + square * c) * k).tanh()
    rise = (1 + square * (3 * c)) * k
    tails = (1 - t) * (1 + t)  # multiplied by x first: they are 0 for a large x, so x^3 never appears
    slope = 1 + t + x * tails * rise
    return g.wide() * (slope * 0.5)
