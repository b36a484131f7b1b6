"""A training step that somebody else wrote: a model whose outputs replace some of its inputs, and why that is sure."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["UPDATES_KEY", "State", "StateRole", "TrainingStep", "master_name"]

UPDATES_KEY = "amp_transpiler.updates"  # JSON in a model's metadata: state input -> output that replaces it

StateRole = Literal["parameter", "moment", "statistic", "counter"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An input and the output that replaces it after a step.

    Attributes:
        input: name of the graph input (or of the initializer that a training algorithm updates).
        output: name of the graph output that replaces it.
        role: `parameter`: the forward pass reads it as weight, scale, bias or table, and the optimizer updates it;
            `moment`: the optimizer's own, of a parameter's shape; `statistic`: updated by the forward pass, such as a
            running mean; `counter`: all else that only the step's bookkeeping reads, such as a step number, powers of
            beta or a loss scale.
        reason: why the two belong together: the user's binding, the file's, or the dataflow that proves it.
        master: name of the input that holds its float32 master weights, if the state itself is low; empty: the state is
            float32 and its own master.
    """

    input: str
    output: str
    role: StateRole
    reason: str
    master: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingStep:
    """The state of a training step, and its gradients.

    Attributes:
        states: parameters first, in the order of the graph's inputs.
        gradients: name of a parameter's input -> names of the values in which the backward pass hands its gradient to
            the optimizer; several if it adds them up there.
        inner: names of the values that are states again after an update inside the step, at which it takes another
            gradient.
        loss_scale: name of the input that holds the loss scale, if the step scales its gradients; empty: it does not.
    """

    states: tuple[State, ...]
    gradients: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    loss_scale: str = ""
    inner: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[State, ...]:
        """The states that are trained."""
        return tuple(state for state in self.states if state.role == "parameter")

    @property
    def bindings(self) -> dict[str, str]:
        """Input -> the output that replaces it."""
        return {state.input: state.output for state in self.states}


def master_name(parameter: str) -> str:
    """Return the name of a parameter's float32 master weight, as Paddle makes it."""
    return f"{parameter}_fp32_master_0"
