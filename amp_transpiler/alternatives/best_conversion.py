"""Finds the best conversion of a job's program: as it is, rescaled, with products in parts, and before it was fused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from amp_transpiler.job import Job
from amp_transpiler.precision.policy import InParts, Policy
from amp_transpiler.program.program import Program
from amp_transpiler.report.facts import Rescaling
from amp_transpiler.targets.arithmetic import CUDA_TABLE
from amp_transpiler.targets.measured import arithmetic_for
from amp_transpiler.verification.accuracy import CannotCompare, Reference
from amp_transpiler.verification.verify import Compared, Programs, check_source, convert_and_compare, reference_for

__all__ = ["Best", "best_conversion", "source_beside_fused"]


@dataclasses.dataclass(frozen=True, slots=True)
class Best:
    """The best of the conversions that were compared.

    Attributes:
        compared: the conversion.
        prepared: the program that was decided about.
        is_fused: that is fused as far as the job's program is.
        rescaling: how it was rescaled, or why it was not; None where nothing is to be said.
        parts: product, by node name -> in how many parts it is computed; empty if none is for that reason alone.
    """

    compared: Compared
    prepared: Program
    is_fused: bool = True
    rescaling: Rescaling | None = None
    parts: Mapping[str, InParts] = dataclasses.field(default_factory=dict)


def best_conversion(job: Job) -> Best:
    """Convert the program; where it is held back, also otherwise, and return the best of its conversions.

    Otherwise is: rescaled, as it was before it was fused by default, and with products in parts.
    """
    return _or_in_parts(job, _best_of_whole(job))


def _best_of_whole(job: Job) -> Best:
    first = Best(_compared(job, job.program, job.reference, source_beside_fused(job)), job.program)
    best = _or_rescaled(job, first)
    if best.prepared is not first.prepared or job.unfused is None:
        return best
    if (unfused := _compared_unfused(job, first.compared)) is None:
        return best
    return _or_rescaled(job, Best(unfused, job.unfused, is_fused=False))


def _or_rescaled(job: Job, best: Best) -> Best:
    """Return a conversion, or that of the rescaled program if it is better."""
    evidence = best.compared.basis.evidence
    if job.plan.options.rescale != "auto" or evidence is None or not evidence.ranges:
        return best
    from amp_transpiler.alternatives.rescaled import is_better_rescaled, may_pay, may_rescale, rescaled

    if not may_rescale(best.prepared, job.policy):
        return best
    feeds = functools.partial(_feeds, job, best)
    proposal = rescaled(best.prepared, job.policy, job.ranges, evidence, feeds, job.clock.phase)
    if proposal is None:
        return best
    if proposal.program is None:
        return dataclasses.replace(best, rescaling=proposal.rescaling)
    if not may_pay(proposal.program, job.policy, job.ranges):
        return best
    other = _compared(job, proposal.program, None, source_beside_fused(job))
    if not is_better_rescaled(best.compared, other, job.policy):
        return best
    return Best(other, proposal.program, best.is_fused, proposal.rescaling)


def _or_in_parts(job: Job, best: Best) -> Best:
    """Return a conversion, or that with products in parts if it is better."""
    arithmetic = arithmetic_for(job.policy.target, job.policy.device)
    if job.plan.options.split_sums != "auto" or arithmetic is None or arithmetic.table == CUDA_TABLE:
        return best  # CUDA adds up in float32
    from amp_transpiler.alternatives.in_parts import is_better_in_parts, may_have_parts, parts_for, used_parts

    if not may_have_parts(best.prepared, job.policy):
        return best
    try:
        with job.clock.phase("find parts"):
            feeds = functools.partial(_feeds, job, best)
            parts = parts_for(best.prepared, best.compared, job.policy, job.ranges, feeds)
    except CannotCompare:
        return best
    if not parts:
        return best
    policy = dataclasses.replace(job.policy, parts=parts)
    other = _compared(job, best.prepared, None, source_beside_fused(job), policy)
    if not is_better_in_parts(best.compared, other, policy):
        return best
    return dataclasses.replace(best, compared=other, parts=used_parts(other.conversion, parts))


def _feeds(job: Job, best: Best) -> list[dict[str, Any]]:
    """Return the samples for a prepared program; made again where the answer to an equal question was known."""
    reference = best.compared.basis.reference
    if reference is None:
        reference = reference_for(job.source, best.prepared, job.policy, job.plan.questions)
    return reference.feeds_of(best.prepared.model)


def source_beside_fused(job: Job) -> Program | None:
    """Return what is written in place of a program that was fused by default, should it stay float32."""
    return job.unfused if job.plan.fuses_by_default else None


def _compared(
    job: Job,
    prepared: Program,
    reference: Reference | None,
    unfused: Program | None = None,
    policy: Policy | None = None,
) -> Compared:
    check_source(job.source, prepared, job.clock.phase)
    asked, task, phase = job.plan.questions, job.facts.task, job.clock.phase
    programs = Programs(job.source, prepared, unfused)
    return convert_and_compare(programs, policy or job.policy, job.ranges, asked, task, phase, reference)


def _compared_unfused(job: Job, fused: Compared) -> Compared | None:
    """Return the conversion of the program as it was before it was fused by default, if that is the better one."""
    if (unfused := source_beside_fused(job)) is None:
        return None
    from amp_transpiler.alternatives.fused_or_not import is_better_unfused, was_held_back

    if not was_held_back(fused):
        return None
    compared = _compared(job, unfused, None)  # without the reference, since a cache keeps what it is asked without
    return compared if is_better_unfused(fused, compared, job.policy) else None
