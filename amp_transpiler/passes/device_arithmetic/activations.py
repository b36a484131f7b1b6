"""Kernels of activations that round their steps. Formulas: ONNX Runtime's activations_impl.cu and gelu_impl.cu."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.passes.device_arithmetic.steps import Steps, named

__all__ = ["ACTIVATIONS"]

_LINEAR = 0.7978845608028654  # sqrt(2 / pi)
_CUBIC = 0.035677408136300125  # 0.044715 * sqrt(2 / pi)
_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
_ROOT_HALF = 0.70710678118654752


def _read(node: ir.Node, steps: Steps) -> ir.Value:
    value = node.inputs[0]
    assert value is not None  # every activation reads one
    return steps.high(value)


def _complement(x: ir.Value, steps: Steps, *, rounded: bool) -> ir.Value:
    """Return the sigmoid: a quotient for positive x, one minus it for the others."""
    keep = steps.rounded if rounded else _as_it_is
    share = keep(steps.op("Exp", [steps.neg(steps.op("Abs", [x]))]))
    quotient = keep(steps.op("Div", [steps.constant(1.0), keep(steps.add(share, 1.0))]))
    return steps.where(steps.compare("Greater", x, 0.0), quotient, keep(steps.sub(1.0, quotient)))


def _as_it_is(value: ir.Value) -> ir.Value:
    return value


def sigmoid_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Sigmoid with every step rounded."""
    return _complement(_read(node, steps), steps, rounded=True)


def sigmoid_by_complement(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Sigmoid in float32 as 1 - 1 / (1 + e) for negative inputs, which is 6e-8 off there."""
    return _complement(_read(node, steps), steps, rounded=False)


def quick_gelu_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write QuickGelu, x * Sigmoid(alpha * x), with every step rounded."""
    x, r = _read(node, steps), steps.rounded
    alpha = node.attributes.get_float("alpha", 1.702)
    scaled = x if alpha == 1.0 else r(steps.mul(x, steps.held(alpha)))
    unit = steps.constant(1.0)

    def quotient(exponent: ir.Value) -> ir.Value:
        return r(steps.op("Div", [unit, r(steps.add(r(steps.op("Exp", [exponent])), 1.0))]))

    positive, negative = quotient(steps.neg(scaled)), r(steps.sub(1.0, quotient(scaled)))
    return steps.mul(x, steps.where(steps.compare("Less", scaled, 0.0), negative, positive))


def gelu_tanh_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write GELU by the hyperbolic tangent: with fused multiplications and additions in float16, apart in bfloat16."""
    return _gelu_tanh(_read(node, steps), steps)


def fast_gelu_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write FastGelu: the sum with its bias, if it has one, is rounded, then comes GELU by the hyperbolic tangent."""
    x, bias = _read(node, steps), node.inputs[1] if len(node.inputs) > 1 else None
    return _gelu_tanh(x if bias is None else steps.rounded(steps.add(x, steps.high(bias))), steps)


def _gelu_tanh(x: ir.Value, steps: Steps) -> ir.Value:
    r = steps.rounded
    fused = _as_it_is if steps.low.name == "float16" else r
    half, linear, cubic = (steps.held(value) for value in (0.5, _LINEAR, _CUBIC))
    inner = r(steps.add(fused(steps.mul(r(steps.mul(x, cubic)), x)), linear))
    bent = fused(steps.mul(r(steps.op("Tanh", [r(steps.mul(x, inner))])), half))
    return steps.mul(x, r(steps.add(bent, half)))


def _normal_share(x: ir.Value, steps: Steps) -> ir.Value:
    """Return the share of the normal distribution below x."""
    return steps.mul(steps.add(steps.op("Erf", [steps.mul(x, math.sqrt(0.5))]), 1.0), 0.5)


def gelu_by_erf(node: ir.Node, steps: Steps) -> ir.Value:
    """Write GELU by the error function with a single rounding."""
    x = _read(node, steps)
    return steps.mul(x, _normal_share(x, steps))


def gelu_erf_in_two(node: ir.Node, steps: Steps) -> ir.Value:
    """Write GELU by the error function: the share is rounded, then the product."""
    x = _read(node, steps)
    return steps.mul(x, steps.rounded(_normal_share(x, steps)))


def bias_gelu_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write BiasGelu: a sum, then GELU by the error function, every step rounded."""
    r, bias = steps.rounded, node.inputs[1]
    assert bias is not None
    x = r(steps.add(_read(node, steps), steps.high(bias)))
    share = r(steps.add(r(steps.op("Erf", [r(steps.mul(x, steps.held(_ROOT_HALF)))])), 1.0))
    return steps.mul(r(steps.mul(x, 0.5)), share)


def softplus_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Softplus: log(exp(-|x|) + 1), and x more where x is positive."""
    x, r = _read(node, steps), steps.rounded
    small = r(steps.op("Log", [r(steps.add(r(steps.op("Exp", [steps.neg(steps.op("Abs", [x]))])), 1.0))]))
    return steps.where(steps.compare("Greater", x, 0.0), steps.add(x, small), small)


def softsign_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Softsign: the sum is rounded, then the quotient."""
    x = _read(node, steps)
    return steps.div(x, steps.rounded(steps.add(steps.op("Abs", [x]), 1.0)))


def elu_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Elu: exp(x) is rounded before 1 is subtracted."""
    x, r = _read(node, steps), steps.rounded
    alpha = steps.held(node.attributes.get_float("alpha", 1.0))
    negative = steps.mul(r(steps.sub(r(steps.op("Exp", [x])), 1.0)), alpha)
    return steps.where(steps.compare("Greater", x, 0.0), x, negative)


def selu_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Selu: gamma * (max(x, 0) + min(alpha * (exp(x) - 1), 0)), every step rounded."""
    x, r = _read(node, steps), steps.rounded
    alpha = steps.held(node.attributes.get_float("alpha", _SELU_ALPHA))
    gamma = steps.held(node.attributes.get_float("gamma", _SELU_GAMMA))
    negative = r(steps.mul(r(steps.sub(r(steps.op("Exp", [x])), 1.0)), alpha))
    return steps.mul(steps.add(steps.maximum(x, 0.0), steps.minimum(negative, 0.0)), gamma)


def _clipped(value: ir.Value, steps: Steps) -> ir.Value:
    return steps.minimum(steps.maximum(value, 0.0), 1.0)


def _hard_sigmoid(node: ir.Node, steps: Steps, *, fused: bool) -> ir.Value:
    alpha = steps.held(node.attributes.get_float("alpha", 0.2))
    beta = steps.held(node.attributes.get_float("beta", 0.5))
    product = steps.mul(_read(node, steps), alpha)
    return _clipped(steps.rounded(steps.add(product if fused else steps.rounded(product), beta)), steps)


def hard_sigmoid_fused(node: ir.Node, steps: Steps) -> ir.Value:
    """Write HardSigmoid with alpha and beta in the format, and a fused multiplication and addition."""
    return _hard_sigmoid(node, steps, fused=True)


def hard_sigmoid_in_two(node: ir.Node, steps: Steps) -> ir.Value:
    """Write HardSigmoid with alpha and beta in the format; the product is rounded, then the sum."""
    return _hard_sigmoid(node, steps, fused=False)


def hard_swish_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write HardSwish: x / 6 is rounded, then the sum with one half."""
    x, r = _read(node, steps), steps.rounded
    return steps.mul(x, _clipped(r(steps.add(r(steps.div(x, 6.0)), 0.5)), steps))


def leaky_relu_of_low_alpha(node: ir.Node, steps: Steps) -> ir.Value:
    """Write LeakyRelu with alpha in the format."""
    x = _read(node, steps)
    alpha = steps.held(node.attributes.get_float("alpha", 0.01))
    return steps.where(steps.compare("Greater", x, 0.0), x, steps.mul(x, alpha))


ACTIVATIONS = named(
    bias_gelu_in_steps,
    elu_in_steps,
    fast_gelu_in_steps,
    gelu_by_erf,
    gelu_erf_in_two,
    gelu_tanh_in_steps,
    hard_sigmoid_fused,
    hard_sigmoid_in_two,
    hard_swish_in_steps,
    leaky_relu_of_low_alpha,
    quick_gelu_in_steps,
    selu_in_steps,
    sigmoid_by_complement,
    sigmoid_in_steps,
    softplus_in_steps,
    softsign_in_steps,
)
"""Name in the table -> the rule."""
