"""Recognises by dataflow the masters and the loss scale that a training step has already."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.training_step import State, TrainingStep
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.training.forward_pass import ancestors, inputs_of
from amp_transpiler.precision.training.scatters import before_scatters

__all__ = ["with_additions"]


def with_additions(graph: ir.Graph, step: TrainingStep) -> TrainingStep:
    """Return the step with its masters and its loss scale, as far as it has them.

    Args:
        graph: the main graph.
        step: its states and gradients.
    """
    outputs = {str(value.name): value for value in graph.outputs}
    states = tuple(_with_master(state, step, outputs) for state in step.states)
    step = before_scatters(graph, dataclasses.replace(step, states=states))
    return step if step.loss_scale else _with_loss_scale(graph, step, outputs)


def _with_master(state: State, step: TrainingStep, outputs: Mapping[str, ir.Value]) -> State:
    """Name the master of a low state: the float32 state whose new value, cast, is the low state's."""
    low = outputs.get(state.output)
    cast = None if low is None or low.dtype not in LOW_DTYPES else low.producer()
    if cast is None or cast.op_type != "Cast" or not is_standard(cast) or state.master:
        return state
    for other in step.states:
        new = outputs.get(other.output)
        if new is not None and new is cast.inputs[0] and new.dtype == ir.DataType.FLOAT:
            return dataclasses.replace(state, master=other.input)
    return state


def _with_loss_scale(graph: ir.Graph, step: TrainingStep, outputs: Mapping[str, ir.Value]) -> TrainingStep:
    """Name the loss scale: a single float32 number that gradients depend on, and that only learns if they are finite.

    It looks like a parameter, since it is multiplied; but of the gradients only truth values enter its update.
    """
    inputs = {str(value.name): value for value in (*graph.initializers.values(), *graph.inputs)}
    by_name = {str(value.name): value for node in graph for value in node.outputs}
    for state in step.states:
        value, new = inputs.get(state.input), outputs.get(state.output)
        if value is None or new is None or not _is_number(value):
            continue
        others = (names for name, names in step.gradients.items() if name != state.input)
        gradients = {by_name[name] for names in others for name in names if name in by_name}
        of_state = {by_name[name] for name in step.gradients.get(state.input, ()) if name in by_name}
        if gradients and value in ancestors(gradients) and (gradients | of_state).isdisjoint(_numbers_above(new)):
            role = dataclasses.replace(state, role="counter")
            return dataclasses.replace(
                step,
                states=(*(other for other in step.states if other is not state), role),
                gradients={name: names for name, names in step.gradients.items() if name != state.input},
                loss_scale=state.input,
            )
    return step


def _is_number(value: ir.Value) -> bool:
    sizes = None if value.shape is None else list(value.shape)
    return value.dtype == ir.DataType.FLOAT and sizes is not None and all(size == 1 for size in sizes)


def _numbers_above(value: ir.Value) -> set[ir.Value]:
    """Return what a value is computed from, other than by way of truth values."""
    numbers: set[ir.Value] = set()
    pending = [value]
    while pending:
        at = pending.pop()
        node = at.producer()
        if at in numbers or at.dtype == ir.DataType.BOOL:
            continue
        numbers.add(at)
        pending.extend(() if node is None else inputs_of(node))
    return numbers
