"""Keeping ONNX Runtime 1.31 from a fusion that it has no kernel for.

Its optimizer turns Pow, ReduceMean, Add, Sqrt, Div, Mul and Mul into one SimplifiedLayerNormalization and absorbs casts
in front of it and before the last Mul. With bfloat16 on one side and float32 on the other, input against scale, CUDA
has no such kernel, and the session is refused. Written as a product, the square is not recognised, and everything runs
as it stands.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes, constant_of
from amp_transpiler.ops.names import is_standard

__all__ = ["guard_fusions"]

logger = logging.getLogger(__name__)

_MIXED = {ir.DataType.BFLOAT16, ir.DataType.FLOAT}


def guard_fusions(model: ir.Model) -> int:
    """Write the squares of such normalisations as products, in place; return how many."""
    squares = [node for node in all_nodes(model) if _is_square(node) and _is_mixed(node)]
    for node in squares:
        node.op_type = "Mul"
        node.replace_input_with(1, node.inputs[0])
    if squares:
        logger.info("%d squares written as products, since their fusion has no bfloat16 kernel", len(squares))
    return len(squares)


def _is_square(node: ir.Node) -> bool:
    if node.op_type != "Pow" or not is_standard(node):
        return False
    exponent = constant_of(node.inputs[1])
    return exponent is not None and exponent.size == 1 and float(exponent.numpy().reshape(())) == 2.0


def _is_mixed(square: ir.Node) -> bool:
    value = square.inputs[0]
    if value is None:
        return False
    cast = value.producer()
    origin = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else value
    return any(origin is not None and {origin.dtype, scale} == _MIXED for scale in _scales(value))


def _scales(value: ir.Value) -> Iterator[ir.DataType]:
    """Yield the types of the constants by which what is made of `value` is multiplied in the end."""
    for use in value.uses():
        if use.node.op_type not in ("Mul", "Div"):
            continue
        for reader in _past_casts(use.node.outputs[0]):
            if reader.op_type == "Mul":
                constants = (constant_of(operand) for operand in reader.inputs)
                yield from (tensor.dtype for tensor in constants if tensor is not None)


def _past_casts(value: ir.Value) -> Iterator[ir.Node]:
    for use in value.uses():
        if use.node.op_type == "Cast":
            yield from _past_casts(use.node.outputs[0])
        else:
            yield use.node
