"""Finer classes of operators: a Conv may be `Conv[depthwise]`, a Gather `Gather[embedding]`."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constness import initial_tensor
from amp_transpiler.graph.dtypes import FLOAT_DTYPES
from amp_transpiler.ops.names import is_standard, operator_name

__all__ = ["operator_class"]


def operator_class(node: ir.Node) -> str:
    """Return the operator's name, or the node's finer class (`Conv[depthwise]`) if it belongs to one."""
    name = operator_name(node)
    refine = _REFINEMENTS.get(name)
    finer = refine(node) if refine is not None else None
    return f"{name}[{finer}]" if finer else name


def _conv(node: ir.Node) -> str | None:
    weight = _input(node, 1)
    shape = _shape(weight)
    kernel = node.attributes.get("kernel_shape")
    spatial = len(shape) - 2 if shape else 0
    if kernel is not None:
        spatial = len(kernel.as_ints())
    if spatial == 3:
        return "3d"
    group = node.attributes.get("group")
    groups = group.as_int() if group is not None else 1
    # The weight is [M, C / group, ...]: with a second dimension of 1, every channel has a filter of its own.
    return "depthwise" if groups > 1 and shape and shape[1] == 1 else None


def _gather(node: ir.Node) -> str | None:
    axis = node.attributes.get("axis")
    if axis is not None and axis.as_int() != 0:
        return None
    table = initial_tensor(_origin(_input(node, 0)))
    return "embedding" if table is not None and table.dtype in FLOAT_DTYPES and len(table.shape) == 2 else None


def _max_pool(node: ir.Node) -> str | None:
    return "indices" if len(node.outputs) > 1 and node.outputs[1].name else None


def _pow(node: ir.Node) -> str | None:
    exponent = initial_tensor(_origin(_input(node, 1)))
    return "scalar" if exponent is not None and exponent.size == 1 else None


_REFINEMENTS = {"Conv": _conv, "Gather": _gather, "MaxPool": _max_pool, "Pow": _pow}


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _origin(value: ir.Value | None) -> ir.Value | None:
    """Follow a value back through operators that change nothing but its type."""
    while value is not None:
        node = value.producer()
        if node is None or not is_standard(node) or node.op_type not in ("Cast", "CastLike", "Identity"):
            break
        value = _input(node, 0)
    return value


def _shape(value: ir.Value | None) -> tuple[object, ...]:
    """Return the shape of a value as far as it is known; empty for a scalar, or if nothing is known."""
    tensor = initial_tensor(value)
    if tensor is not None:
        return tuple(tensor.shape)
    return () if value is None or value.shape is None else tuple(value.shape)
