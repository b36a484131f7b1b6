"""Rescales a program exactly where ranges forbid nodes, and proves by a run that no result changed by a bit."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.alternatives.fused_or_not import cost, has_low_nodes, rank
from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import open_program
from amp_transpiler.conversion import Trials, candidate_of
from amp_transpiler.errors import AmpError
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.phrases import counted
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.balance import balanced
from amp_transpiler.precision.constraints import Constraints, LowForm
from amp_transpiler.precision.evidence import Evidence, range_fault
from amp_transpiler.precision.numerics import normalisations
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.program.program import Program
from amp_transpiler.report.facts import Rescaling
from amp_transpiler.rescale.apply import scaled_copy
from amp_transpiler.rescale.choose import NOTHING, Scalings, choose_scalings
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.verification.accuracy import CannotCompare, named_outputs
from amp_transpiler.verification.randomness import random_upstream
from amp_transpiler.verification.verify import Compared

__all__ = ["Rescaled", "computes_the_same", "is_better_rescaled", "may_pay", "may_rescale", "replayed", "rescaled"]

logger = logging.getLogger(__name__)

_NOT_RUN: tuple[type[Exception], ...] = (*RUN_ERRORS, AmpError)

_HELD_BY_VALUES = frozenset({"constant", "neighbours", "range"})
"""Subjects of the reasons that other magnitudes may lift."""
_HELD_NEAR_ZERO = frozenset({"near-zero", "read-near-zero"})
"""Codes of others."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rescaled:
    """A rescaled program, and the words about it.

    Attributes:
        program: the program; None where it would not compute the same.
        rescaling: what the report says.
    """

    program: Program | None
    rescaling: Rescaling


def may_rescale(program: Program, policy: Policy) -> bool:
    """Whether exact rescaling has a meaning for a prepared program.

    A training step owns its constants as much as its user does, and what a recipe or a preset decided stays as it is.
    Random operators draw other numbers in each run, so that nothing could be proven.
    """
    decides = policy.objective != "rules" and policy.low is FLOAT16 and not policy.settled
    is_plain = program.step is None and not program.has_variables and program.merged is None
    return decides and is_plain and not random_upstream(program.model)


def rescaled(
    prepared: Program,
    policy: Policy,
    ranges: RangeFaults,
    evidence: Evidence,
    feeds: Callable[[], Sequence[Mapping[str, Any]]],
    phase: Callable[[str], contextlib.AbstractContextManager[None]],
) -> Rescaled | None:
    """Return a program rescaled so that more of its nodes fit the low format; None where none would.

    Args:
        prepared: the program; not changed.
        policy: how it was decided about.
        ranges: a look-up of constants.
        evidence: the ranges of its values.
        feeds: returns the samples, for the proof.
        phase: times a block.
    """
    if not _is_any_beyond(prepared.model, policy, ranges, evidence):
        return None
    with phase("rescale"):
        scalings = _scalings(prepared.model, policy, ranges, evidence)
        if not scalings.exponents:
            return None
        program = scaled_copy(prepared, scalings.exponents)
        assert program is not None, "places of a program are those of its copies"
        try:
            samples = feeds()
        except CannotCompare as reason:
            logger.info("not rescaled, since nothing could be proven: %s", reason)
            return None
        if not computes_the_same(prepared, program, samples):
            what = "rescaling was dropped: with constants times powers of two, float32 results differ on the samples"
            return Rescaled(None, Rescaling(notes=(what,)))
        return Rescaled(program, Rescaling(scalings.exponents, (_said(scalings, evidence),)))


def _scalings(model: ir.Model, policy: Policy, ranges: RangeFaults, evidence: Evidence) -> Scalings:
    """Choose the scalings of a program; none where only normalisations are beyond the range: float32 does for them."""
    forms = dict(_forms(model, policy, ranges, evidence))
    squares = {node for group in normalisations(list(model.graph)) for node in group}
    held = (item for item in forms.items() if item[0] not in squares)
    if not any(_is_beyond(node, form, policy, ranges, evidence) for node, form in held):
        return NOTHING
    return choose_scalings(model, forms, evidence.ranges, policy.low, policy.headroom)


def _is_any_beyond(model: ir.Model, policy: Policy, ranges: RangeFaults, evidence: Evidence) -> bool:
    """Whether any value or constant does not fit the low format: most programs end here."""
    if any(seen.largest * policy.headroom > policy.low.max for seen in evidence.ranges.values()):
        return True
    return any(ranges.of(value) for node in model.graph for value in node.inputs)


def _is_beyond(node: ir.Node, form: LowForm, policy: Policy, ranges: RangeFaults, evidence: Evidence) -> bool:
    """Whether a range or a constant forbids a node to be low."""
    if range_fault(node, form, evidence.ranges, policy.low, policy.headroom):
        return True
    return any(ranges.of(node.inputs[index]) for index in form.inputs)


def _forms(
    model: ir.Model, policy: Policy, ranges: RangeFaults, evidence: Evidence
) -> Iterator[tuple[ir.Node, LowForm]]:
    """Yield the nodes that are low, or that only values or their neighbours keep from it, with their low forms."""
    # As if nothing were too large, and no time or tolerance counted: what is float32 then has other reasons.
    small = {name: dataclasses.replace(seen, largest=min(seen.largest, 1.0)) for name, seen in evidence.ranges.items()}
    free = dataclasses.replace(policy, objective="low", evidence=dataclasses.replace(evidence, ranges=small))
    decisions = assign(model, free, ranges).decisions
    constraints = Constraints(model, policy.target, policy.low, float32_inputs=policy.float32_inputs)
    for node in model.graph:
        decision = decisions[node]
        reason = decision.reason
        is_held = reason.code in _HELD_NEAR_ZERO or (reason.subject in _HELD_BY_VALUES and reason.code != "folded")
        if decision.precision == "low" or (decision.precision == "high" and is_held):
            form = constraints.of(node).form
            if form is not None:
                yield node, form


def is_better_rescaled(before: Compared, after: Compared, policy: Policy) -> bool:
    """Whether the conversion of a rescaled program is better than that of the program as it was.

    By its verdict, then as level auto chooses between conversions: by size, by time, or by both.

    Args:
        before: the conversion of the program as it was.
        after: that of the rescaled program.
        policy: how both were decided.
    """
    if not has_low_nodes(after.conversion):
        return False
    if rank(before) != rank(after):
        return rank(after) < rank(before)
    first = candidate_of(before.program, policy, written=has_low_nodes(before.conversion))  # else it is its source
    second = candidate_of(after.program, policy)
    if policy.objective == "balance":
        return balanced({"low": first, "time": second}) == "time"
    return cost(second, policy) < cost(first, policy)


def may_pay(rescaled_program: Program, policy: Policy, ranges: RangeFaults) -> bool:
    """Whether the conversion of a rescaled program can be predicted to pay, as if all of it were accurate.

    Args:
        rescaled_program: the program; not changed.
        policy: how to decide.
        ranges: a look-up of constants.
    """
    if policy.objective != "balance":
        return True
    return balanced(Trials(rescaled_program, ranges).candidates(policy)) != "float32"


def replayed(program: Program, exponents: Mapping[str, int]) -> tuple[Program, Rescaling]:
    """Return a program with the scalings of a recipe, and what the report says of them; as it is if they do not fit.

    Args:
        program: a prepared program; not changed.
        exponents: key of a place -> the exponent of its power of two.
    """
    scaled = scaled_copy(program, exponents)
    if scaled is None:
        return program, Rescaling(notes=("not rescaled: the model has not all constants that are to be multiplied",))
    count = counted(len(exponents), "constant")
    return scaled, Rescaling(dict(exponents), (f"rescaled as asked for: {count} times powers of two",))


def computes_the_same(program: Program, other: Program, feeds: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two programs give the same results in float32, to the bit, on every sample."""
    try:
        with open_program(program, emulate=False) as first, open_program(other, emulate=False) as second:
            return all(_equal(named_outputs(first, feed), named_outputs(second, feed)) for feed in map(dict, feeds))
    except _NOT_RUN as error:
        logger.info("not rescaled, since it could not be run: %s", error_text(error))
        return False


def _equal(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return first.keys() == second.keys() and all(_same_bits(first[name], second[name]) for name in first)


def _same_bits(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        if first.dtype != second.dtype or first.shape != second.shape:
            return False
        is_text = first.dtype.kind == "O"
        return bool((first == second).all()) if is_text else first.tobytes() == second.tobytes()
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_same_bits, first, second))
    return bool(first == second)


def _said(scalings: Scalings, evidence: Evidence) -> str:
    """Say what was rescaled, and for which values."""
    powers = sorted(set(scalings.exponents.values()))
    powers_text = ", ".join(f"2^{power}" for power in powers[:4]) + (" and others" if len(powers) > 4 else "")
    freed = scalings.freed
    reaching = [
        (seen.largest, str(value.name))
        for node in freed
        for value in (*node.inputs, *node.outputs)
        if value is not None and (seen := evidence.ranges.get(str(value.name))) is not None
    ]
    largest, name = max(reaching, default=(0.0, ""))
    constants = counted(len(scalings.scalings), "constant")
    added = counted(len(scalings.inserted), "added product") if scalings.inserted else ""
    return (
        f"rescaled exactly, which --rescale no leaves out: {constants}{' and ' * bool(added)}{added} times "
        f"{powers_text}, so that {counted(len(freed), 'node')} fit {FLOAT16.name} ('{name}' reaches {largest:.4g}); "
        "float32 results are equal to the bit on the samples"
    )
