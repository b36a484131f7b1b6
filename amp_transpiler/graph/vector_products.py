"""Products of a transposed matrix and a vector, which ONNX Runtime fuses wrongly (docs/onnxruntime_faults.md)."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard

__all__ = ["vector_products"]

_LOOKED_THROUGH = ("Cast", "Identity", "Mul", "Div")  # between Transpose and product; ONNX Runtime may take them away
_DEPTH = 4


def vector_products(model: ir.Model, *, unknown: bool = False) -> list[ir.Node]:
    """List every MatMul of a transposed left operand and a right operand with one dimension.

    Args:
        model: its shapes must be inferred.
        unknown: whether a right operand whose rank is not known counts, too.
    """
    return [
        node
        for node in all_nodes(model)
        if node.op_type == "MatMul"
        and is_standard(node)
        and _is_vector(node.inputs[1], unknown)
        and _is_transposed(node.inputs[0], _DEPTH)
    ]


def _is_vector(value: ir.Value | None, unknown: bool) -> bool:
    return value is not None and (unknown if value.shape is None else value.shape.rank() == 1)


def _is_transposed(value: ir.Value | None, depth: int) -> bool:
    node = None if value is None else value.producer()
    if node is None or not is_standard(node):
        return False
    if node.op_type == "Transpose":
        return True
    return depth > 0 and node.op_type in _LOOKED_THROUGH and any(_is_transposed(x, depth - 1) for x in node.inputs)
