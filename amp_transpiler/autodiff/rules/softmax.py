"""Gradients of Softmax and LogSoftmax, with sums and products in float32."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.graph.builder import rank_of


@gradient("Softmax")
def softmax(n: NodeGradient) -> ir.Value:
    """`y (g - sum(g y))`; the difference comes first, since the two are close where y is near 1."""
    y, g = n.b.high(n.y), n.b.high(n.g)
    return n.b.mul(y, n.b.sub(g, n.b.sum(n.b.mul(g, y), _axes(n))))


@gradient("LogSoftmax")
def log_softmax(n: NodeGradient) -> ir.Value:
    """`g - exp(y) sum(g)`."""
    y, g = n.b.high(n.y), n.b.high(n.g)
    return n.b.sub(g, n.b.mul(n.b.op("Exp", [y]), n.b.sum(g, _axes(n))))


def _axes(n: NodeGradient) -> list[int]:
    """The axes that sum to one: all from `axis` on before opset 13, one since."""
    if n.b.opset >= 13:
        return [n.attribute("axis", -1)]
    rank = rank_of(n.x)
    return list(range(n.attribute("axis", 1) % rank, rank))
