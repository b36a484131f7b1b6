"""Running steps of programs with values in a scope: one session per program, fetch list and fed shapes."""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import AmpError, InputError, NotFiniteError
from amp_transpiler.graph.dtypes import AMP_DTYPES
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.phrases import first_few
from amp_transpiler.program.assemble import assemble
from amp_transpiler.program.fed_shapes import specialise
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.program.packed_state import Stack
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.compile import CompiledStep, Watch, compile_step, open_step
from amp_transpiler.runtime.feeds import check_feeds
from amp_transpiler.runtime.finite import add_probes, describe
from amp_transpiler.runtime.flags import flag
from amp_transpiler.runtime.gemm_options import warn_without_effect
from amp_transpiler.runtime.in_place_graphs import InPlaceGraph
from amp_transpiler.runtime.ort import RUN_ERRORS
from amp_transpiler.runtime.places import Place, to_host
from amp_transpiler.runtime.run_errors import NO_VALUE, explained, plain, wrong_state
from amp_transpiler.runtime.runs import Runs
from amp_transpiler.runtime.scope import Scope
from amp_transpiler.runtime.session_limit import OWN_SHAPES, SessionLimit, share_sizes
from amp_transpiler.runtime.stacks import pack
from amp_transpiler.runtime.step_options import StepOptions
from amp_transpiler.runtime.values import to_ort
from amp_transpiler.wheels import require_for_training

__all__ = ["NotFinite", "StepExecutor", "replace"]

logger = logging.getLogger(__name__)

_SHAPES = 3  # their place in a key, and what stands there where a session leaves sizes open
_ANY = "any shapes"
_COMPILE_ERRORS: tuple[type[Exception], ...] = (AmpError, *RUN_ERRORS)
_STEADY = 2  # sessions of an executor whose feeds have one shape: of the startup program and of the step

NotFinite = Literal["allow", "skip", "stop"]
"""The fate of a step whose values are not finite: it counts, it changes nothing, or it is an error."""


class StepExecutor:
    """Compiles a step of a program at its first run, keeps the session, and runs it.

    Persistable values stay on the device. A run reads one set of buffers and writes another, which then replaces the
    first in the scope: if outputs shared memory with inputs, ONNX Runtime could overwrite an input before its last use.

    Args:
        place: where to run.
        options: how steps are computed.
        max_sessions: how many sessions are kept; the one that was not used for the longest time is closed. None: see
            `SessionLimit`, and shapes beyond `OWN_SHAPES` share a session that leaves sizes open, where it can.

    Raises:
        OptionError: an option is out of its range.
        EnvironmentProblem: an option is for CUDA only, and this is the CPU; or ONNX Runtime or `onnx` is too old.
    """

    _shares = True  # whether a session may be run with several shapes

    def __init__(self, place: Place, options: StepOptions, *, max_sessions: int | None = None) -> None:
        require_for_training()
        options.check(place)
        self.place, self._options, self._limit = place, options, SessionLimit(max_sessions)
        self._runs = Runs(place)
        self._steps: OrderedDict[tuple[Any, ...], CompiledStep] = OrderedDict()  # the last used is the last
        self._fresh: tuple[Any, ...] | None = None  # the step that has read the startup program's state at most
        self._programs: dict[int, Program] = {}  # keeps each program alive, since its id is part of the key
        self._skipped: dict[int, int] = {}  # how many steps of each program were skipped
        self._apart: set[tuple[Any, ...]] = set()  # steps that cannot be compiled without sizes

    def run(
        self,
        program: Program,
        fetch: Sequence[str],
        arrays: Mapping[str, np.ndarray],
        scope: Scope,
        not_finite: NotFinite = "allow",
    ) -> list[onnxruntime.OrtValue]:
        """Run a program once and replace the persistable values that it updates. An error leaves the scope as it was.

        So does an interrupt (Ctrl-C, or another signal whose handler raises), or all of the new values are there.

        Args:
            program: the program.
            fetch: names of values of the program.
            arrays: the feeds by name; those that the step does not read are ignored.
            scope: the persistable values.
            not_finite: what happens if an update, a loss or a fetched value of the forward pass is not finite.

        Returns:
            The fetched values, on the device.

        Raises:
            NotFiniteError: something is not finite, and `not_finite` is "stop".
        """
        step: CompiledStep | None = None
        try:
            step = self._step(program, fetch, arrays, scope, check_finite=not_finite != "allow")
            feeds = _fed(step, arrays)
            step.checks.check_feeds(feeds)
            outputs = self._outputs(program, fetch, step, feeds, arrays, scope)
        except RUN_ERRORS as error:
            if isinstance(error, AmpError):
                raise
            if step is not None and (shared := self._is_shared(step)):
                return self._run_apart(shared, program, fetch, arrays, scope, not_finite)
            clearer = wrong_state(program, scope) or self._explained(error, program, fetch, arrays, scope)
            clearer = clearer or plain(error, program)
            if clearer is None:
                raise
            raise clearer from error
        step.checks.check_computed(lambda name: to_host(outputs[name]))
        if not (step.not_finite and to_host(outputs[step.not_finite])):
            known_values = {make: to_ort(make()) for make in dict.fromkeys(step.known.values())}
            new = {name: outputs[output] for name, output in step.updates.items()}
            new |= {name: known_values[make] for name, make in step.known.items()}
            self._commit(new, [step], scope, step.stacks)
        elif not_finite == "stop":
            why = self._described(program, fetch, arrays, scope)
            raise NotFiniteError(
                f"{why}. Nothing was changed in the scope. Mend the data, lower the learning rate or clip gradients; "
                "not_finite='skip' leaves such steps out"
            )
        else:
            self._warn_of_skipped(program, fetch, arrays, scope)
        fetched = [outputs[step.fetches[name]] for name in fetch]
        return fetched if step.graph is None else [step.graph.copy(value) for value in fetched]

    def _outputs(
        self,
        program: Program,  # noqa: ARG002  # for an executor that does more than run
        fetch: Sequence[str],  # noqa: ARG002
        step: CompiledStep,
        feeds: Mapping[str, np.ndarray],
        arrays: Mapping[str, np.ndarray],  # noqa: ARG002
        scope: Scope,
    ) -> dict[str, onnxruntime.OrtValue]:
        """Run a compiled step of a program, and return its outputs."""
        state = self._state(step, scope)
        if isinstance(step.graph, InPlaceGraph) and _holds_its_types(scope, step):
            taken = step.graph.take_in(state)
            if any(taken[name] is not state[name] for name in step.updates):
                stacks = {stack.name: stack for stack in step.stacks}
                replace(scope, {name: taken[name] for name in step.updates}, stacks)
            state = taken
        return self._run(step, feeds, state)

    def tell_others(self, error: BaseException) -> None:
        """Say why a run does not take place, where other processes wait for it: here there are none."""

    def close(self) -> None:
        """Close every session, and give back the memory that they took. What lies in scopes stays."""
        self._steps.clear()
        self._programs.clear()
        self._skipped.clear()
        self._apart.clear()
        self._runs.close()
        self.place.release_unused_memory()

    def _forget(self, key: tuple[Any, ...]) -> None:
        """Close a session; a program without one is let go."""
        del self._steps[key]
        if all(other[0] != key[0] for other in self._steps):
            self._programs.pop(key[0], None)
            self._skipped.pop(key[0], None)
            self._apart = {other for other in self._apart if other[0] != key[0]}
            self._limit.forget(key[0])

    def _step(
        self,
        program: Program,
        fetch: Sequence[str],
        arrays: Mapping[str, np.ndarray],
        scope: Scope,
        *,
        check_finite: bool,
    ) -> CompiledStep:
        shapes = _shapes(arrays)
        watch = Watch(indices=flag("FLAGS_check_index_range"), finite=check_finite)
        key = (id(program), program.version, tuple(fetch), tuple(sorted(shapes.items())), watch)
        key = key if key in self._steps else self._shared_key(key, program, shapes) or key
        step = self._steps.get(key)
        if step is not None:
            self._steps.move_to_end(key)
            if key == self._fresh:  # what the first state lay in is free since the first run, in pieces of its sizes
                self._fresh = None
                self.place.release_unused_memory()
        else:
            for old in [k for k in self._steps if k[0] == id(program) and k[1] != program.version]:
                self._forget(old)
            if id(program) not in self._programs:
                self._warn_without_float16(program, shapes)
            self._programs.setdefault(id(program), program)
            key, step = self._compiled(key, program, fetch, shapes)
            self._steps[key] = step
            if self._limit.is_over(len(self._steps)):
                oldest = next(iter(self._steps))
                self._limit.close(oldest)
                self._forget(oldest)
            # Where shapes vary, values that stay would keep the pieces of older shapes from being given back.
            steady = len(self._steps) <= _STEADY
            if steady and step.results:
                self._state(step, scope)  # it goes to the device first, or it would lie in the room for results
            self.place.make_room(step.results if steady else 0)
            self._fresh = key if steady and step.results else None
        return step

    def _shared_key(
        self, key: tuple[Any, ...], program: Program, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[Any, ...] | None:
        """Return the key of the session that leaves sizes open, if the step with this key is to run in it."""
        base = _without_shapes(key)
        if not self._shares or self._limit.most is not None or self._options.cuda_graph or base in self._apart:
            return None
        shared = _with_shapes(key, _ANY)
        if shared not in self._steps and sum(_without_shapes(other) == base for other in self._steps) < OWN_SHAPES:
            return None
        return shared if share_sizes(program, shapes) else None

    def _compiled(
        self, key: tuple[Any, ...], program: Program, fetch: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[tuple[Any, ...], CompiledStep]:
        """Compile a step; return its key with it, which is that of the shapes where it needs their sizes."""
        watch = key[-1]
        if key[_SHAPES] == _ANY:
            try:
                step = compile_step(program, fetch, {}, self.place, self._options, watch=watch)
            except _COMPILE_ERRORS as error:
                self._apart.add(_without_shapes(key))
                self._limit.tell_unshared(program, shapes, error)
            else:
                logger.info("%r: shapes that are new share a session from now on, which leaves sizes open", program)
                return key, step
        key = _with_shapes(key, tuple(sorted(shapes.items())))
        with self._limit.compiling(key, program, shapes):
            return key, compile_step(program, fetch, shapes, self.place, self._options, watch=watch)

    def _is_shared(self, step: CompiledStep) -> tuple[Any, ...] | None:
        """Return the key of a step whose session leaves sizes open, else None."""
        return next((key for key, other in self._steps.items() if other is step and key[_SHAPES] == _ANY), None)

    def _run_apart(
        self,
        shared: tuple[Any, ...],
        program: Program,
        fetch: Sequence[str],
        arrays: Mapping[str, np.ndarray],
        scope: Scope,
        not_finite: NotFinite,
    ) -> list[onnxruntime.OrtValue]:
        """Run a step only for its shapes, after it failed in a shared session: if that works, it was the session."""
        self._apart.add(_without_shapes(shared))
        try:
            return self.run(program, fetch, arrays, scope, not_finite)
        except BaseException:
            self._apart.discard(_without_shapes(shared))
            raise

    def _explained(
        self,
        error: Exception,
        program: Program,
        fetch: Sequence[str],
        arrays: Mapping[str, np.ndarray],
        scope: Scope,
    ) -> InputError | None:
        """Return an error in the program's own names, or None. It computes the suspicious values again, one by one."""
        assembled = assemble(program, fetch)
        specialise(assembled.model, _shapes(arrays))
        infer_shapes(assembled.model)
        return explained(
            error, program.model.graph, assembled, lambda names: self._computed(program, names, arrays, scope)
        )

    def _computed(
        self, program: Program, names: Sequence[str], arrays: Mapping[str, np.ndarray], scope: Scope
    ) -> dict[str, np.ndarray]:
        """Return values of a step; none if they need a node that fails, or something that was not fed."""
        try:
            plain = dataclasses.replace(self._options, cuda_graph=False, in_place=False)  # it runs once
            step = compile_step(program, names, _shapes(arrays), self.place, plain, updates=False)
            outputs = self._run(step, _fed(step, arrays), self._state(step, scope))
        except NO_VALUE:
            return {}
        return {name: to_host(outputs[step.fetches[name]]) for name in names}

    def _described(self, program: Program, fetch: Sequence[str], arrays: Mapping[str, np.ndarray], scope: Scope) -> str:
        """Return what made infinity or NaN in a step, which runs again with probes."""
        probed = assemble(program, fetch)
        probes = add_probes(probed, program.outputs)
        step = open_step(probed, _shapes(arrays), self.place, self._options)
        state = self._state(step, scope)
        outputs = self._run(step, _fed(step, arrays), state)
        sums = {name: float(to_host(outputs[name])) for name in probes.sums.values()}
        inputs = {**_fed(step, arrays), **{name: to_host(value) for name, value in state.items()}}
        graph = assemble(program, fetch).model.graph
        return describe(graph, probes, sums, inputs, lambda names: self._computed(program, names, arrays, scope))

    def _warn_of_skipped(
        self, program: Program, fetch: Sequence[str], arrays: Mapping[str, np.ndarray], scope: Scope
    ) -> None:
        count = self._skipped[id(program)] = self._skipped.get(id(program), 0) + 1
        why = self._described(program, fetch, arrays, scope) if count == 1 else "its values are not finite"
        logger.warning("a step of %r is skipped, the %d. so far, and changes nothing: %s", program, count, why)

    def _warn_without_float16(self, program: Program, fed: Mapping[str, Any]) -> None:
        # A program without feeds is a startup program: it has no matrix products.
        if self._options.tiling_accum == "low" and fed and not has_low_values(program, dtypes=(ir.DataType.FLOAT16,)):
            warn_without_effect()

    def _state(self, step: CompiledStep, scope: Scope) -> dict[str, onnxruntime.OrtValue]:
        stacks = {stack.name: stack for stack in step.stacks}
        names = [member for name in step.state for member in (stacks[name].members if name in stacks else (name,))]
        missing = [name for name in names if name not in scope]
        if missing:
            raise InputError(
                f"the scope has no value for {first_few(missing, 5)}: run the startup program first "
                "(exe.run(startup_program)), or load a checkpoint"
            )
        return {
            name: self._packed(scope, stacks[name]) if name in stacks else self._converted(scope, name, dtype)
            for name, dtype in step.state.items()
        }

    def _packed(self, scope: Scope, stack: Stack) -> onnxruntime.OrtValue:
        """Return values of the scope as one matrix, on the device. The scope keeps it if no type changes."""
        if not scope.has_stack(stack) and any(_has_other_type(scope.held(n), stack.dtype) for n in stack.members):
            return self.place.hold(pack(stack, (to_host(_in_type(scope, name, stack.dtype)) for name in stack.members)))
        value = self.place.hold(scope.pack(stack))
        scope.hold_stack(stack, value)
        return value

    def _converted(self, scope: Scope, name: str, dtype: ir.DataType) -> onnxruntime.OrtValue:
        """Return a value of the scope in the program's type, on the device. The scope keeps it if no type changes."""
        value = scope.held(name)
        if _has_other_type(value, dtype):
            return self.place.hold(_in_type(scope, name, dtype))
        value = self.place.hold(value)
        scope.hold(name, value)
        return value

    def _commit(
        self,
        new: Mapping[str, onnxruntime.OrtValue],
        steps: Sequence[CompiledStep],
        scope: Scope,
        stacks: Sequence[Stack],
    ) -> None:
        """Store what steps made, and what they read but in the program's types, all at once."""
        stored = set(new).union(*(stack.members for stack in stacks))
        read = {name: dtype for step in steps for name, dtype in step.state.items() if name in scope}
        converted = {
            name: self.place.hold(_in_type(scope, name, dtype))
            for name, dtype in read.items()
            if name not in stored and _has_other_type(scope.held(name), dtype)
        }
        replace(scope, {**converted, **new}, {stack.name: stack for stack in stacks})

    def _run(
        self, step: CompiledStep, feeds: Mapping[str, np.ndarray], state: Mapping[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        if step.session is None:
            return {}
        return step.graph.run(feeds, state) if step.graph else self._runs.run(step.session, feeds, state)


def replace(scope: Scope, values: Mapping[str, onnxruntime.OrtValue], stacks: Mapping[str, Stack]) -> None:
    """Store what a step made in a scope, all at once.

    Args:
        scope: the persistable values.
        values: the new ones, by the names of values or of stacks.
        stacks: the stacks by name.
    """
    single = {name: value for name, value in values.items() if name not in stacks}
    scope.replace(single, {stacks[name]: value for name, value in values.items() if name in stacks})


def _without_shapes(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key[:_SHAPES], *key[_SHAPES + 1 :])


def _with_shapes(key: tuple[Any, ...], shapes: Any) -> tuple[Any, ...]:
    return (*key[:_SHAPES], shapes, *key[_SHAPES + 1 :])


def _holds_its_types(scope: Scope, step: CompiledStep) -> bool:
    """Whether a scope has all that a step replaces in the step's types, in stacks where it has these."""
    stacks = {stack.name: stack for stack in step.stacks}
    return all(
        scope.has_stack(stacks[name]) if name in stacks else not _has_other_type(scope.held(name), step.state[name])
        for name in step.updates
    )


def _has_other_type(value: onnxruntime.OrtValue, dtype: ir.DataType) -> bool:
    return ir.DataType(value.element_type()) != dtype


def _in_type(scope: Scope, name: str, dtype: ir.DataType) -> onnxruntime.OrtValue:
    """Return a value of the scope in the program's element type. The scope keeps its own until the step is done."""
    value = scope.held(name)
    held = ir.DataType(value.element_type())
    if held == dtype:
        return value
    if held not in AMP_DTYPES or dtype not in AMP_DTYPES:
        raise InputError(f"'{name}' is {held} in the scope, but the program wants {dtype}: load the right checkpoint")
    logger.info("'%s' is %s in the scope and is converted to %s, as the program has it", name, held, dtype)
    return to_ort(scope[name].astype(dtype.numpy()))


def _shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def _fed(step: CompiledStep, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    wanted = {info.name for info in step.feeds}
    return check_feeds({name: array for name, array in arrays.items() if name in wanted}, step.feeds)
