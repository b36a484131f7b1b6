"""Converts a training step with an update in float32 throughout: the check over steps measures the real one by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.conversion import Conversion, convert
from amp_transpiler.graph.regions import INCLUDE, drop_region
from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.training.operators import is_elementwise, is_plain_movement
from amp_transpiler.program.program import Program

__all__ = ["exact_update"]

_IN_PARTS = ("Concat", "Slice", "Split")  # optimizers that work on one vector of all parameters use them


def exact_update(
    prepared: Program, step: TrainingStep, policy: Policy, ranges: RangeFaults, conversion: Conversion
) -> Program | None:
    """Convert a training step with float32 states and a float32 update, whatever the user forces to be low.

    The update is what leads to the new states by elementwise operators, from the last product or reduction on. It is
    found without the roles of nodes, so that a wrong role shows.

    Args:
        prepared: the program to convert; not changed.
        step: its states.
        policy: how the conversion decided.
        ranges: a look-up of constants.
        conversion: the conversion that is judged.

    Returns:
        The program; None if the conversion that is judged is like that.
    """
    update = {str(node.name) for node in _update(prepared.model, step)}
    low = [str(node.name) for node, decided in conversion.assignment.decisions.items() if decided.precision == "low"]
    states = {name for state in step.states for name in (state.input, state.output)}
    if not update & set(low) and not states & set(policy.low_io):
        return None
    program = prepared.clone()
    drop_region(program.model, INCLUDE)
    forced = {**policy.forced_high, **dict.fromkeys(sorted(update), Reason("update"))}
    exact = dataclasses.replace(policy, forced_high=forced, included=False, low_io=frozenset(policy.low_io) - states)
    convert(program, exact, ranges)
    return program


def _update(model: ir.Model, step: TrainingStep) -> Iterator[ir.Node]:
    outputs = {str(value.name): value for value in model.graph.outputs}
    pending = [outputs[s.output] for s in step.states if s.role in ("parameter", "moment") and s.output in outputs]
    seen: set[ir.Node] = set()
    while pending:
        node = pending.pop().producer()
        if node is None or node in seen or not _is_arithmetic(node):
            continue
        seen.add(node)
        yield node
        pending += [value for value in node.inputs if value is not None]


def _is_arithmetic(node: ir.Node) -> bool:
    return is_elementwise(node) or is_plain_movement(node) or node.op_type in _IN_PARTS
