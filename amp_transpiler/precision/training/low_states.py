"""Decides which states of a training step from elsewhere become low, where inputs and outputs are asked to."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.phrases import first_few
from amp_transpiler.precision.constraints import is_float32

__all__ = ["LowStates", "choose_low_states"]


@dataclasses.dataclass(frozen=True, slots=True)
class LowStates:
    """The states that become low.

    Attributes:
        low_io: names of the graph's inputs and outputs that become low: those asked for, as far as they may.
        parameters: names of the parameters among them.
        notes: sentences for the report.
    """

    low_io: frozenset[str]
    parameters: frozenset[str]
    notes: tuple[str, ...] = ()

    def without_masters(self) -> tuple[str, ...]:
        """Return what the user should know where these parameters get no masters."""
        if not self.parameters:
            return ()
        names = first_few(sorted(self.parameters), 4)
        return (f"parameters in lower precision without float32 master weights, so small updates vanish: {names}",)


def choose_low_states(graph: ir.Graph, step: TrainingStep, low_io: Collection[str]) -> LowStates:
    """Return the inputs and outputs that become low, with the states of a training step taken into account.

    A parameter becomes low together with its output: what comes out must go in again. Moments, statistics and counters
    stay float32, whatever is asked for: nothing keeps their small changes otherwise.

    Args:
        graph: the main graph.
        step: its states.
        low_io: names of the graph's inputs and outputs that were asked to become low.
    """
    asked = [state for state in step.states if {state.input, state.output} & set(low_io)]
    low = [state for state in asked if state.role == "parameter"]
    floats = {value.name for value in graph.inputs if is_float32(value)}
    excluded = [state for state in asked if state.role != "parameter" and state.input in floats]
    names = set(low_io) - {name for state in excluded for name in (state.input, state.output)}
    names |= {name for state in low for name in (state.input, state.output)}
    notes = []
    if excluded:
        listed = first_few([f"{state.input} ({state.role})" for state in excluded], 4)
        notes.append(f"states that stay float32, since small changes would be lost in lower precision: {listed}")
    return LowStates(frozenset(names), frozenset(state.input for state in low), tuple(notes))
