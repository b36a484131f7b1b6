"""Attributes that set the element type of outputs."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import convert_array, read
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.ops.dtype_attributes import attribute_dtype, dtype_attribute, tensor_of

__all__ = ["retype_attributes"]


def retype_attributes(node: ir.Node, outputs: Collection[int], low: LowFormat) -> bool:
    """Change the attribute that sets the type of one of `outputs` to `low`; return whether it was another type."""
    rule = dtype_attribute(node)
    if rule is None or not set(rule.outputs) & set(outputs) or attribute_dtype(node, rule) == low.dtype:
        return False
    if not rule.holds_tensor:
        node.attributes[rule.attribute] = ir.AttrInt64(rule.attribute, int(low.dtype))
        return True
    attribute = node.attributes.get(rule.attribute)
    if attribute is None:  # ConstantOfShape's default is one float32 zero
        zero = ir.Tensor(np.zeros(1, low.numpy), dtype=low.dtype)
        node.attributes[rule.attribute] = ir.AttrTensor(rule.attribute, zero)
        return True
    rounded = read(tensor_of(attribute), lambda array: convert_array(array, low))
    tensor = ir.Tensor(rounded, dtype=low.dtype, name=tensor_of(attribute).name)
    node.attributes[rule.attribute] = ir.AttrTensor(rule.attribute, tensor)
    return True
