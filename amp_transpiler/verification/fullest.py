"""Tries the conversions with the largest share of results in 16 bits, where an engine is built of the file.

Level auto keeps in float32 what other inputs than the sample may spoil, and what costs more casts than it is worth. For
a target that builds engines casts are fused or cheap, and the share counts. So conversions are proposed in which values
near zero, sums along open sizes and islands between casts are low as well. A comparison decides: on the samples, at a
tenth, at three times, and at a hundredth of their level, where a recording is as good as silent.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping

from amp_transpiler.graph.walk import in_order
from amp_transpiler.precision.near_zero import near_zero
from amp_transpiler.precision.policy import Policy, Settled
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.verification.accuracy import CannotCompare, Reference
from amp_transpiler.verification.conversions import Conversions, Measured
from amp_transpiler.verification.judge import Judge

__all__ = ["fullest"]

logger = logging.getLogger(__name__)

_NO_WORSE = 1.02  # times the error of the conversion by the rules at a hundredth of the level


def fullest(conversions: Conversions, policy: Policy, first: Measured, *, limited: bool) -> Measured | None:
    """Return a conversion with more low nodes than another one that keeps the limits, too; None if there is none.

    Args:
        conversions: the program, and the data to compare on.
        policy: how to decide, with the ranges that were seen.
        first: the conversion by the rules.
        limited: there are limits, which can refuse it.

    Raises:
        CannotCompare: an emulated program does not run.
        InputError: the user's metric fails.
    """
    if not limited or policy.settled or policy.objective != "low" or not policy.target.builds_engines:
        return None
    known = _low_nodes(first)
    for proposed, ranges in _proposals(conversions, policy, first):
        measured = dataclasses.replace(conversions, ranges=ranges, trials=None).measured(proposed, confirm=True)
        more = _low_nodes(measured)
        logger.info("%d nodes low, for %d: %.3g of what is allowed", more, known, measured.excess)
        if more <= known:
            return None
        if measured.excess <= 1.0 and _is_quiet_enough(conversions, measured, first):
            return dataclasses.replace(measured, settled=_settled(measured))
    return None


def _proposals(conversions: Conversions, policy: Policy, first: Measured) -> Iterator[tuple[Policy, RangeFaults]]:
    """Yield how to decide, and about which constants, the boldest way first."""
    widest = dataclasses.replace(policy, numerics="compared")
    yield widest, RangeFaults(policy.low, strict=False)
    seen = policy.evidence.ranges if policy.evidence is not None else {}
    steep = near_zero(list(in_order(conversions.prepared.model.graph)), policy.low, seen, policy.headroom)
    forced = {
        node: decision.reason
        for node, decision in first.conversion.assignment.decisions.items()
        if decision.precision == "high" and not decision.neutral
    }
    for kept in filter(None, (steep, forced)):
        settled = {str(node.name): Settled("high", reason) for node, reason in kept.items()}
        yield dataclasses.replace(widest, settled=settled), conversions.ranges


def _settled(measured: Measured) -> Mapping[str, Settled]:
    """Return the decisions of a conversion, so that it is made again by whatever policy."""
    return {
        str(node.name): Settled(decision.precision, decision.reason)
        for node, decision in measured.conversion.assignment.decisions.items()
        if decision.precision != "untouched"
    }


def _low_nodes(measured: Measured) -> int:
    return sum(decision.precision == "low" for decision in measured.conversion.assignment.decisions.values())


def _is_quiet_enough(conversions: Conversions, measured: Measured, first: Measured) -> bool:
    """Whether a conversion keeps the limits at a hundredth of the level, or is no worse there than another one."""
    if conversions.gains is None:
        return True
    quieter = conversions.gains.quieter()

    def judge_of(reference: Reference) -> Judge:
        return conversions.at(reference).judge(measured.limits, is_float32=False)

    try:
        excess, error = quieter.rounded_once(measured.program, judge_of)
        return excess <= 1.0 or error <= _NO_WORSE * quieter.rounded_once(first.program, judge_of)[1]
    except CannotCompare as reason:
        logger.info("not compared at a hundredth of the level: %s", reason)
        return False
