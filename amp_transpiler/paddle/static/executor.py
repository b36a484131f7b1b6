"""`Executor`: runs programs whose values live in a scope."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import InputError
from amp_transpiler.graph.dtypes import AMP_DTYPES
from amp_transpiler.graph.low_values import has_low_values
from amp_transpiler.graph.program import Program, Variable
from amp_transpiler.runtime.compile import CompiledStep, compile_step
from amp_transpiler.runtime.feeds import check_feeds
from amp_transpiler.runtime.gemm_options import TilingAccum, check_tiling_accum, warn_without_effect
from amp_transpiler.runtime.places import Place, default_place, to_host
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.runtime.values import to_ort

__all__ = ["Executor"]

logger = logging.getLogger(__name__)


class Executor:
    """Runs programs, keeping one session for each program, fetch list and shape fed.

    Persistable values stay where the program runs. A run reads one set of buffers and writes another, which then takes
    its place in the scope: ONNX Runtime does not order readers before an overwrite in place.

    Args:
        place: where to run; None for CUDA where a device answers, else the CPU.
        emulate: on the CPU, run float16 and bfloat16 values as float32 that is rounded like them, so that overflow
            is as visible as on a GPU.
        tiling_accum: what float16 matrix products (MatMul, Gemm and what ONNX Runtime makes of them) accumulate in:
            "fp32", or "low" for float16, on CUDA only. ONNX Runtime reads this once in a process, so that all CUDA
            executors and sessions of a process must have the same. bfloat16 is accumulated in float32 always: a
            program that is fed and has no float16 value is run with a warning.

    Raises:
        OptionError: `tiling_accum` is neither "fp32" nor "low".
        EnvironmentProblem: `tiling_accum` is "low" on the CPU.
    """

    def __init__(self, place: Place | None = None, *, emulate: bool = True, tiling_accum: TilingAccum = "fp32") -> None:
        self.place: Place = default_place() if place is None else place
        check_tiling_accum(tiling_accum, self.place)
        self._emulate = emulate
        self._tiling_accum: TilingAccum = tiling_accum
        self._steps: dict[tuple[Any, ...], CompiledStep] = {}
        self._programs: dict[int, Program] = {}  # keeps each program alive, since its id is part of the key

    def __repr__(self) -> str:
        return f"Executor({self.place})"

    def run(
        self,
        program: Program | None = None,
        feed: Mapping[str, Any] | None = None,
        fetch_list: Sequence[Variable | str] | None = None,
        scope: Scope | None = None,
        return_numpy: bool = True,
    ) -> list[Any]:
        """Run a program once, replace the persistable values that it updates, and return what is fetched.

        An error leaves the scope as it was.

        Args:
            program: a startup, training or inference program; the default main program unless given.
            feed: input name -> array.
            fetch_list: variables or their names. A persistable one comes as it is after the run.
            scope: where persistable values live; the global scope unless given.
            return_numpy: False for ONNX Runtime's values, left where they are.

        Raises:
            InputError: a feed is missing, unknown or of a wrong shape or type; something fetched does not exist; a
                value that the program reads is not in the scope yet.
            EnvironmentProblem: the place cannot be had; or `tiling_accum` is another one than an earlier CUDA
                session's, or contradicts the environment variable ORT_CUDA_GEMM_OPTIONS.
        """
        if program is None:
            from amp_transpiler.paddle.framework.programs import default_main_program

            program = default_main_program()
        scope = global_scope() if scope is None else scope
        fetch = [_name(item) for item in fetch_list or ()]
        arrays = _arrays(program, feed or {})
        if not fetch and not program.updates:
            return []  # nothing is asked for: an empty startup program, for one
        step = self._step(program, fetch, arrays)
        wanted = {info.name for info in step.feeds}  # what nothing fetched depends on may be fed all the same
        values = check_feeds({name: array for name, array in arrays.items() if name in wanted}, step.feeds)
        outputs = self._run(step, values, self._state(step, scope))
        for name, output in step.updates.items():
            scope.hold(name, outputs[output])
        found = [outputs[step.fetches[name]] for name in fetch]
        return [to_host(value) for value in found] if return_numpy else found

    def close(self) -> None:
        """Let go of every session."""
        self._steps.clear()
        self._programs.clear()

    def _step(self, program: Program, fetch: Sequence[str], arrays: Mapping[str, np.ndarray]) -> CompiledStep:
        shapes = {name: array.shape for name, array in arrays.items()}
        key = (id(program), program.version, tuple(fetch), tuple(sorted(shapes.items())))
        found = self._steps.get(key)
        if found is None:
            for old in [k for k in self._steps if k[0] == id(program) and k[1] != program.version]:
                del self._steps[old]
            if id(program) not in self._programs:
                self._warn_without_float16(program, shapes)
            known = self._programs.setdefault(id(program), program)
            found = compile_step(
                known, fetch, shapes, self.place, emulated=self._emulate, tiling_accum=self._tiling_accum
            )
            self._steps[key] = found
        return found

    def _warn_without_float16(self, program: Program, fed: Mapping[str, Any]) -> None:
        # A startup program, which is fed nothing, multiplies nothing either.
        if self._tiling_accum == "low" and fed and not has_low_values(program, dtypes=(ir.DataType.FLOAT16,)):
            warn_without_effect()

    def _state(self, step: CompiledStep, scope: Scope) -> dict[str, onnxruntime.OrtValue]:
        missing = [name for name in step.state if name not in scope]
        if missing:
            some = ", ".join(missing[:5]) + (" and more" if len(missing) > 5 else "")
            raise InputError(
                f"the scope has no value for {some}: run the "
                "startup program first (exe.run(startup_program)), or load a checkpoint"
            )
        return {name: self._fitting(scope, name, dtype) for name, dtype in step.state.items()}

    def _fitting(self, scope: Scope, name: str, dtype: ir.DataType) -> onnxruntime.OrtValue:
        """Return a value of the scope in the element type and on the device that the program wants it."""
        value = scope.held(name)
        held = ir.DataType(value.element_type())
        if held != dtype:
            if held not in AMP_DTYPES or dtype not in AMP_DTYPES:
                raise InputError(
                    f"'{name}' is {held} in the scope, but the program wants {dtype}: load the right checkpoint"
                )
            logger.info("'%s' is %s in the scope and is converted to %s, as the program has it", name, held, dtype)
            scope[name] = scope[name].astype(dtype.numpy())
            value = scope.held(name)
        value = self.place.hold(value)
        scope.hold(name, value)
        return value

    def _run(
        self, step: CompiledStep, feeds: Mapping[str, np.ndarray], state: Mapping[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        binding = step.session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, to_ort(array))
        for name, value in state.items():
            binding.bind_ortvalue_input(name, value)
        names = [output.name for output in step.session.get_outputs()]
        for name in names:
            self.place.bind_output(binding, name)
        if names:
            step.session.run_with_iobinding(binding)
        return dict(zip(names, binding.get_outputs() if names else [], strict=True))


def _name(item: Variable | str) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Variable):
        return item.name
    raise InputError(f"fetch_list takes variables and names, got {item!r}")


def _arrays(program: Program, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
    inputs = {str(value.name): value for value in program.model.graph.inputs}
    known = [name for name in inputs if name not in program.persistables]
    arrays = {}
    for name, array in feed.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f", did you mean '{near[0]}'?" if near else f": its inputs are {', '.join(known) or 'none'}"
            raise InputError(f"the program has no input '{name}'{hint}")
        arrays[name] = np.asarray(array)
        rank = inputs[name].shape
        if rank is not None and len(rank) != arrays[name].ndim:
            raise InputError(f"input '{name}': got shape {list(arrays[name].shape)}, expected {rank}")
    return arrays
