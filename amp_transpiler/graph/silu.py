"""SiLU and QuickGELU as exporters write them: `x * Sigmoid(x)` and `x * Sigmoid(c * x)`."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.ops.names import is_standard

__all__ = ["is_silu_gate"]


def is_silu_gate(node: ir.Node) -> bool:
    """Whether a node is a Sigmoid with one reader, which multiplies by it what it is computed from.

    ONNX Runtime makes one QuickGelu of them, and of the product with a constant before the Sigmoid.
    """
    uses = list(node.outputs[0].uses()) if node.op_type == "Sigmoid" and is_standard(node) else []
    if len(uses) != 1 or uses[0].node.op_type != "Mul" or not is_standard(uses[0].node):
        return False
    if node.outputs[0].is_graph_output():
        return False
    other, source = uses[0].node.inputs[1 - uses[0].idx], node.inputs[0]
    scaling = None if source is None else source.producer()
    if other is source or scaling is None or scaling.op_type != "Mul" or not is_standard(scaling):
        return other is source
    a, b = scaling.inputs
    return (a is other and _is_number(b)) or (b is other and _is_number(a))


def _is_number(value: ir.Value | None) -> bool:
    tensor = constant_of(value)
    return tensor is not None and tensor.size == 1
