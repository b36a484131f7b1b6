"""Operators that have a pole at zero, and what keeps their inputs from it.

A number that a low format makes zero becomes an infinite logarithm or quotient. A bound such as `Clip(x, 1e-10)` keeps
it from that where both are low: a single number that is not zero never becomes zero (`graph/constants.py`). A float32
bound does not, since the cast after it may make zero of what it lets pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from amp_transpiler.graph.constness import single_number
from amp_transpiler.ops.names import is_standard

__all__ = ["POLES", "input_at_pole", "up_to_bound"]

POLES: Mapping[str, int] = MappingProxyType(
    {"Div": 1, "Log": 0, "LpNormalization": 0, "Pow": 0, "Reciprocal": 0, "ReduceLogSum": 0}
)
"""Operator -> the index of the input that makes its results, or what they amplify, grow without bound near zero."""

_BOUNDS = {"Max": slice(None), "Clip": slice(1, 2)}  # operator -> the inputs that bound its result from below
_SAME_NUMBERS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def input_at_pole(node: ir.Node) -> ir.Value | None:
    """Return the input of a node that has a pole where this is zero; None for other nodes.

    A power of a constant that is at least one has no pole.
    """
    if not is_standard(node) or node.op_type not in POLES:
        return None
    if node.op_type == "Pow" and (power := single_number(node.inputs[1])) is not None and power >= 1.0:
        return None
    return node.inputs[POLES[node.op_type]]


def up_to_bound(node: ir.Node) -> tuple[ir.Node, ...]:
    """Return a node with a pole and the nodes before it, up to that which bounds its input from below.

    Args:
        node: of a typed program.

    Returns:
        The nodes of the chain, the last one first. Empty if no positive constant bounds the input.
    """
    at_pole = input_at_pole(node)
    before, chain = None if at_pole is None else at_pole.producer(), [node]
    while before is not None and is_standard(before):
        chain.append(before)
        if before.op_type in _BOUNDS:
            return tuple(chain) if any(map(_is_positive, before.inputs[_BOUNDS[before.op_type]])) else ()
        first = before.inputs[0] if before.op_type in _SAME_NUMBERS else None
        before = None if first is None else first.producer()
    return ()


def _is_positive(value: ir.Value | None) -> bool:
    number = single_number(value)
    return number is not None and number > 0.0
