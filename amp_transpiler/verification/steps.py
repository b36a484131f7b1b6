"""Checks a training step over several steps: a wrong update is small in one step, and all that is learnt in many.

The float32 program and the emulated converted one each start from the same states, take the same samples, and read in
each step the states that they made in the one before. A state's way is its change since the start.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import RemoteSession, open_program, open_source
from amp_transpiler.graph.training_step import State, TrainingStep
from amp_transpiler.program.program import Program
from amp_transpiler.report.steps import StateWay, StepsComparison
from amp_transpiler.runtime.feeds import check_feeds
from amp_transpiler.runtime.memory import available_memory
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.verification.accuracy import Reference
from amp_transpiler.verification.first_states import first_states
from amp_transpiler.verification.rounding_noise import DECIDED, Nudge

__all__ = ["ALLOWED", "STEPS", "compare_steps"]

logger = logging.getLogger(__name__)

STEPS = 50
ALLOWED = 0.05  # of a state's way
_SECONDS = 60.0
_SHARE = 0.6  # of the time, for the comparison; the rest is for finding out what could be expected
_AT_MOST = 1.5  # times what could be expected
_STOPS = 0.5  # a state that goes less than this part of its way has stopped
_COPIES = 8  # of all states: at the start and now, of both programs, on this side of the pipe and on the other
_NEVER = 0.5  # of its way: further off is a fault, whatever could be expected
_STILL = 2.0**-22  # of its norm: a state that moves less than this in float32 does not move; its last bits do

Arrays = dict[str, Any]


def compare_steps(
    program: Program,
    step: TrainingStep,
    reference: Reference,
    exact: Callable[[], Program | None] = lambda: None,
) -> StepsComparison:
    """Run the float32 program and the converted one for up to `STEPS` steps, and compare the ways of their states.

    A state may be `ALLOWED` of its way off. It may be further off if that is the rounding of the forward and backward
    pass, with which no update however exact would do better; but it must not stop. A state whose way rounding decides
    in float32 itself, such as a bias before a normalisation, is not judged.

    Args:
        program: the converted program; it runs emulated.
        step: its states.
        reference: the float32 program, and the samples, which hold the states' first values.
        exact: makes the same program with an update in float32 throughout; None if it is that already.
    """
    if reason := _why_not(step, reference):
        return StepsComparison(0, reason=reason)
    reference = dataclasses.replace(reference, samples=_with_initial_values(reference, step))
    deadline = time.monotonic() + _SECONDS
    try:
        with open_source(reference.program) as fp32:
            with open_program(program) as other:
                added = first_states(program, other, reference.samples)
                runs = _Run(fp32, step, reference.samples), _Run(other, step, reference.samples, added)
                steps = _take(runs, STEPS, deadline - (1 - _SHARE) * _SECONDS)
            ways = _ways(step, *runs)
            if ways is None:
                return StepsComparison(steps, reason=f"float32 itself is not finite after {steps} steps")
            if not ways:
                return StepsComparison(steps, reason="the model's states have no first values")
            if any(way.fails for way in ways.values()):
                expected = _Expected(step, reference, runs[0], steps, deadline)
                ways = expected.applied(ways, expected.undecided(fp32), exact)
    except RUN_ERRORS as error:
        return StepsComparison(0, reason=f"a step fails: {error_text(error, limit=180)}")
    fewer = "" if steps == STEPS else f"{steps} steps of {STEPS}, within {_SECONDS:.0f} s"
    return StepsComparison(steps, ways, fewer)


def _why_not(step: TrainingStep, reference: Reference) -> str:
    outputs = {state.output for state in step.states}
    random = [name for name, why in reference.unsteady.items() if name in outputs and why != DECIDED]
    if random:
        return f"'{random[0]}' is not the same in two runs of float32 ({reference.unsteady[random[0]]})"
    values = (reference.samples[0].get(state.input) for state in step.states)
    needed = _COPIES * sum(value.nbytes for value in values if isinstance(value, np.ndarray))
    free = available_memory()
    if free is not None and needed > free:
        return f"the states would need about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
    return ""


def _with_initial_values(reference: Reference, step: TrainingStep) -> list[dict[str, Any]]:
    """Return the samples, the first of them with the states that have a value in the model."""
    tensors = reference.program.model.graph.initializers
    known = {s.input: tensors[s.input].const_value for s in step.states if s.input in tensors}
    initial = {name: tensor.numpy() for name, tensor in known.items() if tensor is not None}
    return [{**initial, **reference.samples[0]}, *reference.samples[1:]]


class _Run:
    """A program on its way: its session, its states at the start and now."""

    def __init__(
        self,
        session: RemoteSession,
        step: TrainingStep,
        samples: Sequence[Mapping[str, Any]],
        added: Mapping[str, Any] | None = None,
    ) -> None:
        self._session = session
        names = {info.name for info in session.inputs}
        outputs = {info.name for info in session.outputs}
        self._outputs = {s.input: s.output for s in step.states if s.input in names and s.output in outputs}
        self._samples = [{name: value for name, value in sample.items() if name in names} for sample in samples]
        # As the program takes them: a low state starts from its rounded value.
        taken = check_feeds({**self._samples[0], **(added or {})}, session.inputs, lenient=True)
        self.start = {name: taken[name] for name in self._outputs if name in taken}
        self.now: Arrays = dict(self.start)

    def advance(self, index: int) -> None:
        """Take a step on a sample, in turn."""
        sample = self._samples[index % len(self._samples)]
        feeds = check_feeds({**sample, **self.now}, self._session.inputs, lenient=True)
        values = self._session.run(feeds, list(self._outputs.values()))
        self.now = dict(zip(self._outputs, values, strict=True))

    def change(self, name: str) -> np.ndarray | None:
        """Return how far a state has come; None for texts, without a start, or if the program does not have it."""
        if name not in self.start or name not in self.now or np.asarray(self.start[name]).dtype.kind in "OUS":
            return None
        change: np.ndarray = _float64(self.now[name]) - _float64(self.start[name])
        return change


def _take(runs: Sequence[_Run], most: int, deadline: float) -> int:
    """Let the programs take steps, at least one, and return how many."""
    for index in range(most):
        for run in runs:
            run.advance(index)
        if time.monotonic() > deadline:
            return index + 1
    return most


def _ways(step: TrainingStep, fp32: _Run, low: _Run) -> dict[str, StateWay] | None:
    """Return the ways of the states that both programs have; None if float32 is not finite."""
    ways = {}
    for state in step.states:
        if state.role == "counter" and step.loss_scale:
            continue  # it tells which steps overflowed, and that depends on the format
        wanted, got = fp32.change(state.input), low.change(state.master)
        got = low.change(state.input) if got is None else got
        if wanted is None or got is None:
            continue
        if not np.isfinite(wanted).all():
            return None
        ways[state.input] = _way(state, wanted, got, float(np.linalg.norm(_float64(fp32.start[state.input]))))
    return ways


def _way(state: State, wanted: np.ndarray, got: np.ndarray, size: float) -> StateWay:
    way, low_way = float(np.linalg.norm(wanted)), float(np.linalg.norm(got))
    difference = float(np.linalg.norm(got - wanted))
    still = way <= _STILL * size and low_way <= 2 * _STILL * size
    if not math.isfinite(low_way):
        relative = math.inf
    elif difference == 0.0 or still:
        relative = 0.0
    else:
        relative = difference / way if way else math.inf
    return StateWay(name=state.input, role=state.role, way=way, low_way=low_way, relative=relative, allowed=ALLOWED)


@dataclasses.dataclass(frozen=True, slots=True)
class _Expected:
    """How far off states would be without any fault of the conversion; found out where one is further off than 5 %."""

    step: TrainingStep
    reference: Reference
    fp32: _Run
    steps: int
    deadline: float

    def applied(
        self, ways: Mapping[str, StateWay], undecided: set[str], exact: Callable[[], Program | None]
    ) -> dict[str, StateWay]:
        """Return the ways with what is allowed to each."""
        judged = {
            name: dataclasses.replace(way, allowed=math.inf) if name in undecided else way for name, way in ways.items()
        }
        if not any(way.fails for way in judged.values()):
            return judged
        best = judged if (program := exact()) is None else self._of(program)
        return {name: _allowed(way, best.get(name)) for name, way in judged.items()}

    def _of(self, program: Program) -> dict[str, StateWay]:
        """Return the ways of another program; none if time runs out."""
        with open_program(program) as session:
            added = first_states(program, session, self.reference.samples)
            run = _Run(session, self.step, self.reference.samples, added)
            if _take([run], self.steps, self.deadline) < self.steps:
                return {}
        return _ways(self.step, self.fp32, run) or {}

    def undecided(self, session: RemoteSession) -> set[str]:
        """Return the states that go another way in float32 if numbers change in their last places; none without time.

        It is parameters and floating-point samples that change, up or down.
        """
        nudge = Nudge.of(self.reference.program.model)
        run = _Run(session, self.step, nudge.applied(self.reference.samples, self.step))
        if _take([run], self.steps, self.deadline) < self.steps:
            return set()
        ways = _ways(self.step, self.fp32, run) or {}
        unsteady = {s.input for s in self.step.states if s.output in self.reference.unsteady}
        return unsteady | {name for name, way in ways.items() if way.relative > nudge.much}


def _allowed(way: StateWay, best: StateWay | None) -> StateWay:
    """Allow a state what the best conversion has; but one that stopped stays a fault.

    There is an end to what a parameter may be off. A moment is made of the last few gradients, which are noise once the
    loss is small: where the best conversion loses its direction, that of no conversion is judged. A state that float32
    leaves where it is, such as a bias in front of a normalisation, may move as far as the best conversion moves it.
    """
    if best is not None and not way.way and way.low_way <= _AT_MOST * best.low_way:
        return dataclasses.replace(way, allowed=math.inf)
    if best is None or math.isinf(way.allowed) or way.low_way < _STOPS * way.way or not math.isfinite(best.relative):
        return way
    if way.role == "moment" and best.relative > ALLOWED:
        return dataclasses.replace(way, allowed=max(way.allowed, way.relative))
    return dataclasses.replace(way, allowed=max(way.allowed, min(_AT_MOST * best.relative, _NEVER)))


def _float64(value: Any) -> np.ndarray:
    return np.asarray(value).astype(np.float64)
