"""Compares attention as one operator with attention in pieces, where a program has few of them."""

from __future__ import annotations

import dataclasses

from amp_transpiler.conversion import candidate_of
from amp_transpiler.fusion.fuse import Fused, fuse
from amp_transpiler.ops.fusions import fusions_of
from amp_transpiler.precision.policy import Policy
from amp_transpiler.program.program import Program

__all__ = ["fused_at_least_time"]

_FEW = 2  # attentions; more of them share what tells which rows have a score that counts
_FUSION = "Attention"


def fused_at_least_time(program: Program, unfused: Program, choice: str, policy: Policy) -> tuple[Program, Fused]:
    """Fuse a prepared program in place, and return it; or one whose attentions are in pieces, if that is faster.

    A small attention costs less than what stands around its operator: rows are told that have no score that counts.

    Args:
        program: the program.
        unfused: a copy of it, which is not changed.
        choice: the option, as in `ops.fusions.fusions_of`.
        policy: how to decide.
    """
    fused = fuse(program, choice, policy)
    attentions = [fusion for fusion in fusions_of(choice) if fusion.name == _FUSION]
    written = sum(fused.operators.get(name, 0) for fusion in attentions for name in fusion.operators)
    if not 0 < written <= _FEW:
        return program, fused
    pieces = unfused.clone()
    fused_pieces = dataclasses.replace(fuse(pieces, f"{choice},-{_FUSION}", policy), slower=(_FUSION,))
    is_faster = candidate_of(pieces, policy).milliseconds < candidate_of(program, policy).milliseconds
    return (pieces, fused_pieces) if is_faster else (program, fused)
