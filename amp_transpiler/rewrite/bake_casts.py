"""Casts of parameters to a low format, done once in the file instead of at every load."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import all_nodes, is_standard
from amp_transpiler.rewrite.parameters import convert_constant, copy_constant

__all__ = ["bake_casts"]

_FORMATS = {low.dtype: low for low in (FLOAT16, BFLOAT16)}


def bake_casts(model: ir.Model) -> int:
    """Replace casts of float32 initializers to a low format by low initializers, in place; return how many there were.

    An initializer that only such casts read keeps its name; one with other readers stays, beside its low copy.
    """
    names, casts = NameAllocator(model), dict[tuple[ir.Value, ir.DataType], list[ir.Node]]()
    for node in all_nodes(model):
        value = node.inputs[0] if _can_be_baked(node) else None
        if value is not None and node.outputs[0].dtype is not None:
            casts.setdefault((value, node.outputs[0].dtype), []).append(node)
    for (value, dtype), found in casts.items():
        if len(value.uses()) == len(found):
            convert_constant(value, _FORMATS[dtype])
            low = value
        else:
            low = copy_constant(value, _FORMATS[dtype], names)
        for node in found:
            node.outputs[0].replace_all_uses_with(low)
            assert node.graph is not None
            node.graph.remove(node, safe=True)
    return sum(map(len, casts.values()))


def _can_be_baked(node: ir.Node) -> bool:
    if node.op_type != "Cast" or not is_standard(node) or node.outputs[0].is_graph_output():
        return False
    value = node.inputs[0]
    plain = value is not None and value.is_initializer() and not value.is_graph_input() and not value.is_graph_output()
    return plain and value.dtype == ir.DataType.FLOAT and node.outputs[0].dtype in _FORMATS  # type: ignore[union-attr]  # plain says so
