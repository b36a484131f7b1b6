"""Gradients of arithmetic."""

from __future__ import annotations

from functools import partial

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient


@gradient("Add")
def add(g: Expr) -> Gradients:
    return g, g


@gradient("Sub")
def sub(g: Expr) -> Gradients:
    return g, lambda: -g


@gradient("Mul")
def mul(g: Expr, a: Expr, b: Expr) -> Gradients:
    return lambda: g * b, lambda: g * a


@gradient("Div")
def div(g: Expr, _a: Expr, b: Expr, *, y: Expr) -> Gradients:
    quotient = g / b
    return quotient, lambda: -(quotient * y)  # not -g a / b^2: the square would overflow in float16


@gradient("Mod")
def mod(g: Expr, a: Expr, b: Expr, *, y: Expr) -> Gradients:
    """`g`, `-g trunc(a / b)`: of floats, `y = a - b trunc(a / b)`. The whole quotient `(a - y) / b` is rounded."""
    return g, lambda: -(g.wide() * ((a.wide() - y.wide()) / b.wide()).round())


@gradient("Neg")
def neg(g: Expr) -> Expr:
    return -g


@gradient("Sum")
def total(g: Expr, *terms: Expr) -> Gradients:
    return [g] * len(terms)


@gradient("Mean")
def mean(g: Expr, *terms: Expr) -> Gradients:
    return [g / len(terms)] * len(terms)


@gradient("Identity", "Cast", "CastLike")
def same(g: Expr) -> Expr:
    return g  # the driver casts it to the element type of the input


@gradient("Abs")
def absolute(g: Expr, x: Expr) -> Expr:
    return g * x.sign()


@gradient("Sqrt")
def sqrt(g: Expr, *, y: Expr) -> Expr:
    return g.wide() * 0.5 / y.wide()


@gradient("Reciprocal")
def reciprocal(g: Expr, *, y: Expr) -> Expr:
    y = y.wide()
    return -(g.wide() * y * y)


@gradient("Pow")
def power(g: Expr, x: Expr, exponent: Expr, *, y: Expr) -> Gradients:
    """`g c x^(c-1)`, `g y log(x)`; where the first factor is 0 so is the product, even if the other is infinite."""
    base, grad = x.wide(), g.wide()

    def to_base() -> Expr:
        if exponent.known is not None and exponent.known.size == 1:
            return to_base_of(exponent.known.item())
        c = exponent.cast(base.dtype)
        slope = c * base ** (c - 1)
        return c.equals(0).where(0, grad * slope)

    def to_base_of(c: float) -> Expr:
        if c == 0:
            return y.zeros_like()
        if c == 1:
            return g
        slope = base if c == 2 else base ** (c - 1)
        return grad * slope * c

    def to_exponent() -> Expr:
        c = exponent.cast(base.dtype)
        at_zero = base.equals(0) & (c >= 0)
        return at_zero.where(0, grad * y.wide() * base.log())

    return to_base, to_exponent


@gradient("Max", "Min")
def extreme(g: Expr, *inputs: Expr, y: Expr) -> Gradients:
    """`g` to the input that is the result; equal ones share it evenly."""
    if len(inputs) == 1:
        return g
    chosen = [x.equals(y) for x in inputs]
    winners = chosen[0].cast(g.dtype)
    for mask in chosen[1:]:
        winners += mask.cast(g.dtype)
    share = g / winners
    return [partial(mask.where, share, 0) for mask in chosen]


@gradient("Clip")
def clip(g: Expr, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Gradients:
    """`g` from `low` to `high`, both included; beyond, it goes to the bound."""
    above = None if low is None else x >= low
    below = None if high is None else x <= high
    bounds = [bound for bound in (above, below) if bound is not None]
    if not bounds:
        return g

    def to_x() -> Expr:
        return (bounds[0] if len(bounds) == 1 else bounds[0] & bounds[1]).where(g, 0)

    def to_low() -> Expr:
        cut = ~bounds[0]
        # If the bounds cross, the upper one is the result everywhere.
        return (cut if low is None or high is None else cut & (low <= high)).where(g, 0)

    def to_high() -> Expr:
        raised = x if low is None else x.maximum(low)
        return g if high is None else (raised > high).where(g, 0)

    return to_x, to_low, to_high


@gradient("Where")
def where(g: Expr, condition: Expr) -> Gradients:
    # Never a product with 0 or 1: 0 times infinity is NaN.
    return None, lambda: condition.where(g, 0), lambda: condition.where(0, g)


@gradient("Range")
def arange(g: Expr, start: Expr, _limit: Expr, delta: Expr, *, y: Expr) -> Gradients:
    """`sum(g)`, zero, `sum(g i)`: element `i` is `start + i delta`; the limit only decides their number."""

    def to_delta() -> Expr:
        steps = ((y.wide() - start.wide()) / delta.wide()).round()
        return (g.wide() * steps).sum(keepdims=False)

    return lambda: g.sum(keepdims=False), None, to_delta
