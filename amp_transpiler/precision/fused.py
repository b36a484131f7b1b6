"""Advice about a source that ONNX Runtime's optimizer has written."""

from __future__ import annotations

from amp_transpiler.ops.kinds import FUSED
from amp_transpiler.ops.names import operator_name
from amp_transpiler.precision.assignment import Assignment

__all__ = ["fused_advice"]

_MANY = 0.1  # of the nodes with a float32 tensor
_LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")  # domains of layouts that suit one device


def fused_advice(assignment: Assignment) -> tuple[str, ...]:
    """Return a note if many nodes are operators that ONNX Runtime's optimizer makes, and that have no low kernel."""
    counts: dict[str, int] = {}
    for node in assignment.without_form:
        if node.domain in _LAYOUTS or operator_name(node) in FUSED:
            counts[operator_name(node)] = counts.get(operator_name(node), 0) + 1
    total = sum(decision.precision != "untouched" for decision in assignment.decisions.values())
    if not counts or sum(counts.values()) < _MANY * total:
        return ()
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    stay = f"{sum(counts.values())} of {total} nodes have no {assignment.low.name} form"
    return (f"{stay}: {listed}, which ONNX Runtime's optimizer makes; if it did, convert the model it was given",)
