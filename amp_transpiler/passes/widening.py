"""Values of other float types made float32: for the emulation, the legalization and conversions."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import computed_tensor
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.ops.dtype_attributes import attribute_dtype, dtype_attribute, tensor_of

__all__ = ["is_low", "wide_tensor", "widen_attribute"]


def is_low(value: ir.Value | None) -> bool:
    """Whether `value` holds float16 or bfloat16 elements; that of a sequence or optional counts as well."""
    return value is not None and value.dtype in LOW_DTYPES


def widen_attribute(node: ir.Node, formats: Collection[ir.DataType] = LOW_DTYPES) -> bool:
    """Let an attribute that sets the type of outputs, one of `formats`, say float32; return whether there is one."""
    rule = dtype_attribute(node)
    if rule is None or attribute_dtype(node, rule) not in formats or rule.attribute not in node.attributes:
        return False  # without the attribute the type comes from an input, which becomes float32 as well
    if not any(node.outputs[index].dtype in formats for index in rule.outputs if index < len(node.outputs)):
        return False
    if rule.holds_tensor:
        tensor = tensor_of(node.attributes[rule.attribute])
        node.attributes[rule.attribute] = ir.AttrTensor(rule.attribute, wide_tensor(tensor, tensor.name or ""))
    else:
        node.attributes[rule.attribute] = ir.AttrInt64(rule.attribute, int(ir.DataType.FLOAT))
    return True


def wide_tensor(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Return the same numbers in float32, computed when they are read if they are many."""
    return computed_tensor(tensor, lambda array: array.astype(np.float32), ir.DataType.FLOAT, name)
