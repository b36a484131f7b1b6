"""Low parameters, with masters, for a training step that was found in a loaded program."""

from __future__ import annotations

import json
from collections.abc import Collection

from amp_transpiler.graph.program import Program
from amp_transpiler.graph.training_step import UPDATES_KEY, TrainingStep
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.passes.training.insert_masters import InsertMasters
from amp_transpiler.precision.low_states import choose_low_states

__all__ = ["make_states_low", "record_states"]


def make_states_low(program: Program, low_io: Collection[str], *, masters: bool = True) -> frozenset[str]:
    """Give the parameters that are to become low float32 masters; return the inputs and outputs that become low.

    Args:
        program: a prepared program. Its `step`, its notes and its record of states change with it.
        low_io: names of the graph's inputs and outputs that were asked to become low.
        masters: whether parameters get masters; without, small updates vanish.
    """
    if program.step is None or not low_io:
        return frozenset(low_io)
    found = choose_low_states(program.step, low_io)
    program.notes += found.notes
    if masters and found.parameters:
        made = run_pass(InsertMasters(program.step, found.parameters), program.model)
        if made.modified:
            record_states(program, made.step)
    return found.low_io


def record_states(program: Program, step: TrainingStep) -> None:
    """Make `step` the program's, and write its bindings to the metadata, for whoever runs the file."""
    program.step = step
    program.model.metadata_props[UPDATES_KEY] = json.dumps(step.bindings)
    program.touch()
