"""The check of a compiled training step: its first runs are computed a second time, by its emulation on the CPU.

The emulation is another form of the same program: low values are float32 that is rounded like them, nothing of the
updates is computed together, weight gradients have another formulation, and ONNX Runtime optimizes nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import StepCheckFailed
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.kinds import RANDOM
from amp_transpiler.ops.names import is_standard
from amp_transpiler.phrases import counted, first_few
from amp_transpiler.program.assemble import assemble
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.agreement import EVERYTHING, Gap, Limits, Value, decided_by_comparison, gap, limits_of
from amp_transpiler.runtime.compile import CompiledStep, open_ready
from amp_transpiler.runtime.lowering import ready_to_open
from amp_transpiler.runtime.places import CPUPlace, Place, to_host
from amp_transpiler.runtime.run_errors import NO_VALUE
from amp_transpiler.runtime.runs import Runs
from amp_transpiler.runtime.scope import Scope
from amp_transpiler.runtime.shaken import PHASE, ShakenPlace
from amp_transpiler.runtime.step_options import StepOptions
from amp_transpiler.runtime.values import to_ort
from amp_transpiler.training_passes import Formulation

__all__ = ["StepCheck"]

logger = logging.getLogger(__name__)

STEPS = 3
"""Steps of each compiled training step that are checked."""

CAPTURED_STEPS = 6
"""The same with CUDA graphs: two plain runs, the two that are captured, and the two that repeat these."""

_AT_MOST = 20  # runs, where many leave parameters as they are: those show nothing of the update
_PHASES = (0.0, 2.0, 4.0)  # of the noise
_SHOWN = 3

Arrays: TypeAlias = Mapping[str, np.ndarray]
Key: TypeAlias = tuple[str, str]
"""What a value is, "fetched" or "state", and its name."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Emulation:
    """A session of the emulation."""

    step: CompiledStep
    model: ir.Model

    @classmethod
    def of(
        cls, program: Program, fetch: Sequence[str], arrays: Arrays, options: StepOptions, place: Place
    ) -> _Emulation:
        """Open it for the shapes of what is fed."""
        shapes = {name: array.shape for name, array in arrays.items()}
        ready = ready_to_open(assemble(program, fetch), shapes, weight_gradients=options.weight_gradients)
        return cls(open_ready(ready, place, options, optimize=False), ready.model)

    def run(self, feeds: Arrays, state: Arrays, extra: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs of a run, which are copies."""
        inputs = {info.name: feeds[info.name] for info in self.step.feeds}
        held = {name: to_ort(state[name].astype(dtype.numpy())) for name, dtype in self.step.state.items()}
        assert self.step.session is not None  # a training step computes something
        outputs = Runs(CPUPlace()).run(self.step.session, {**inputs, **extra}, held)
        return {name: np.array(to_host(value)) for name, value in outputs.items()}

    def drawing(self) -> str:
        """Return the node that draws random numbers itself, or nothing."""
        drawing = (n for n in all_nodes(self.model) if is_standard(n) and n.op_type in RANDOM and _draws(n))
        return next((f"{node.op_type} '{node.name}'" for node in drawing), "")


def _draws(node: ir.Node) -> bool:
    # Dropout that is not lowered has no mode, or one that is known at run time.
    return node.op_type != "Dropout" or (len(node.inputs) > 2 and node.inputs[2] is not None)


class StepCheck:
    """Checks the first runs of one compiled step against its emulation.

    Args:
        program: the program.
        fetch: the fetched names.
        place: where the step runs.
        options: how it is computed.

    Attributes:
        is_done: whether no further run is checked.
        summary: a line for the log; empty before enough runs have agreed.
    """

    def __init__(self, program: Program, fetch: Sequence[str], place: Place, options: StepOptions) -> None:
        self._program, self._fetch, self._place = program, tuple(fetch), place
        other: Formulation = "auto" if options.formulation(place) == "convolution" else "convolution"
        self._options, self._asked = StepOptions(weight_gradients=other), options
        self._emulation: _Emulation | None = None
        self._shaken: _Emulation | None = None
        self._limits = limits_of(program)
        self._open: frozenset[str] = frozenset()  # fetched names and states that are not judged
        self._runs = self._checked = 0
        self._worst: dict[str, float] = {"fetched": 0.0, "state": 0.0}
        self.is_done, self.summary = False, ""

    def run(
        self,
        step: CompiledStep,  # not an attribute: executors forget a check with its session
        compute: Callable[[], dict[str, onnxruntime.OrtValue]],
        feeds: Arrays,
        arrays: Arrays,
        scope: Scope,
    ) -> dict[str, onnxruntime.OrtValue]:
        """Run the step, and its emulation from the same state; return the outputs of the step.

        Args:
            step: the step.
            compute: runs it.
            feeds: what is fed to it.
            arrays: what is fed to the program.
            scope: the state, which does not change.

        Raises:
            StepCheckFailed: they contradict each other.
        """
        if self._emulation is None and not self._prepare(arrays):
            return compute()
        state = self._copied(scope)
        outputs = compute()
        self._runs += 1
        values = _values(step, outputs, state)
        try:
            self._judge(step, values, feeds, state, arrays)
        except NO_VALUE as error:
            self._leave(f"its emulation cannot run ({error})")
        return outputs

    # ---- the runs ----

    def _prepare(self, arrays: Arrays) -> bool:
        """Open the emulation; return whether there is something to compare."""
        try:
            self._emulation = _Emulation.of(self._program, self._fetch, arrays, self._options, CPUPlace())
        except NO_VALUE as error:
            self._leave(f"its emulation cannot be opened ({error})")
            return False
        if drawing := self._emulation.drawing():
            self._leave(f"{drawing} draws other random numbers in each run")
            return False
        step, updates = self._emulation.step, self._program.updates
        losses = set(self._program.outputs)
        names = {name: updates.get(name, name) for name in (*step.fetches, *step.updates) if name not in losses}
        self._open = decided_by_comparison(self._program, names)
        return True

    def _copied(self, scope: Scope) -> dict[str, np.ndarray]:
        assert self._emulation is not None
        step = self._emulation.step
        return {name: scope[name] for name in dict.fromkeys((*step.state, *step.updates)) if name in scope}

    def _emulated(
        self, emulation: _Emulation | None, feeds: Arrays, state: Arrays, extra: Arrays | None = None
    ) -> dict[Key, Value]:
        assert emulation is not None
        outputs = emulation.run(feeds, state, extra or {})
        step = emulation.step
        fetched = {("fetched", name): Value(outputs[output]) for name, output in step.fetches.items()}
        states = {("state", name): Value(outputs[output], state.get(name)) for name, output in step.updates.items()}
        return {**fetched, **states}

    # ---- the judgement ----

    def _judge(
        self, step: CompiledStep, values: Mapping[Key, Value], feeds: Arrays, state: Arrays, arrays: Arrays
    ) -> None:
        """Compare what a run computed with what its emulation computes.

        Raises:
            StepCheckFailed: they contradict each other.
        """
        expected = self._emulated(self._emulation, feeds, state)
        gaps = self._gaps(values, expected)
        limits = dict.fromkeys(gaps, self._limits)
        if not all(distance.within(self._limits) for distance in gaps.values()):
            limits = self._widened(expected, feeds, state, arrays)
        wrong = {key: distance for key, distance in gaps.items() if not distance.within(limits[key])}
        if wrong:
            raise StepCheckFailed(self._described(wrong, limits))
        self._count(step, gaps, limits, expected)

    def _gaps(self, values: Mapping[Key, Value], expected: Mapping[Key, Value]) -> dict[Key, Gap]:
        """Return how far values are off; of those that comparisons decide, whether they are finite."""
        gaps = {key: gap(value, expected[key]) for key, value in values.items() if key in expected}
        for key, distance in gaps.items():
            if key[1] in self._open:
                gaps[key] = Gap(fault=distance.fault) if _is_float(values[key]) else Gap()
        return gaps

    def _widened(
        self, expected: Mapping[Key, Value], feeds: Arrays, state: Arrays, arrays: Arrays
    ) -> dict[Key, Limits]:
        """Return what values may be off in this step, by runs with noise."""
        if self._shaken is None:
            self._shaken = _Emulation.of(self._program, self._fetch, arrays, self._options, ShakenPlace())
        limits = dict.fromkeys(expected, self._limits)
        for phase in _PHASES:
            noisy = self._emulated(self._shaken, feeds, state, {PHASE: np.array(phase, np.float32)})
            for key, distance in self._gaps(noisy, expected).items():
                limits[key] = distance.allowed_beside(limits[key])
        replaced = [name for kind, name in limits if kind == "state" and limits[kind, name] is EVERYTHING]
        for kind, name in limits:
            # A moment is named after the parameter, or its master weight, that is updated by it.
            if kind == "state" and any(moment.startswith(f"{name}_") for moment in replaced):
                limits[kind, name] = EVERYTHING
        return limits

    def _count(
        self,
        step: CompiledStep,
        gaps: Mapping[Key, Gap],
        limits: Mapping[Key, Limits],
        expected: Mapping[Key, Value],
    ) -> None:
        """Note a run that agrees; forget the emulation after the last one."""
        for (kind, name), off in gaps.items():
            if limits[kind, name] is not EVERYTHING:
                self._worst[kind] = max(self._worst[kind], off.distance)
        parameters = {p.name for p in self._program.persistables.values() if p.kind == "parameter"}
        moved = (
            not np.array_equal(v.new, v.old) for (_, n), v in expected.items() if n in parameters and v.old is not None
        )
        self._checked += any(moved)
        needed = STEPS if step.graph is None or step.graph.refused else CAPTURED_STEPS
        if self._checked >= needed or self._runs >= _AT_MOST:
            self.summary = self._summed_up()
            self._finish()

    def _summed_up(self) -> str:
        fetched, states = self._worst["fetched"], self._worst["state"]
        skipped = self._runs - self._checked
        rest = f"; {counted(skipped, 'other step')} left all parameters as they were" if skipped else ""
        return (
            f"{counted(self._checked, 'step')} of {self._program!r} on {self._place} agree with their emulation: loss "
            f"and what is fetched within {fetched:.2g}, states within {states:.2g} of their way{rest}"
        )

    def _leave(self, why: str) -> None:
        logger.warning("steps of %r are not compared with their emulation: %s", self._program, why)
        self._finish()

    def _finish(self) -> None:
        self.is_done, self._emulation, self._shaken = True, None, None

    def _described(self, wrong: Mapping[Key, Gap], limits: Mapping[Key, Limits]) -> str:
        texts = [_value_described(kind, name, off, limits[kind, name]) for (kind, name), off in wrong.items()]
        return (
            f"run {self._runs} of a step of {self._program!r} on {self._place} contradicts its emulation on the CPU in "
            f"{counted(len(texts), 'value')}: {first_few(texts, _SHOWN)}. Nothing was changed in the scope. "
            f"{self._remedy()}"
        )

    def _remedy(self) -> str:
        if self._place.has_provider_options:
            options = dict(self._asked.provider(self._place))
            return (
                f"Please report it with the program and the provider options {options}. Until then give other "
                "provider_options, such as {'use_tf32': '0', 'cudnn_conv_algo_search': 'DEFAULT'}, or run on CPUPlace()"
            )
        if self._place.emulates_low and not self._asked.emulate:
            return "emulate=False computes float16 without rounding or overflow: leave it out"
        return "Please report it with the program: one of two ways to compute it is wrong"


def _values(step: CompiledStep, outputs: Mapping[str, onnxruntime.OrtValue], state: Arrays) -> dict[Key, Value]:
    """Return the values that the step computed."""
    stacks = {stack.name: stack for stack in step.stacks}
    values = {("fetched", name): Value(to_host(outputs[output])) for name, output in step.fetches.items()}
    for name, output in step.updates.items():
        array = to_host(outputs[output])
        parts = stacks[name].parted(array) if name in stacks else {name: array}
        values |= {("state", member): Value(part, state.get(member)) for member, part in parts.items()}
    return values


def _is_float(value: Value) -> bool:
    return value.new.dtype.kind in "fV"


def _value_described(kind: str, name: str, off: Gap, limits: Limits) -> str:
    what = f"state '{name}'" if kind == "state" else f"fetched '{name}'"
    if off.fault:
        return f"{what} {off.fault}"
    way = "went" if kind == "state" else "is"
    return (
        f"{what} {way} {off.got:.4g}, expected {off.wanted:.4g} (norms): size off by {off.size:+.2%} of "
        f"{limits.size:.2%} allowed, distance {off.distance:.2%} of {limits.distance:.2%}"
    )
