"""Float32 sums of float16 values that are scattered onto a large one, such as gradients of a table of words."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static
from amp_transpiler.ops.names import is_standard

__all__ = ["float16_operands"]


def float16_operands(value: ir.Value) -> list[ir.Value]:
    """Return the float16 values that a ScatterND adds up in float32, the large one first; none of another value.

    The sum is finite if they are: float32 has room for more of them than a tensor has elements.
    """
    node = value.producer()
    if node is None or node.op_type != "ScatterND" or not is_standard(node):
        return []
    if node.attributes.get_string("reduction", "none") != "add":
        return []
    sources = [_float16_source(node.inputs[0]), _float16_source(node.inputs[2])]
    return [source for source in sources if source is not None] if None not in sources else []


def _float16_source(value: ir.Value | None) -> ir.Value | None:
    """Return the float16 value that one was cast from."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Cast" or not is_standard(node):
        return None
    source = node.inputs[0]
    is_float16 = source is not None and source.dtype == ir.DataType.FLOAT16 and is_static(source)
    return source if is_float16 else None
