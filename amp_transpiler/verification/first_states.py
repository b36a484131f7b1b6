"""First values of the states that a conversion added to a training step: masters, and the loss scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.child_process.remote import RemoteSession
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.feeds import check_feeds

__all__ = ["first_states"]

_HALVINGS = 40  # from the usual first scale to far below one


def first_states(program: Program, session: RemoteSession, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return values for the states of a converted training step that the source does not have.

    A master is its parameter, unrounded. The loss scale is the one that training comes to on these samples: a step that
    overflows does nothing, so that comparing it would tell nothing.

    Args:
        program: the converted program.
        session: of it, emulated.
        samples: inputs of the source.
    """
    step, sample = program.step, samples[0]
    if step is None:
        return {}
    added = {state.master: sample[state.input] for state in step.states if state.master and state.input in sample}
    added = {name: value for name, value in added.items() if name not in sample}
    if step.loss_scale and step.loss_scale not in sample:
        added[step.loss_scale] = _fitting_scale(program, session, [{**added, **feeds} for feeds in samples])
    return added


def _fitting_scale(program: Program, session: RemoteSession, samples: Sequence[Mapping[str, Any]]) -> Any:
    """Return the largest scale, of those that training goes through, with which no sample overflows."""
    assert program.step is not None
    name, output = program.step.loss_scale, program.step.bindings[program.step.loss_scale]
    initial = next(value.const_value for value in program.model.graph.inputs if value.name == name)
    assert initial is not None  # it was added with one
    scale = np.asarray(initial.numpy())
    for sample in samples:
        for _ in range(_HALVINGS):
            (new,) = session.run(check_feeds({**sample, name: scale}, session.inputs, lenient=True), [output])
            if not new < scale:
                break
            scale = np.asarray(new)
    return scale
