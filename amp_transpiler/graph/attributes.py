"""Attributes of nodes from Python's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

__all__ = ["attribute_of"]

# onnx_ir asks most values whether they fit a protocol, which takes longer than to make the rest of the node.
_FORMS: Mapping[type, Callable[[str, Any], ir.Attr]] = {
    int: ir.AttrInt64,
    float: ir.AttrFloat32,
    str: ir.AttrString,
    ir.Tensor: ir.AttrTensor,
}


def attribute_of(name: str, content: Any) -> ir.Attr:
    """Return an attribute whose type follows from its content: a number, a text, a list, a tensor, a graph, a type."""
    form = _FORMS.get(type(content))
    if form is not None:
        return form(name, content)
    if isinstance(content, (list, tuple)) and content and all(type(item) is int for item in content):
        return ir.AttrInt64s(name, content)
    return ir.convenience.convert_attribute(name, content)
