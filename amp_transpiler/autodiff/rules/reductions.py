"""Gradients of reductions, computed in float32 for low types: they add up, and their outputs are small."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.rules.placing import axis_of
from amp_transpiler.graph.builder import is_static, rank_of, shape_of


def _axes(n: NodeGradient) -> list[int]:
    """The axes reduced, counted from the front, sorted."""
    rank = rank_of(n.x)
    given = n.constant(1) if n.optional(1) is not None else n.attribute("axes")
    if given is None or len(given) == 0:
        return [] if n.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis_of(int(axis), rank) for axis in given)


def _kept(n: NodeGradient, value: ir.Value) -> ir.Value:
    """The output, or its gradient, with the reduced axes of size 1, in float32 for low types."""
    value = n.b.high(value)
    return value if n.attribute("keepdims", 1) else n.b.unsqueeze(value, _axes(n))


def _sum(n: NodeGradient, x: ir.Value) -> ir.Value:
    return n.b.sum(x, _axes(n))


@gradient("ReduceSum")
def reduce_sum(n: NodeGradient) -> ir.Value:
    """`g` for every element."""
    g = n.g if n.attribute("keepdims", 1) else n.b.unsqueeze(n.g, _axes(n))
    return n.b.expand_like(g, n.x)


@gradient("ReduceMean")
def reduce_mean(n: NodeGradient) -> ir.Value:
    """`g / count`; in float32, as the count may be beyond float16."""
    g, axes = _kept(n, n.g), _axes(n)
    if is_static(n.x):
        share = n.b.div(g, float(np.prod([shape_of(n.x)[axis] for axis in axes])))
    else:
        sizes = n.b.op("Gather", [n.b.shape(n.x), n.b.constant(np.array(axes, np.int64))])
        share = n.b.div(g, n.b.cast(n.b.reduce("ReduceProd", sizes, None, keepdims=False), g.dtype))
    return n.b.expand_like(n.b.cast(share, n.x.dtype), n.x)


@gradient("ReduceMax", "ReduceMin")
def reduce_extreme(n: NodeGradient) -> ir.Value:
    """`g` for the element that was chosen, in equal parts if there are several."""
    g = _kept(n, n.g)
    chosen = n.b.compare("Equal", n.b.high(n.x), _kept(n, n.y))
    count = _sum(n, n.b.cast(chosen, g.dtype))
    return n.b.where(chosen, n.b.div(g, count), 0.0)


@gradient("ReduceProd")
def reduce_product(n: NodeGradient) -> ir.Value:
    """`g` times the product of the others: the product of all but zeros over `x`, as many zeros as there are minded."""
    b, g, x = n.b, _kept(n, n.g), n.b.high(n.x)
    zero = b.compare("Equal", x, 0.0)
    nonzero = b.where(zero, 1.0, x)
    product = b.mul(g, b.reduce("ReduceProd", nonzero, _axes(n)))
    zeros = _sum(n, b.cast(zero, x.dtype))
    of_zeros = b.where(b.compare("Equal", zeros, 1.0), product, 0.0)
    of_others = b.where(b.compare("Equal", zeros, 0.0), product, 0.0)
    return b.where(zero, of_zeros, b.div(of_others, nonzero))


@gradient("ReduceL1")
def reduce_l1(n: NodeGradient) -> ir.Value:
    """`g sign(x)`."""
    return n.b.mul(_kept(n, n.g), n.b.op("Sign", [n.b.high(n.x)]))


@gradient("ReduceL2")
def reduce_l2(n: NodeGradient) -> ir.Value:
    """`g x / y`, 0 where the norm `y` is."""
    y = _kept(n, n.y)
    zero = n.b.compare("Equal", y, 0.0)
    slope = n.b.where(zero, 0.0, n.b.div(_kept(n, n.g), n.b.where(zero, 1.0, y)))
    return n.b.mul(slope, n.b.high(n.x))


@gradient("ReduceSumSquare")
def reduce_sum_of_squares(n: NodeGradient) -> ir.Value:
    """`2 g x`."""
    return n.b.mul(n.b.mul(_kept(n, n.g), 2.0), n.b.high(n.x))


@gradient("ReduceLogSum")
def reduce_log_of_sum(n: NodeGradient) -> ir.Value:
    """`g / sum(x)`."""
    return n.b.expand_like(n.b.div(_kept(n, n.g), _sum(n, n.x)), n.x)


@gradient("ReduceLogSumExp")
def reduce_log_of_sum_of_exponentials(n: NodeGradient) -> ir.Value:
    """`g exp(x - y)`; where `y` is infinite, `x` is: minus infinity gets 0 and not NaN."""
    y = _kept(n, n.y)
    y = n.b.where(n.b.op("IsInf", [y]), 0.0, y)
    return n.b.mul(_kept(n, n.g), n.b.op("Exp", [n.b.sub(n.b.high(n.x), y)]))
