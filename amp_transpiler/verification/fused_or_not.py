"""Compares the conversion of a program that was fused by default with that of the program as it was before.

A fused operator is one decision. Where the limits take something back to float32, more becomes float32 with it than of
its pieces, so that the program without it may be the better one.
"""

from __future__ import annotations

from amp_transpiler.conversion import Conversion, Trials, candidate_of
from amp_transpiler.precision.balance import balanced
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.program.program import Program
from amp_transpiler.report.verdict import Verdict
from amp_transpiler.verification.verify import Compared

__all__ = ["is_better_unfused", "was_held_back"]


def was_held_back(fused: Compared, prepared: Program, policy: Policy, ranges: RangeFaults) -> bool:
    """Whether the limits kept nodes of a fused program in float32, or all of it.

    Args:
        fused: its conversion.
        prepared: the fused program.
        policy: how it was decided.
        ranges: a look-up of constants.
    """
    if fused.findings.failure or fused.comparison.repaired:
        return True
    if policy.objective != "balance" or _has_low(fused.conversion):
        return False
    return balanced(Trials(prepared, ranges).candidates(policy)) != "float32"  # which would be for the time


def is_better_unfused(fused: Compared, unfused: Compared, policy: Policy) -> bool:
    """Whether a program is better off as it was before: by its verdict, then by its predicted time.

    Args:
        fused: the conversion of the fused program.
        unfused: that of the program before.
        policy: how both were decided. Where it aims at the smallest file, the size comes before the time.
    """
    if _rank(fused) != _rank(unfused):
        return _rank(unfused) < _rank(fused)
    before = candidate_of(unfused.program, policy, written=_has_low(unfused.conversion))  # else it is its source
    after = candidate_of(fused.program, policy)
    if policy.objective == "low":
        return (before.bytes, before.milliseconds) < (after.bytes, after.milliseconds)
    return (before.milliseconds, before.bytes) < (after.milliseconds, after.bytes)


def _has_low(conversion: Conversion) -> bool:
    return any(decision.precision == "low" for decision in conversion.assignment.decisions.values())


_WORDS = tuple(Verdict)  # from the best one to the worst one


def _rank(compared: Compared) -> tuple[bool, int]:
    verdict = compared.findings.verdict
    return bool(compared.findings.failure), len(_WORDS) if verdict is None else _WORDS.index(verdict.word)
