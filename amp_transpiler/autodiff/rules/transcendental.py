"""Gradients of exponentials, logarithms, trigonometric and hyperbolic functions.

One or two products are computed in the element type of the node; squares and roots at least in float32.
"""

from __future__ import annotations

import math

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import gradient


@gradient("Exp")
def exp(g: Expr, *, y: Expr) -> Expr:
    return g * y


@gradient("Log")
def log(g: Expr, x: Expr) -> Expr:
    return g / x


@gradient("Erf")
def erf(g: Expr, x: Expr) -> Expr:
    bell = (-(x * x)).exp()
    return g * (2 / math.sqrt(math.pi)) * bell


@gradient("Sin")
def sin(g: Expr, x: Expr) -> Expr:
    return g * x.cos()


@gradient("Cos")
def cos(g: Expr, x: Expr) -> Expr:
    return -(g * x.sin())


@gradient("Tan")
def tan(g: Expr, *, y: Expr) -> Expr:
    return g.wide() * _one_plus_square(y)


def _one_minus_square(x: Expr) -> Expr:
    """`1 - x^2` as `(1 - x) (1 + x)`, which keeps its digits near 1 and -1."""
    x = x.wide()
    return (1 - x) * (1 + x)


def _one_plus_square(x: Expr) -> Expr:
    x = x.wide()
    return 1 + x * x


@gradient("Asin")
def asin(g: Expr, x: Expr) -> Expr:
    return g.wide() / _one_minus_square(x).sqrt()


@gradient("Acos")
def acos(g: Expr, x: Expr) -> Expr:
    return -(g.wide() / _one_minus_square(x).sqrt())


@gradient("Atan")
def atan(g: Expr, x: Expr) -> Expr:
    return g.wide() / _one_plus_square(x)


@gradient("Sinh")
def sinh(g: Expr, x: Expr) -> Expr:
    return g * x.cosh()


@gradient("Cosh")
def cosh(g: Expr, x: Expr) -> Expr:
    return g * x.sinh()


@gradient("Asinh")
def asinh(g: Expr, x: Expr) -> Expr:
    return g.wide() / _one_plus_square(x).sqrt()


@gradient("Acosh")
def acosh(g: Expr, x: Expr) -> Expr:
    x = x.wide()
    return g.wide() / ((x - 1) * (1 + x)).sqrt()  # not x^2 - 1: no cancellation near 1


@gradient("Atanh")
def atanh(g: Expr, x: Expr) -> Expr:
    return g.wide() / _one_minus_square(x)


@gradient("Tanh")
def tanh(g: Expr, *, y: Expr) -> Expr:
    return g * (1 - y) * (1 + y)  # not 1 - y^2: no cancellation near 1


@gradient("Sigmoid")
def sigmoid(g: Expr, *, y: Expr) -> Expr:
    return g * y * (1 - y)
