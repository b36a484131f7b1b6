"""Turns the choice of a search into decisions, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.frontier import Frontier, Point
from amp_transpiler.precision.policy import Settled
from amp_transpiler.precision.reasons import Reason

__all__ = ["settled_by"]


def settled_by(
    point: Point, frontier: Frontier, reasons: Mapping[str, Reason], evidence: Evidence, low: LowFormat
) -> dict[str, Settled]:
    """Return the decisions of a choice, each with its reason: that without a limit where it is the same.

    Args:
        point: the choice.
        frontier: the choices that it is one of.
        reasons: node -> its reason where there is no limit.
        evidence: what the nodes are blamed for.
        low: the low format.
    """
    settled = {}
    for name in frontier.names:
        is_low = name in point.low
        spoils = math.isinf(evidence.node_errors.get(name, 0.0))
        is_new = not is_low and (spoils or name in frontier.free.low)
        reason = _why_high(name, evidence, low) if is_new else reasons[name]
        settled[name] = Settled("low" if is_low else "high", reason)
    return settled


def _why_high(name: str, evidence: Evidence, low: LowFormat) -> Reason:
    """Say why the limits keep a node in float32; by how much is in the report's row of it."""
    shares = {output: errors.get(name, 0.0) for output, errors in evidence.node_errors_by_output.items()}
    output = max(shares, key=lambda output: shares[output], default="")
    if math.isinf(shares.get(output, 0.0)):
        return Reason("tolerance-spoils", {"low": low.name, "output": output})
    if not shares.get(output):
        return Reason("tolerance-casts")
    return Reason("tolerance-error", {"low": low.name, "output": output})
