"""Tells conversions that are not needed: the source has what is asked for already, or nothing of it became low."""

from __future__ import annotations

from amp_transpiler.conversion import Conversion, convert
from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.ops.schema import own_opset
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.program.low_values import has_values_of
from amp_transpiler.program.program import Program

__all__ = ["adds_nothing", "is_the_source"]


def adds_nothing(
    program: Program, policy: Policy, ranges: RangeFaults, own_opset: int
) -> tuple[Program, Conversion] | None:
    """Convert a copy of a prepared program; return it with its record if the source is what was asked for already.

    That is so if it holds the wanted 16-bit format, nothing more becomes low and no cast is saved, or, where float32
    is wanted, if it holds no 16-bit floats.

    Args:
        program: the prepared program; not changed.
        policy: how to decide.
        ranges: a look-up of constants.
        own_opset: the opset of the source.
    """
    if program.widened or policy.opset not in (None, own_opset):
        return None
    if policy.low is not FLOAT32 and not has_values_of(program.model, (policy.low.dtype,)):
        return None
    trial = program.clone()
    conversion = convert(trial, policy, ranges)
    assignment = conversion.assignment
    gained = (
        conversion.converted,
        conversion.casts_removed,
        assignment.low_values,
        assignment.low_uses,
        assignment.rounded_values,
    )
    lowered = any(decision.precision == "low" for decision in assignment.decisions.values())
    return None if lowered or any(gained) else (trial, conversion)


def is_the_source(loaded: Program, program: Program, conversion: Conversion, policy: Policy) -> bool:
    """Whether a conversion changed nothing that matters, so that the source may be written in place of its result.

    Preparing names nodes, inlines functions and raises the opset for the sake of low nodes. Where none became low, and
    the target reads the source's own opset and IR version, a user wants the source.

    Args:
        loaded: the source.
        program: the converted program.
        conversion: the record of its conversion.
        policy: how it was decided.
    """
    opset, decisions = own_opset(loaded.model), conversion.assignment.decisions.values()
    return (
        not any(decision.precision == "low" for decision in decisions)
        and not (conversion.casts or conversion.converted or program.widened or policy.low_io)
        and program.step is None
        and not program.is_training
        and policy.opset in (None, opset)
        and opset <= policy.target.newest_opset
        and loaded.model.ir_version <= policy.target.newest_ir
    )
