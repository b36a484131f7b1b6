"""Compares the conversion of a program that was fused by default with that of the program as it was before.

A fused operator is one decision. Where the limits take something back to float32, more becomes float32 with it than of
its pieces, so that the program without it may be the better one.
"""

from __future__ import annotations

from amp_transpiler.conversion import Conversion, candidate_of
from amp_transpiler.precision.balance import Candidate
from amp_transpiler.precision.policy import Policy
from amp_transpiler.report.verdict import Verdict
from amp_transpiler.verification.verify import Compared

__all__ = ["cost", "has_low_nodes", "is_better_unfused", "rank", "was_held_back"]


def was_held_back(fused: Compared) -> bool:
    """Whether the limits had a say in the conversion of a fused program, or nothing of it is low.

    Args:
        fused: its conversion.
    """
    return bool(fused.findings.failure) or fused.searched or not has_low_nodes(fused.conversion)


def is_better_unfused(fused: Compared, unfused: Compared, policy: Policy) -> bool:
    """Whether a program is better off as it was before: by its verdict, then by its predicted time.

    What stays float32 throughout is the source, which nobody asked to fuse.

    Args:
        fused: the conversion of the fused program.
        unfused: that of the program before.
        policy: how both were decided. Where it aims at the smallest file, the size comes before the time.
    """
    if not has_low_nodes(fused.conversion):
        return True
    if rank(fused) != rank(unfused):
        return rank(unfused) < rank(fused)
    before = candidate_of(unfused.program, policy, written=has_low_nodes(unfused.conversion))  # else it is its source
    return cost(before, policy) < cost(candidate_of(fused.program, policy), policy)


def cost(candidate: Candidate, policy: Policy) -> tuple[float, float]:
    """Return what orders conversions of one verdict, the best one first: their time, or their size if that counts."""
    if policy.objective == "low":
        return candidate.bytes, candidate.milliseconds
    return candidate.milliseconds, candidate.bytes


def has_low_nodes(conversion: Conversion) -> bool:
    """Whether a conversion made any node low."""
    return any(decision.precision == "low" for decision in conversion.assignment.decisions.values())


_WORDS = tuple(Verdict)  # from the best one to the worst one


def rank(compared: Compared) -> tuple[bool, int]:
    """Return what orders conversions by their verdicts, the best one first."""
    verdict = compared.findings.verdict
    return bool(compared.findings.failure), len(_WORDS) if verdict is None else _WORDS.index(verdict.word)
