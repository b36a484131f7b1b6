"""What kernels compute, in numpy: every number is a float64 array whose values the format can hold."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from amp_transpiler.graph.dtypes import LowFormat

__all__ = ["Array", "Rounding", "erf", "every_pattern", "gelu", "gelu_tanh", "normalized", "sigmoid", "softmax", "tf32"]

Array: TypeAlias = np.ndarray

_erf = np.frompyfunc(math.erf, 1, 1)

_GELU_LINEAR = 0.7978845608028654  # sqrt(2 / pi)
_GELU_CUBIC = 0.035677408136300125  # 0.044715 * sqrt(2 / pi)


class Rounding:
    """Rounds to a format when it is called, and computes the formulas of kernels that round every step.

    Args:
        low: the format.
    """

    def __init__(self, low: LowFormat) -> None:
        self.low = low

    def __call__(self, values: Array | float) -> Array:
        """Return the values rounded: through float32, as kernels do that compute in it."""
        single = np.asarray(values, np.float64).astype(np.float32)
        return single.astype(self.low.numpy).astype(np.float64)

    def constant(self, value: float) -> float:
        """Return a constant of a kernel, rounded."""
        return float(self(value))

    def sigmoid(self, x: Array) -> Array:
        """Return the quotient for positive x, one minus it for the others."""
        share = self(1 / self(1 + self(np.exp(-np.abs(x)))))
        return np.where(x > 0, share, self(1 - share))

    def silu(self, x: Array) -> Array:
        """Return QuickGelu with alpha = 1, into which ONNX Runtime fuses x * Sigmoid(x)."""
        positive = self(1 / self(1 + self(np.exp(-x))))
        negative = self(1 - self(1 / self(1 + self(np.exp(x)))))
        return self(x * np.where(x >= 0, positive, negative))

    def fast_gelu(self, x: Array) -> Array:
        """Return FastGelu: GELU by a hyperbolic tangent, with fused multiplications and additions in float16."""
        half, linear, cubic = (self.constant(value) for value in (0.5, _GELU_LINEAR, _GELU_CUBIC))
        fused = self.low.name == "float16"
        inner = self(cubic * x) * x
        inner = self((inner if fused else self(inner)) + linear)
        bent = half * self(np.tanh(self(x * inner)))
        return self(x * self((bent if fused else self(bent)) + half))

    def softplus(self, x: Array) -> Array:
        """Return log(exp(-|x|) + 1), and x more where x is positive."""
        small = self(np.log(self(self(np.exp(-np.abs(x))) + 1)))
        return np.where(x > 0, self(x + small), small)

    def elu(self, x: Array) -> Array:
        """Return x, or exp(x) - 1 in two steps."""
        return np.where(x > 0, x, self(self(np.exp(x)) - 1))

    def selu(self, x: Array) -> Array:
        """Return gamma * (max(x, 0) + min(alpha * (exp(x) - 1), 0))."""
        gamma, alpha = self.constant(1.0507009873554805), self.constant(1.6732632423543772)
        negative = self(alpha * self(self(np.exp(x)) - 1))
        return self(gamma * self(np.maximum(x, 0) + np.minimum(negative, 0)))

    def in_turn(self, terms: Array, axis: int) -> Array:
        """Return the sum along an axis where every partial sum is rounded, one term after the other."""
        rows = np.moveaxis(terms, axis, 0)
        total: Array = rows[0]
        for row in rows[1:]:
            total = self(total + row)
        return total


def tf32(values: Array) -> Array:
    """Return float32 values rounded to TF32: 10 bits of significand behind the point, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded: Array = (bits + 0xFFF + ((bits >> np.uint64(13)) & np.uint64(1))) & ~np.uint64(0x1FFF)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def every_pattern(low: LowFormat) -> Array:
    """Return all values of a 16-bit format, in the order of their bits: NaN, infinities and subnormals included."""
    return np.arange(2**16, dtype=np.uint16).view(low.numpy)


def erf(x: Array) -> Array:
    """Return the error function."""
    return np.asarray(_erf(x), np.float64)


def sigmoid(x: Array) -> Array:
    """Return the sigmoid."""
    return np.asarray(1 / (1 + np.exp(-x)))


def gelu(x: Array) -> Array:
    """Return GELU by the error function."""
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def gelu_tanh(x: Array) -> Array:
    """Return GELU by the hyperbolic tangent."""
    return np.asarray(0.5 * x * (1 + np.tanh(_GELU_LINEAR * (x + 0.044715 * x**3))))


def softmax(x: Array) -> Array:
    """Return the softmax of the last axis."""
    shares = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True))


def normalized(x: Array, epsilon: float = 1e-5) -> Array:
    """Return x less its mean, over its deviation, of the last axis."""
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon))
