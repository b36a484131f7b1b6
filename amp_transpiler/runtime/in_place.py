"""Decides whether a step may write its new state where the old state lies.

ONNX Runtime writes to the memory that is bound, and orders nodes only by what they read. So each node that reads an old
value has to be one that the new value is computed from, or it might read the new one. The node that writes a value may
read the old one itself, if it does so number by number.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static
from amp_transpiler.graph.precedence import Precedence
from amp_transpiler.ops.names import is_standard

__all__ = ["in_place_obstacle"]

# Their kernels compute a number of the result from the numbers at its place.
_BY_NUMBER = frozenset({"Add", "Div", "Max", "Min", "Mul", "Sub", "Sum", "Where"})


def in_place_obstacle(model: ir.Model, updates: Mapping[str, str]) -> str:
    """Return why a step may not write its state in place, or an empty string.

    Args:
        model: the step as ONNX Runtime has optimized it: an operator that it has fused reads all that the ones that it
            replaces have read. There is no control flow in it.
        updates: persistable name -> output that replaces it.
    """
    for value in model.graph.outputs:
        if not is_static(value) or value.dtype is None:
            return f"the size of output '{value.name}' is not known"
    precedence = Precedence(model.graph)
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    for name, output in updates.items():
        if name not in inputs:
            return f"'{name}' is written without being read"
        writer = outputs[output].producer()
        if writer is None:
            return f"no node computes the new '{name}'"
        for reader in precedence.late_readers(inputs[name], writer):
            if reader is not writer:
                return f"{_described(reader)} may read '{name}' after {_described(writer)} has overwritten it"
            if not _reads_by_number(writer, inputs[name], outputs[output]):
                return f"{_described(writer)} overwrites '{name}' while it reads it"
    return ""


def _reads_by_number(writer: ir.Node, old: ir.Value, new: ir.Value) -> bool:
    is_direct = any(value is old for value in writer.inputs)
    return is_direct and is_standard(writer) and writer.op_type in _BY_NUMBER and old.shape == new.shape


def _described(node: ir.Node) -> str:
    return f"{node.op_type} '{node.name or node.outputs[0].name}'"
