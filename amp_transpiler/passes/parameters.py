"""Conversion of initializers and Constant nodes to the low format, computed when the model is written."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constants import low_tensor
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import set_dtype

__all__ = ["convert_constant", "copy_constant"]


def convert_constant(value: ir.Value, low: LowFormat) -> None:
    """Convert a float32 constant to the low format; it keeps its name."""
    tensor = _low_version(value, low, str(value.name))
    set_dtype(value, low.dtype)
    producer = value.producer()
    if producer is None:
        value.const_value = tensor
    else:
        _set_constant(producer, tensor)


def copy_constant(value: ir.Value, low: LowFormat, names: NameAllocator) -> ir.Value:
    """Put a low copy of a float32 constant beside it and return the copy; the original stays exact."""
    name = names.fresh(f"{value.name}__amp_{low.short}")
    shape = None if value.shape is None else ir.Shape(value.shape)
    copy = ir.Value(name=name, type=ir.TensorType(low.dtype), shape=shape)
    tensor = _low_version(value, low, name)
    producer = value.producer()
    if producer is None:
        copy.const_value = tensor
        graph = value.graph
        if graph is None:
            raise ValueError(f"initializer '{value.name}' belongs to no graph")
        graph.register_initializer(copy)
    else:
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[copy], name=names.fresh(name))
        node.metadata_props.update(producer.metadata_props)
        producer.append(node)
    return copy


def _low_version(value: ir.Value, low: LowFormat, name: str) -> ir.TensorProtocol:
    tensor = constant_of(value)
    if tensor is None:
        raise ValueError(f"'{value.name}' is not a constant")
    return low_tensor(tensor, low, name)


def _set_constant(node: ir.Node, tensor: ir.TensorProtocol) -> None:
    node.attributes["value"] = ir.AttrTensor("value", tensor)
