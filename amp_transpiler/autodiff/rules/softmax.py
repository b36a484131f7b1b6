"""Gradients of Softmax and LogSoftmax. Sums are in float32."""

from __future__ import annotations

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import gradient


@gradient("Softmax")
def softmax(g: Expr, x: Expr, *, y: Expr, node: NodeGradient) -> Expr:
    """`y (g - sum(g y))`, the difference first: its terms are close where `y` is near 1."""
    axes = _axes(x, node)
    if axes in ([-1], [x.rank - 1]):
        return y * (g - g.dot(y))
    y, g = y.wide(), g.wide()
    return y * (g - (g * y).sum(axes))


@gradient("LogSoftmax")
def log_softmax(g: Expr, x: Expr, *, y: Expr, node: NodeGradient) -> Expr:
    y, g = y.wide(), g.wide()
    return g - y.exp() * g.sum(_axes(x, node))


def _axes(x: Expr, node: NodeGradient) -> list[int]:
    """The axes along which the result sums to 1: before opset 13 all axes from `axis` on, later one."""
    if node.opset >= 13:
        return [node.attribute("axis", -1)]
    return list(range(node.attribute("axis", 1) % x.rank, x.rank))
