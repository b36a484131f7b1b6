"""Arithmetic that works on Python numbers and on float32 scalars of a program alike.

A schedule written with it gives the same numbers in both. Unlike `autodiff.expression`, it keeps operands in order.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder

__all__ = ["Scalar", "Symbol", "ceil", "cos", "exp", "floor", "log", "maximum", "minimum", "where_less"]

Scalar: TypeAlias = "float | Symbol"


class Symbol:
    """A float32 scalar of a program; arithmetic with it appends operators."""

    def __init__(self, builder: GraphBuilder, value: ir.Value) -> None:
        self.builder = builder
        self.value = value

    def call(self, op_type: str, *operands: Scalar) -> Symbol:
        """Append an operator and return its result."""
        inputs = [o.value if isinstance(o, Symbol) else self.builder.constant(o, ir.DataType.FLOAT) for o in operands]
        return Symbol(self.builder, self.builder.op(op_type, inputs))

    def __add__(self, other: Scalar) -> Symbol:
        return self.call("Add", self, other)

    def __radd__(self, other: float) -> Symbol:
        return self.call("Add", other, self)

    def __sub__(self, other: Scalar) -> Symbol:
        return self.call("Sub", self, other)

    def __rsub__(self, other: float) -> Symbol:
        return self.call("Sub", other, self)

    def __mul__(self, other: Scalar) -> Symbol:
        return self.call("Mul", self, other)

    def __rmul__(self, other: float) -> Symbol:
        return self.call("Mul", other, self)

    def __truediv__(self, other: Scalar) -> Symbol:
        return self.call("Div", self, other)

    def __rtruediv__(self, other: float) -> Symbol:
        return self.call("Div", other, self)

    def __pow__(self, other: Scalar) -> Symbol:
        return self.call("Pow", self, other)

    def __rpow__(self, other: float) -> Symbol:
        return self.call("Pow", other, self)


def _symbol(*operands: Scalar) -> Symbol | None:
    return next((operand for operand in operands if isinstance(operand, Symbol)), None)


def exp(x: Scalar) -> Scalar:
    """Return e to the power of `x`."""
    return x.call("Exp", x) if isinstance(x, Symbol) else math.exp(x)


def log(x: Scalar) -> Scalar:
    """Return the natural logarithm of `x`."""
    return x.call("Log", x) if isinstance(x, Symbol) else math.log(x)


def cos(x: Scalar) -> Scalar:
    """Return the cosine of `x`, in radians."""
    return x.call("Cos", x) if isinstance(x, Symbol) else math.cos(x)


def floor(x: Scalar) -> Scalar:
    """Return the largest whole number up to `x`."""
    return x.call("Floor", x) if isinstance(x, Symbol) else float(math.floor(x))


def ceil(x: Scalar) -> Scalar:
    """Return the smallest whole number from `x` on."""
    return x.call("Ceil", x) if isinstance(x, Symbol) else float(math.ceil(x))


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """Return the larger of the two."""
    if (symbol := _symbol(a, b)) is not None:
        return symbol.call("Max", a, b)
    return a if float(a) > float(b) else b  # type: ignore[arg-type]  # neither is a Symbol


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """Return the smaller of the two."""
    if (symbol := _symbol(a, b)) is not None:
        return symbol.call("Min", a, b)
    return a if float(a) < float(b) else b  # type: ignore[arg-type]  # neither is a Symbol


def where_less(x: Scalar, bound: float, then: Scalar, otherwise: Scalar) -> Scalar:
    """Return `then` where `x < bound`, else `otherwise`; both are computed."""
    if isinstance(x, Symbol):
        return x.call("Where", x.call("Less", x, bound), then, otherwise)
    return then if x < bound else otherwise
