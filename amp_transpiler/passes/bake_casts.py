"""Casts of parameters to a low format, done once in the file instead of at every load."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import convert_array
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16, LowFormat
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.parameters import convert_constant, copy_constant

__all__ = ["bake_casts"]

_FORMATS = {low.dtype: low for low in (FLOAT16, BFLOAT16)}


def bake_casts(model: ir.Model) -> int:
    """Replace casts of float32 initializers to a low format by low initializers, in place; return how many there were.

    An initializer that only such casts read, and what asks for its shape, keeps its name; one with other readers stays,
    beside its low copy. A cast that would not give what the file's conversion gives is left: that saturates, and keeps
    a single number off zero.
    """
    baked = 0
    names, casts = NameAllocator(model), dict[tuple[ir.Value, ir.DataType], list[ir.Node]]()
    for node in all_nodes(model):
        value = node.inputs[0] if _can_be_baked(node) else None
        if value is not None and node.outputs[0].dtype is not None:
            casts.setdefault((value, node.outputs[0].dtype), []).append(node)
    for (value, dtype), found in casts.items():
        low_format = _FORMATS[dtype]
        if not _is_the_same(value, low_format):
            continue
        shapes = sum(is_standard(use.node) and use.node.op_type in ("Shape", "Size") for use in value.uses())
        if len(value.uses()) == len(found) + shapes:
            convert_constant(value, low_format)
            low = value
        else:
            low = copy_constant(value, low_format, names)
        for node in found:
            node.outputs[0].replace_all_uses_with(low)
            assert node.graph is not None
            node.graph.remove(node, safe=True)
            baked += 1
    return baked


def _can_be_baked(node: ir.Node) -> bool:
    if node.op_type != "Cast" or not is_standard(node) or node.outputs[0].is_graph_output():
        return False
    value = node.inputs[0]
    plain = value is not None and value.is_initializer() and not value.is_graph_input() and not value.is_graph_output()
    return plain and value.dtype == ir.DataType.FLOAT and node.outputs[0].dtype in _FORMATS  # type: ignore[union-attr]  # plain says so


def _is_the_same(value: ir.Value, low: LowFormat) -> bool:
    """Whether converting an initializer in the file rounds as a cast does."""
    if value.const_value is None:
        return False
    array = value.const_value.numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.array_equal(convert_array(array, low), array.astype(low.numpy), equal_nan=True))
