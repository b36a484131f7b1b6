"""Conversion of initializers and Constant nodes to the low format, computed when the model is written."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constants import computed_tensor, limited_array, low_tensor
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import set_dtype
from amp_transpiler.graph.walk import Use
from amp_transpiler.passes.inserted_casts import redirect

__all__ = ["convert_constant", "copy_constant", "limit_constant"]


def convert_constant(value: ir.Value, low: LowFormat) -> None:
    """Convert a float32 constant to the low format; it keeps its name."""
    tensor = _low_version(value, low, str(value.name))
    set_dtype(value, low.dtype)
    _replace(value, tensor)


def copy_constant(value: ir.Value, low: LowFormat, names: NameAllocator) -> ir.Value:
    """Put a low copy of a float32 constant beside it and return the copy; the original stays exact."""
    name = names.fresh(f"{value.name}__amp_{low.short}")
    return _beside(value, _low_version(value, low, name), names)


def _beside(value: ir.Value, tensor: ir.TensorProtocol, names: NameAllocator) -> ir.Value:
    """Put a constant of the same kind beside another, under the tensor's name; return it."""
    shape = None if value.shape is None else ir.Shape(value.shape)
    copy = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=shape)
    producer = value.producer()
    if producer is None:
        copy.const_value = tensor
        graph = value.graph
        if graph is None:
            raise ValueError(f"initializer '{value.name}' belongs to no graph")
        graph.register_initializer(copy)
    else:
        attributes = [ir.AttrTensor("value", tensor)]
        node = ir.Node("", "Constant", [], attributes, outputs=[copy], name=names.fresh(str(tensor.name)))
        node.metadata_props.update(producer.metadata_props)
        producer.append(node)
    return copy


def limit_constant(value: ir.Value, uses: list[Use], low: LowFormat, names: NameAllocator) -> None:
    """Limit what is beyond the format's range in a float32 constant to half of it, for some of its readers.

    Args:
        value: the constant. It changes itself if nothing else reads it.
        uses: the readers.
        low: the format.
        names: of the model.
    """
    tensor = constant_of(value)
    if tensor is None:
        raise ValueError(f"'{value.name}' is not a constant")
    alone = len(value.uses()) == len(uses) and not value.is_graph_output()
    name = str(value.name) if alone else names.fresh(f"{value.name}__amp_mask")
    limited = computed_tensor(tensor, lambda array: limited_array(array, low), ir.DataType.FLOAT, name)
    if alone:
        _replace(value, limited)
    else:
        redirect(uses, _beside(value, limited, names))


def _replace(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    producer = value.producer()
    if producer is None:
        value.const_value = tensor
    else:
        producer.attributes["value"] = ir.AttrTensor("value", tensor)


def _low_version(value: ir.Value, low: LowFormat, name: str) -> ir.TensorProtocol:
    tensor = constant_of(value)
    if tensor is None:
        raise ValueError(f"'{value.name}' is not a constant")
    return low_tensor(tensor, low, name)
