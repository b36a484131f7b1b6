"""Products that may be computed in parts: each over some of the terms, in the low format, added up in float32.

Where a kernel adds up in the low format, a long sum may overflow on its way or lose digits, although all operands and
results fit. In parts, each sum is shorter. Part I of P has the terms I, I + P, I + 2P and so on, so that terms of one
sign or magnitude, which often lie side by side, come into all parts.
"""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.constraints import LowForm, is_float32

__all__ = ["PARTS", "PART_FORM", "PART_KEY", "may_split", "summed_terms"]

PARTS = (2, 4, 8, 16)
"""In how many parts a product may be computed."""

PART_FORM = LowForm(frozenset((0, 1)), frozenset())
"""The low form of a product in parts: its operands are low, its bias and its result are not."""

PART_KEY = "amp_transpiler.parts"
"""Metadata of a product that is computed in parts, or of one of these: how many there are."""

_FIRST_OPSET = 13  # whose ReduceSum reads its axes
_MATRIX = 2  # axes


def summed_terms(node: ir.Node) -> int | None:
    """Return over how many terms, or channels, a product can be parted; None if it is none that can.

    Its second operand is a float32 constant: the operands of others would have to be rearranged in each run.
    """
    if not is_standard(node) or len(node.inputs) < 2 or not is_float32(node.outputs[0]):
        return None
    data, weight = node.inputs[:2]
    tensor = constant_of(weight)
    if not is_float32(data) or not is_float32(weight) or tensor is None or constant_of(data) is not None:
        return None
    shape, attributes = [int(size) for size in tensor.shape.numpy()], node.attributes
    if node.op_type == "Conv":
        return shape[1] if attributes.get_int("group", 1) == 1 else None
    if node.op_type == "MatMul":
        has_rows = data.shape is not None and len(data.shape) >= _MATRIX
        return shape[0] if has_rows and len(shape) == _MATRIX else None
    if node.op_type == "Gemm":
        is_plain = all(attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
        turned = attributes.get_int("transB", 0)
        return shape[1 if turned else 0] if is_plain and not attributes.get_int("transA", 0) else None
    return None


def may_split(node: ir.Node, parts: int, opset: int) -> bool:
    """Whether a node can be computed in so many parts.

    Args:
        node: a node of a typed program.
        parts: how many.
        opset: the version of ONNX's own domain.
    """
    terms = summed_terms(node) if opset >= _FIRST_OPSET and parts in PARTS else None
    return terms is not None and terms >= parts and terms % parts == 0
