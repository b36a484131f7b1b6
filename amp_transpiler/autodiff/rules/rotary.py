"""Gradient of RotaryEmbedding: a rotation by the opposite angles."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient


@gradient("RotaryEmbedding")
def rotary_embedding(n: NodeGradient) -> ir.Value:
    """`g` rotated back: the transpose of a rotation has the sine negated."""
    if n.wants(1) or n.wants(2):
        raise n.error("its cosine and sine caches have no gradient; make them constants or stop_gradient values")
    inputs = [n.g, n.input(1), n.b.neg(n.input(2)), n.optional(3)]
    attributes = {name: n.attribute(name) for name in n.node.attributes}
    return n.b.op("RotaryEmbedding", inputs if inputs[3] is not None else inputs[:3], attributes)
