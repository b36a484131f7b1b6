"""Finds the nodes that compute the sequence of a float32 recurrence, for targets that build engines.

TensorRT-RTX 1.7.1 builds no float32 RNN, GRU or LSTM whose sequence was cast from 16 bits, be it straight or through
nodes that only change its shape ("Error during shape inference of reshape"). So no cast may stand there: what computes
the sequence stays float32, too. A cast before that does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.reasons import Reason

__all__ = ["before_recurrences"]

_RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
_SHAPING = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def before_recurrences(decisions: Mapping[ir.Node, Decision]) -> Iterator[tuple[ir.Node, Reason]]:
    """Yield the low nodes that have to be float32, each with the reason.

    Args:
        decisions: node -> its precision.
    """
    for node, decision in decisions.items():
        if decision.precision == "high" and node.op_type in _RECURRENT and is_standard(node):
            reason = Reason("before-recurrence", {"operator": node.op_type, "node": str(node.name)})
            for maker in _makers(node.inputs[0]):
                if maker in decisions and decisions[maker].precision == "low":
                    yield maker, reason


def _makers(value: ir.Value | None) -> Iterator[ir.Node]:
    """Yield the node that computes a value; where it only changes a shape, what computes that before it, too."""
    while value is not None and (maker := value.producer()) is not None:
        yield maker
        if maker.op_type not in _SHAPING or not is_standard(maker):
            return
        value = maker.inputs[0]
