"""Casts of parameters done once, in the file, instead of at every load."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import convert_array
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16, LowFormat
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.parameters import convert_constant, copy_constant

__all__ = ["BakeCasts"]

_FORMATS = {low.dtype: low for low in (FLOAT16, BFLOAT16)}


class BakeCasts(Pass[PassResult]):
    """Replaces casts of float32 initializers to a 16-bit format by initializers in that format; counts the casts.

    1. An initializer that is read by such casts only (and by Shape and Size) is converted and keeps its name.
    2. An initializer with other readers stays, with a converted copy beside it.
    3. A cast stays if its result differs from the conversion in the file, which saturates and keeps a single number
       from becoming zero.
    """

    def call(self, model: ir.Model) -> PassResult:
        baked = 0
        names, casts = NameAllocator(model), dict[tuple[ir.Value, ir.DataType], list[ir.Node]]()
        for node in all_nodes(model):
            value = node.inputs[0] if _can_be_baked(node) else None
            if value is not None and node.outputs[0].dtype is not None:
                casts.setdefault((value, node.outputs[0].dtype), []).append(node)
        for (value, dtype), equal_casts in casts.items():
            if _is_the_same(value, _FORMATS[dtype]):
                _bake(value, _FORMATS[dtype], equal_casts, names)
                baked += len(equal_casts)
        return PassResult(model, modified=bool(baked), count=baked)


def _bake(value: ir.Value, low: LowFormat, casts: list[ir.Node], names: NameAllocator) -> None:
    shapes = sum(is_standard(use.node) and use.node.op_type in ("Shape", "Size") for use in value.uses())
    converted = value
    if len(value.uses()) == len(casts) + shapes:
        convert_constant(value, low)
    else:
        converted = copy_constant(value, low, names)
    for node in casts:
        node.outputs[0].replace_all_uses_with(converted)
        assert node.graph is not None
        node.graph.remove(node, safe=True)


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
