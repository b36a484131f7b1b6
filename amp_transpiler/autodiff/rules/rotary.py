"""Gradient of RotaryEmbedding."""

from __future__ import annotations

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import gradient


@gradient("RotaryEmbedding")
def rotary_embedding(
    g: Expr, _x: Expr, cosine: Expr, sine: Expr, positions: Expr | None = None, *, node: NodeGradient
) -> Expr:
    """`g` rotated by the opposite angles: the transpose of a rotation has the sine negated."""
    if node.wants(1) or node.wants(2):
        raise NotDifferentiable(
            "its cosine and sine caches have no gradient; make them constants or stop_gradient values"
        )
    attributes = {name: node.attribute(name) for name in node.source.attributes}
    where = [] if positions is None else [positions]
    return g.op("RotaryEmbedding", cosine, -sine, *where, **attributes)
