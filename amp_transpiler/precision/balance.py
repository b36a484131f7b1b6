"""Chooses by the default aim of level auto: 16 bits, unless they cost time.

Of all conversions that keep the limits, float32 among them, it is the smallest one whose predicted time is at most a
tenth above the fastest one's. One that is slower than float32 must save something for that: its file is smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.precision.policy import Policy, Settled
from amp_transpiler.precision.reasons import Reason

__all__ = ["Aim", "Candidate", "aimed", "balanced"]

Aim: TypeAlias = Literal["low", "time", "float32"]
"""What a conversion aims at: the most in lower precision, the least time, or float32 throughout."""

_SLOWER = 1.1  # times the fastest: a prediction is no measurement, and a smaller file is worth that much
_SMALLER = 0.99  # times float32's file: casts and shapes, which are written too, may outweigh what weights save


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A conversion that may be chosen.

    Attributes:
        milliseconds: its predicted time.
        bytes: of its weights.
        file_bytes: returns the size of its file; asked only where it decides.
    """

    milliseconds: float
    bytes: int
    file_bytes: Callable[[], int]


def balanced(candidates: Mapping[Aim, Candidate]) -> Aim:
    """Return the aim of the smallest conversion that is at most a tenth slower than the fastest one.

    Args:
        candidates: at least one. Of several that are as small, the fastest is taken.
    """
    least = min(candidate.milliseconds for candidate in candidates.values())
    fast = {aim: candidate for aim, candidate in candidates.items() if candidate.milliseconds <= _SLOWER * least}
    paying = [aim for aim, candidate in fast.items() if _gains(candidate, fast.get("float32"))]
    return min(paying, key=lambda aim: (candidates[aim].bytes, candidates[aim].milliseconds))


def _gains(candidate: Candidate, float32: Candidate | None) -> bool:
    """Whether a conversion is as fast as float32, or else smaller on disk; float32 itself is as fast."""
    if float32 is None or candidate.milliseconds <= float32.milliseconds:
        return True
    return candidate.file_bytes() <= _SMALLER * float32.file_bytes()


def aimed(policy: Policy, aim: Aim, model: ir.Model) -> Policy:
    """Return a policy with one of the aims.

    Args:
        policy: how to decide.
        aim: at what.
        model: the prepared program, whose nodes are settled where all are to be float32.
    """
    if aim != "float32":
        return dataclasses.replace(policy, objective=aim)
    settled = {str(node.name): Settled("high", Reason("float32-faster")) for node in all_nodes(model)}
    return dataclasses.replace(policy, objective="low", settled={**settled, **policy.settled})
