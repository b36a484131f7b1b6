"""Operators that have a pole at zero: where a low format makes a number zero, a logarithm or quotient is infinite."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from amp_transpiler.graph.constness import single_number
from amp_transpiler.ops.names import is_standard

__all__ = ["POLES", "input_at_pole"]

POLES: Mapping[str, int] = MappingProxyType(
    {"Div": 1, "Log": 0, "LpNormalization": 0, "Pow": 0, "Reciprocal": 0, "ReduceLogSum": 0}
)
"""Operator -> the index of the input that makes its results, or what they amplify, grow without bound near zero."""


def input_at_pole(node: ir.Node) -> ir.Value | None:
    """Return the input of a node that has a pole where this is zero; None for other nodes.

    A power of a constant that is at least one has no pole.
    """
    if not is_standard(node) or node.op_type not in POLES:
        return None
    if node.op_type == "Pow" and (power := single_number(node.inputs[1])) is not None and power >= 1.0:
        return None
    return node.inputs[POLES[node.op_type]]
