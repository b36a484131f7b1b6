"""Gives a training step aids in lower precision, as the user wishes: masters for low parameters, and loss scaling."""

from __future__ import annotations

import dataclasses
import json
import logging

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import FLOAT32, LOW_DTYPES, dtype_name
from amp_transpiler.graph.training_step import UPDATES_KEY, TrainingStep
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.phrases import first_few, quoted
from amp_transpiler.precision.policy import Policy
from amp_transpiler.program.program import Program

__all__ = ["Aided", "add_training_aids"]

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Aided:
    """A training step with what it needs in lower precision.

    Attributes:
        policy: how to convert it.
        changed: whether the program was changed.
        warnings: sentences for the report.
    """

    policy: Policy
    changed: bool = False
    warnings: tuple[str, ...] = ()


def add_training_aids(program: Program, policy: Policy) -> Aided:
    """Put loss scaling and masters into a training step that was found, in place.

    Args:
        program: a prepared program; its `step`, its notes and its record of states change with it.
        policy: what becomes low, and what the user wishes of the step.

    Raises:
        OptionError: master weights are required, and a parameter is low in the source, without a master.
    """
    before = program.step
    if before is None or policy.low is FLOAT32:
        return Aided(policy)
    if policy.wishes.master_weights:
        _require_float32(program, before)
    warnings = _scale_loss(program, before) if policy.wishes.loss_scaling else ()
    if policy.low_io:
        policy, more = _make_low(program, policy)
        warnings += more
    return Aided(policy, program.step is not before, warnings)


def _require_float32(program: Program, step: TrainingStep) -> None:
    for state in step.parameters:
        value = program.find(state.input)
        if value is not None and value.dtype in LOW_DTYPES and not state.master:
            raise OptionError(
                f"--master-weights: parameter '{state.input}' is {dtype_name(value.dtype)} in the source, whose update "
                "is rounded already: convert the float32 step that it was made of, or make it one with --dtype float32"
            )


def _make_low(program: Program, policy: Policy) -> tuple[Policy, tuple[str, ...]]:
    """Give the parameters that become low masters; return the policy with what becomes low, and warnings."""
    assert program.step is not None
    from amp_transpiler.precision.training.low_states import choose_low_states

    chosen = choose_low_states(program.model.graph, program.step, policy.low_io)
    program.notes += chosen.notes
    made_low = dataclasses.replace(policy, low_io=chosen.low_io)
    if policy.wishes.master_weights is False:
        return made_low, chosen.without_masters()
    if chosen.parameters:
        from amp_transpiler.update_passes.insert_masters import InsertMasters

        mastered = run_pass(InsertMasters(program.step, chosen.parameters), program.model)
        if mastered.modified:
            _record(program, mastered.step)
            program.notes.append(f"float32 master weights, as inputs and outputs: {mastered.count}")
    return made_low, ()


def _scale_loss(program: Program, step: TrainingStep) -> tuple[str, ...]:
    """Scale the loss; return the reason if it cannot be scaled."""
    if not step.gradients:
        return ()  # the wishes warn of that
    if step.loss_scale:
        program.notes.append(f"the step scales its loss already, by '{step.loss_scale}': nothing was added")
        return ()
    from amp_transpiler.precision.training.cotangents import NotLinear, find_cotangents
    from amp_transpiler.update_passes.scale_loss import ScaleLoss

    start = "--loss-scaling: the loss is not scaled, so small float16 gradients may become zero"
    try:
        cotangents = find_cotangents(program.model.graph, step)
    except NotLinear as reason:
        return (f"{start}: {reason}; convert to bfloat16, or keep the gradients in float32",)
    scaled = run_pass(ScaleLoss(step, cotangents), program.model)
    _record(program, scaled.step)
    begins = first_few(quoted(value.name for value in cotangents.seeds))
    program.notes.append(f"the gradients are scaled dynamically by '{scaled.step.loss_scale}', from {begins} on")
    return ()


def _record(program: Program, step: TrainingStep) -> None:
    """Make `step` the program's, and write its bindings down, for whoever runs the file."""
    program.step = step
    if program.merged is None:  # training_info has separate bindings
        program.model.metadata_props[UPDATES_KEY] = json.dumps(step.bindings)
    program.touch()
