"""Gradients of reductions, computed in float32 for float16 and bfloat16: they add up, and their outputs are small."""

from __future__ import annotations

import numpy as np

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.rules.placing import axis_of


def _axes(node: NodeGradient) -> list[int]:
    """The axes reduced, counted from the front, sorted."""
    rank = node.input(0).rank
    axes = node.constant(1) if node.optional(1) is not None else node.attribute("axes")
    if axes is None or len(axes) == 0:
        return [] if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis_of(int(axis), rank) for axis in axes)


def _keep(node: NodeGradient, value: Expr) -> Expr:
    """Return the output, or its gradient, with the reduced axes of size 1, in float32 for float16 and bfloat16."""
    value = value.wide()
    return value if node.attribute("keepdims", 1) else value.unsqueeze(*_axes(node))


@gradient("ReduceSum")
def reduce_sum(g: Expr, x: Expr, *, node: NodeGradient, keepdims: int = 1) -> Expr:
    return (g if keepdims else g.unsqueeze(*_axes(node))).expand_like(x)


@gradient("ReduceMean")
def reduce_mean(g: Expr, x: Expr, *, node: NodeGradient) -> Expr:
    g, axes = _keep(node, g), _axes(node)  # in float32: the count may exceed float16
    if x.is_static:
        share = g / float(np.prod([x.sizes[axis] for axis in axes]))
    else:
        sizes = x.shape_tensor().op("Gather", x.constant(np.array(axes, np.int64)))
        share = g / sizes.reduce("ReduceProd", keepdims=False).cast(g.dtype)
    return share.cast(x.dtype).expand_like(x)


@gradient("ReduceMax", "ReduceMin")
def reduce_extreme(g: Expr, x: Expr, *, y: Expr, node: NodeGradient) -> Expr:
    """`g` for the element that is the result; equal ones share it evenly."""
    g = _keep(node, g)
    chosen = x.wide().equals(_keep(node, y))
    count = chosen.cast(g.dtype).sum(_axes(node))
    return chosen.where(g / count, 0)


@gradient("ReduceProd")
def reduce_product(g: Expr, x: Expr, *, node: NodeGradient) -> Expr:
    """`g` times the product of the other elements.

    Without zeros that is `product / x`. With one zero, its own gradient is the product of the others and theirs is 0;
    with more, all are 0.
    """
    g, x = _keep(node, g), x.wide()
    zero = x.equals(0)
    nonzero = zero.where(1, x)
    product = g * nonzero.reduce("ReduceProd", _axes(node))
    zeros = zero.cast(x.dtype).sum(_axes(node))
    of_zero = zeros.equals(1).where(product, 0)
    of_others = zeros.equals(0).where(product, 0)
    return zero.where(of_zero, of_others / nonzero)


@gradient("ReduceL1")
def reduce_l1(g: Expr, x: Expr, *, node: NodeGradient) -> Expr:
    return _keep(node, g) * x.wide().sign()


@gradient("ReduceL2")
def reduce_l2(g: Expr, x: Expr, *, y: Expr, node: NodeGradient) -> Expr:
    """`g x / y`, and 0 where the norm `y` is 0."""
    y = _keep(node, y)
    zero = y.equals(0)
    slope = zero.where(0, _keep(node, g) / zero.where(1, y))
    return slope * x.wide()


@gradient("ReduceSumSquare")
def reduce_sum_of_squares(g: Expr, x: Expr, *, node: NodeGradient) -> Expr:
    return _keep(node, g) * 2 * x.wide()


@gradient("ReduceLogSum")
def reduce_log_of_sum(g: Expr, x: Expr, *, node: NodeGradient) -> Expr:
    return (_keep(node, g) / x.sum(_axes(node))).expand_like(x)


@gradient("ReduceLogSumExp")
def reduce_log_of_sum_of_exponentials(g: Expr, x: Expr, *, y: Expr, node: NodeGradient) -> Expr:
    """`g exp(x - y)`. An infinite `y` counts as 0, so that `x` at minus infinity gets 0 and not NaN."""
    y = _keep(node, y)
    y = y.op("IsInf").where(0, y)
    return _keep(node, g) * (x.wide() - y).exp()
