"""Quantized programs: QuantizeLinear and DequantizeLinear around plain operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from amp_transpiler.ops.kinds import COMPUTE
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.rules import State

__all__ = ["is_quantizing", "quantized_part", "quantizes_low"]

_QUANTIZING = {"QuantizeLinear", "DequantizeLinear"}
_SMALL = {
    ir.DataType.INT8,
    ir.DataType.UINT8,
    ir.DataType.INT4,
    ir.DataType.UINT4,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
}


def is_quantizing(node: ir.Node | None) -> bool:
    """Whether a node makes quantized numbers, or floats of them."""
    return node is not None and node.op_type in _QUANTIZING and is_standard(node)


def quantizes_low(node: ir.Node, state: State) -> bool:
    """Whether a node makes 8-bit numbers, or shorter ones, of a value that is computed low.

    That the value is rounded has decided about the integers; to cast it back would change them no more. Of values that
    are float32 they stay exact.
    """
    if not is_standard(node) or node.op_type != "QuantizeLinear" or node.outputs[0].dtype not in _SMALL:
        return False
    value = node.inputs[0]
    return value is not None and state.leaning(value) == "low"


def quantized_part(
    group: Collection[ir.Node], decisions: Mapping[ir.Node, Decision], inward: Collection[ir.Value], objective: str
) -> Reason | None:
    """Say why a group of connected low nodes is better left as a quantizer has written it; None if it is not.

    Args:
        group: the nodes.
        decisions: of all nodes.
        inward: the float32 values that are cast for the group.
        objective: the policy's. Of a group that takes casts of quantized values, more operators must compute than there
            are casts. One that takes none, and in which nothing computes, stays with `rules`; not with `low`, where
            lower precision is wanted wherever it costs nothing.
    """
    computing = sum(operator_name(node) in COMPUTE for node in group)
    if objective == "rules" and not computing and any(map(is_quantizing, group)):
        return Reason("island-quantized")
    casts = sum(is_quantizing(value.producer()) for value in inward) + sum(
        any(is_quantizing(use.node) and decisions[use.node].form is None for use in value.uses())
        for node in group
        for value in node.outputs
    )
    if not casts or casts < computing:
        return None
    return Reason("island-quantized-casts", {"casts": casts, "operators": computing})
