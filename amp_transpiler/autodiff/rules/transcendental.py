"""Gradients of exponentials, logarithms, trigonometric and hyperbolic functions.

What is one or two products is computed in the element type of the node; squares and roots in float32 at least.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient


@gradient("Exp")
def exp(n: NodeGradient) -> ir.Value:
    """`g y`."""
    return n.b.mul(n.g, n.y)


@gradient("Log")
def log(n: NodeGradient) -> ir.Value:
    """`g / x`."""
    return n.b.div(n.g, n.x)


@gradient("Erf")
def erf(n: NodeGradient) -> ir.Value:
    """`g 2/sqrt(pi) exp(-x^2)`."""
    bell = n.b.op("Exp", [n.b.neg(n.b.mul(n.x, n.x))])
    return n.b.mul(n.b.mul(n.g, 2 / math.sqrt(math.pi)), bell)


@gradient("Sin")
def sin(n: NodeGradient) -> ir.Value:
    """`g cos x`."""
    return n.b.mul(n.g, n.b.op("Cos", [n.x]))


@gradient("Cos")
def cos(n: NodeGradient) -> ir.Value:
    """`-g sin x`."""
    return n.b.neg(n.b.mul(n.g, n.b.op("Sin", [n.x])))


@gradient("Tan")
def tan(n: NodeGradient) -> ir.Value:
    """`g (1 + y^2)`."""
    y = n.b.high(n.y)
    return n.b.mul(n.b.high(n.g), n.b.add(n.b.mul(y, y), 1))


def _one_minus_square(n: NodeGradient) -> ir.Value:
    """`(1 - x) (1 + x)`, which keeps its digits near 1 and -1."""
    x = n.b.high(n.x)
    return n.b.mul(n.b.sub(1, x), n.b.add(x, 1))


def _one_plus_square(n: NodeGradient) -> ir.Value:
    x = n.b.high(n.x)
    return n.b.add(n.b.mul(x, x), 1)


def _over_root(n: NodeGradient, square: ir.Value) -> ir.Value:
    return n.b.div(n.b.high(n.g), n.b.op("Sqrt", [square]))


@gradient("Asin")
def asin(n: NodeGradient) -> ir.Value:
    """`g / sqrt(1 - x^2)`."""
    return _over_root(n, _one_minus_square(n))


@gradient("Acos")
def acos(n: NodeGradient) -> ir.Value:
    """`-g / sqrt(1 - x^2)`."""
    return n.b.neg(_over_root(n, _one_minus_square(n)))


@gradient("Atan")
def atan(n: NodeGradient) -> ir.Value:
    """`g / (1 + x^2)`."""
    return n.b.div(n.b.high(n.g), _one_plus_square(n))


@gradient("Sinh")
def sinh(n: NodeGradient) -> ir.Value:
    """`g cosh x`."""
    return n.b.mul(n.g, n.b.op("Cosh", [n.x]))


@gradient("Cosh")
def cosh(n: NodeGradient) -> ir.Value:
    """`g sinh x`."""
    return n.b.mul(n.g, n.b.op("Sinh", [n.x]))


@gradient("Asinh")
def asinh(n: NodeGradient) -> ir.Value:
    """`g / sqrt(x^2 + 1)`."""
    return _over_root(n, _one_plus_square(n))


@gradient("Acosh")
def acosh(n: NodeGradient) -> ir.Value:
    """`g / sqrt(x^2 - 1)`."""
    x = n.b.high(n.x)
    return _over_root(n, n.b.mul(n.b.sub(x, 1), n.b.add(x, 1)))


@gradient("Atanh")
def atanh(n: NodeGradient) -> ir.Value:
    """`g / (1 - x^2)`."""
    return n.b.div(n.b.high(n.g), _one_minus_square(n))


@gradient("Tanh")
def tanh(n: NodeGradient) -> ir.Value:
    """`g (1 - y) (1 + y)`."""
    return n.b.mul(n.b.mul(n.g, n.b.sub(1, n.y)), n.b.add(n.y, 1))


@gradient("Sigmoid")
def sigmoid(n: NodeGradient) -> ir.Value:
    """`g y (1 - y)`."""
    return n.b.mul(n.b.mul(n.g, n.y), n.b.sub(1, n.y))
