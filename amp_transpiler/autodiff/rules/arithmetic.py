"""Gradients of arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.graph.builder import Operand
from amp_transpiler.graph.walk import constant_of


def compare(n: NodeGradient, op_type: str, a: Operand, b: Operand) -> ir.Value:
    """Return `a > b` and the like, the operands in float32 if they are bfloat16: CUDA compares no bfloat16."""

    def comparable(value: Operand) -> Operand:
        return n.b.high(value) if isinstance(value, ir.Value) and value.dtype == ir.DataType.BFLOAT16 else value

    return n.b.compare(op_type, comparable(a), comparable(b))


@gradient("Add")
def add(n: NodeGradient) -> list[ir.Value | None]:
    """`g`, `g`."""
    return [n.g, n.g]


@gradient("Sub")
def sub(n: NodeGradient) -> list[ir.Value | None]:
    """`g`, `-g`."""
    return [n.g, n.b.neg(n.g) if n.wants(1) else None]


@gradient("Mul")
def mul(n: NodeGradient) -> list[ir.Value | None]:
    """`g b`, `g a`."""
    a, b = n.input(0), n.input(1)
    return [n.b.mul(n.g, b) if n.wants(0) else None, n.b.mul(n.g, a) if n.wants(1) else None]


@gradient("Div")
def div(n: NodeGradient) -> list[ir.Value | None]:
    """`g / b`, `-g y / b`: the square of `b` would overflow."""
    quotient = n.b.div(n.g, n.input(1))
    return [quotient, n.b.neg(n.b.mul(quotient, n.y)) if n.wants(1) else None]


@gradient("Mod")
def mod(n: NodeGradient) -> list[ir.Value | None]:
    """`g`, `-g trunc(a / b)`: of floating-point numbers the remainder `y` is `a - b trunc(a / b)`."""
    if not n.wants(1):
        return [n.g]
    a, b, y = (n.b.high(value) for value in (n.input(0), n.input(1), n.y))
    whole = n.b.op("Round", [n.b.div(n.b.sub(a, y), b)])
    return [n.g, n.b.neg(n.b.mul(n.b.high(n.g), whole))]


@gradient("Neg")
def neg(n: NodeGradient) -> ir.Value:
    """`-g`."""
    return n.b.neg(n.g)


@gradient("Sum")
def total(n: NodeGradient) -> list[ir.Value]:
    """`g` for each."""
    return [n.g] * len(n.node.inputs)


@gradient("Mean")
def mean(n: NodeGradient) -> list[ir.Value]:
    """`g / count` for each."""
    return [n.b.div(n.g, len(n.node.inputs))] * len(n.node.inputs)


@gradient("Identity", "Cast", "CastLike")
def same(n: NodeGradient) -> ir.Value:
    """`g`: the driver casts it to the type of the input."""
    return n.g


@gradient("Abs")
def absolute(n: NodeGradient) -> ir.Value:
    """`g sign(x)`."""
    return n.b.mul(n.g, n.b.op("Sign", [n.x]))


@gradient("Sqrt")
def sqrt(n: NodeGradient) -> ir.Value:
    """`g / (2 y)`: infinite at 0."""
    return n.b.div(n.b.mul(n.b.high(n.g), 0.5), n.b.high(n.y))


@gradient("Reciprocal")
def reciprocal(n: NodeGradient) -> ir.Value:
    """`-g y^2`."""
    y = n.b.high(n.y)
    return n.b.neg(n.b.mul(n.b.mul(n.b.high(n.g), y), y))


@gradient("Pow")
def power(n: NodeGradient) -> list[ir.Value | None]:
    """`g c x^(c-1)`, `g y log(x)`; where the first factor is 0, so is the product, be the other infinite."""
    x, exponent, g = n.b.high(n.x), n.input(1), n.b.high(n.g)
    dx = de = None
    constant = constant_of(exponent)
    if n.wants(0) and constant is not None and constant.size == 1:
        dx = _constant_power(n, x, g, float(constant.numpy().item()))
    elif n.wants(0):
        c = n.b.cast(exponent, x.dtype)
        slope = n.b.mul(c, n.b.pow(x, n.b.sub(c, 1)))
        dx = n.b.where(n.b.compare("Equal", c, 0), 0, n.b.mul(g, slope))
    if n.wants(1):
        c = n.b.cast(exponent, x.dtype)
        at_zero = n.b.op("And", [n.b.compare("Equal", x, 0), n.b.compare("GreaterOrEqual", c, 0)])
        de = n.b.where(at_zero, 0, n.b.mul(n.b.mul(g, n.b.high(n.y)), n.b.op("Log", [x])))
    return [dx, de]


def _constant_power(n: NodeGradient, x: ir.Value, g: ir.Value, c: float) -> ir.Value:
    if c == 0:
        return n.b.zeros_like(n.y)
    if c == 1:
        return n.g
    slope = x if c == 2 else n.b.pow(x, c - 1)
    return n.b.mul(n.b.mul(g, slope), c)


@gradient("Max", "Min")
def extreme(n: NodeGradient) -> list[ir.Value | None]:
    """`g` to the input that is the result; those that are equal share it evenly."""
    values = [n.input(index) for index in range(len(n.node.inputs))]
    if len(values) == 1:
        return [n.g]
    chosen = [compare(n, "Equal", value, n.y) for value in values]
    winners = n.b.cast(chosen[0], n.g.dtype)
    for mask in chosen[1:]:
        winners = n.b.add(winners, n.b.cast(mask, n.g.dtype))
    share = n.b.div(n.g, winners)
    return [n.b.where(mask, share, 0) if n.wants(index) else None for index, mask in enumerate(chosen)]


@gradient("Clip")
def clip(n: NodeGradient) -> Sequence[ir.Value | None]:
    """`g` from `lo` to `hi`, both included, else 0; what is cut off goes to the bound that cut it."""
    lo, hi = n.optional(1), n.optional(2)
    inside = []
    if lo is not None:
        inside.append(compare(n, "GreaterOrEqual", n.x, lo))
    if hi is not None:
        inside.append(compare(n, "LessOrEqual", n.x, hi))
    if not inside:
        return [n.g]
    dx = n.b.where(inside[0] if len(inside) == 1 else n.b.op("And", inside), n.g, 0) if n.wants(0) else None
    dlo = dhi = None
    if lo is not None and n.wants(1):
        below = n.b.op("Not", [inside[0]])
        if hi is not None:  # crossed bounds: the upper one is the result everywhere
            below = n.b.op("And", [below, compare(n, "LessOrEqual", lo, hi)])
        dlo = n.b.where(below, n.g, 0)
    if hi is not None and n.wants(2):
        raised = n.x if lo is None else n.b.maximum(n.x, lo)
        dhi = n.b.where(compare(n, "Greater", raised, hi), n.g, 0)
    return [dx, dlo, dhi]


@gradient("Where")
def where(n: NodeGradient) -> list[ir.Value | None]:
    """None, `where(c, g, 0)`, `where(c, 0, g)`: never a product, as 0 times infinity is no number."""
    condition = n.input(0)
    return [
        None,
        n.b.where(condition, n.g, 0) if n.wants(1) else None,
        n.b.where(condition, 0, n.g) if n.wants(2) else None,
    ]


@gradient("Range")
def arange(n: NodeGradient) -> list[ir.Value | None]:
    """`sum(g)`, zero, `sum(g i)`: element `i` is `start + i delta`; the limit only says how many there are."""
    dstart = n.b.sum(n.g, keepdims=False) if n.wants(0) else None
    ddelta = None
    if n.wants(2):
        steps = n.b.op("Round", [n.b.div(n.b.sub(n.b.high(n.y), n.b.high(n.x)), n.b.high(n.input(2)))])
        ddelta = n.b.sum(n.b.mul(n.b.high(n.g), steps), keepdims=False)
    return [dstart, None, ddelta]


@gradient("MatMul")
def matmul(n: NodeGradient) -> list[ir.Value | None]:
    """`g B'`, `A' g`, for matrices and stacks of them; vectors become matrices for the purpose."""
    a, b, g = n.input(0), n.input(1), n.g
    rows, columns = a.shape is not None and len(a.shape) == 1, b.shape is not None and len(b.shape) == 1
    a2 = n.b.unsqueeze(a, [0]) if rows else a
    b2 = n.b.unsqueeze(b, [1]) if columns else b
    g = n.b.unsqueeze(g, [-1]) if columns else g
    g = n.b.unsqueeze(g, [-2]) if rows else g
    da = db = None
    if n.wants(0):
        da = n.b.matmul(g, n.b.swap_last(b2))
        da = n.b.squeeze(n.b.sum_to(da, a2, low=n.sums_low(0)), [0]) if rows else da
    if n.wants(1) and not n.sums_low(1) and (flat := _flat_product(n, a2, b2, g)) is not None:
        db = flat
    elif n.wants(1):
        db = n.b.matmul(n.b.swap_last(a2), g)
        db = n.b.squeeze(n.b.sum_to(db, b2, low=n.sums_low(1)), [1]) if columns else db
    return [da, db]


def _flat_product(n: NodeGradient, a: ir.Value, b: ir.Value, g: ir.Value) -> ir.Value | None:
    """`A' g` of a stack of matrices times one matrix, as one product: the sum over the stack is taken inside of it.

    A product a matrix of the stack, summed afterwards, would hold as many copies of a weight as the stack is high, and
    round each of them. None where `b` is a stack as well, or its size is not known.
    """
    if a.shape is None or b.shape is None or len(b.shape) != 2 or len(a.shape) < 3:
        return None
    rows, columns = b.shape
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    return n.b.matmul(n.b.swap_last(n.b.reshape(a, [-1, rows])), n.b.reshape(g, [-1, columns]))
