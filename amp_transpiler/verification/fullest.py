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

import onnx_ir as ir

from amp_transpiler.conversion import Trials
from amp_transpiler.graph.walk import in_order
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.assignment import Assignment, low_names
from amp_transpiler.precision.near_zero import near_zero
from amp_transpiler.precision.policy import Policy, Settled
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.verification.accuracy import CannotCompare, Reference
from amp_transpiler.verification.conversions import Conversions, Measured
from amp_transpiler.verification.judge import Judge

__all__ = ["fullest"]

logger = logging.getLogger(__name__)

_NO_WORSE = 1.02  # times the error of the conversion by the rules at a hundredth of the level


def fullest(conversions: Conversions, policy: Policy, *, limited: bool) -> Measured | None:
    """Return a conversion with more low nodes than that by the rules, which keeps the limits; None if there is none.

    For a target that builds engines.

    Args:
        conversions: the program, and the data to compare on.
        policy: how to decide by the rules, with the ranges that were seen.
        limited: there are limits, which can refuse it.

    Raises:
        CannotCompare: an emulated program does not run.
        InputError: the user's metric fails.
    """
    if not limited or policy.settled or policy.objective != "low":
        return None
    model = conversions.prepared.model
    by_rules = assign(model, policy, conversions.ranges)
    tried = {low_names(by_rules)}
    for proposed, ranges in _proposals(conversions, policy, by_rules):
        low = low_names(assign(model, proposed, ranges))
        if low in tried or len(low) <= len(low_names(by_rules)):
            continue
        tried.add(low)
        measured = dataclasses.replace(conversions, ranges=ranges, trials=None).measured(proposed, confirm=True)
        logger.info("%d nodes low: %.3g of what is allowed", len(low), measured.excess)
        if measured.excess <= 1.0 and _is_quiet_enough(conversions, measured, policy):
            return dataclasses.replace(measured, settled=_settled(measured.conversion.assignment))
    return None


def _proposals(conversions: Conversions, policy: Policy, by_rules: Assignment) -> Iterator[tuple[Policy, RangeFaults]]:
    """Yield how to decide, and about which constants, the boldest way first.

    What is near zero is low only where signals or pictures run at other levels, too.
    """
    widest = dataclasses.replace(policy, numerics="compared")
    if conversions.gains is not None and conversions.gains.references():
        yield widest, RangeFaults(policy.low, strict=False)
    seen = policy.evidence.ranges if policy.evidence is not None else {}
    steep = near_zero(list(in_order(conversions.prepared.model.graph)), policy.low, seen, policy.headroom)
    yield dataclasses.replace(widest, settled=_in_float32(steep)), conversions.ranges
    forced = {
        node: decision.reason
        for node, decision in by_rules.decisions.items()
        if decision.precision == "high" and not decision.neutral
    }
    yield dataclasses.replace(widest, settled=_in_float32(forced)), conversions.ranges


def _in_float32(nodes: Mapping[ir.Node, Reason]) -> dict[str, Settled]:
    return {str(node.name): Settled("high", reason) for node, reason in nodes.items()}


def _settled(assignment: Assignment) -> Mapping[str, Settled]:
    """Return the decisions of a conversion, so that it is made again by whatever policy."""
    return {
        str(node.name): Settled(decision.precision, decision.reason)
        for node, decision in assignment.decisions.items()
        if decision.precision != "untouched"
    }


def _is_quiet_enough(conversions: Conversions, measured: Measured, policy: Policy) -> bool:
    """Whether a conversion keeps the limits at a hundredth of the level, or is no worse there than one by the rules."""
    if conversions.gains is None:
        return True
    quieter = conversions.gains.quieter()

    def judge_of(reference: Reference) -> Judge:
        return conversions.at(reference).judge(measured.limits, is_float32=False)

    try:
        excess, error = quieter.rounded_once(measured.program, judge_of)
        if excess <= 1.0:
            return True
        by_rules = Trials(conversions.prepared, conversions.ranges, conversions.unfused).taken(policy)[0]
        return error <= _NO_WORSE * quieter.rounded_once(by_rules, judge_of)[1]
    except CannotCompare as reason:
        logger.info("not compared at a hundredth of the level: %s", reason)
        return False
