"""Float16 storage of the initializers that float32 nodes read: smaller files, at the cost of their precision."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constants import low_tensor
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import scopes

__all__ = ["halve_initializers"]


def halve_initializers(model: ir.Model) -> None:
    """Store float32 initializers as float16, in place; a Cast in front of their readers makes them float32 again.

    Initializers that callers may override, and outputs of their graph, stay as they are.
    """
    names = NameAllocator(model)
    for scope in scopes(model):
        for value in list(scope.graph.initializers.values()):
            if value.dtype == ir.DataType.FLOAT and not value.is_graph_input() and not value.is_graph_output():
                _halve(value, scope.graph, names)


def _halve(value: ir.Value, graph: ir.Graph, names: NameAllocator) -> None:
    tensor, name = value.const_value, str(value.name)
    if tensor is None or not value.uses():
        return
    restored = ir.Value(name=names.fresh(f"{name}_float32"), type=ir.TensorType(ir.DataType.FLOAT), shape=value.shape)
    value.replace_all_uses_with(restored)
    to = ir.AttrInt64("to", ir.DataType.FLOAT)
    cast = ir.Node("", "Cast", [value], [to], outputs=[restored], name=names.fresh(f"{name}/Cast"))
    graph.insert_before(next(iter(graph)), cast)
    value.const_value = low_tensor(tensor, FLOAT16, name)
    value.type = ir.TensorType(ir.DataType.FLOAT16)
