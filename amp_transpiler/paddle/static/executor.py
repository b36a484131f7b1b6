"""`Executor`: runs programs whose values live in a scope."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_args

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.program import Program, Variable
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.passes.training import Formulation
from amp_transpiler.runtime.executor import NotFinite, StepExecutor
from amp_transpiler.runtime.flags import flag
from amp_transpiler.runtime.gemm_options import TilingAccum
from amp_transpiler.runtime.places import Place, default_place, to_host
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.runtime.step_options import StepOptions

__all__ = ["Executor"]


class Executor:
    """Runs programs, keeping one session for each program, fetch list and shape fed.

    Persistable values stay where the program runs.

    Args:
        place: where to run; None for CUDA where a device answers, else the CPU.
        emulate: on the CPU, run float16 and bfloat16 values as float32 that is rounded like them, so that overflow
            is as visible as on a GPU.
        tiling_accum: what float16 matrix products (MatMul, Gemm and what ONNX Runtime makes of them) accumulate in:
            "fp32", or "low" for float16, on CUDA only. ONNX Runtime reads this once in a process, so that all CUDA
            executors and sessions of a process must have the same. bfloat16 is accumulated in float32 always: a
            program that is fed and has no float16 value is run with a warning.
        recompute: in training steps, compute large activations that are cheap (casts, activation functions,
            normalisation, masks) again in the backward pass, instead of keeping them. It saves memory and takes time;
            the results stay the same, to the bit.
        max_sessions: how many sessions are kept. For one more, that which was not used for the longest time is closed,
            and is compiled again when it is needed: give at least as many as there are shapes that take turns.
        cuda_graph: on CUDA, whether a step is captured as CUDA graphs after its second run, one for each of the two
            sets of buffers that state lies in, and then repeated as one launch. The log warns of a step where that is
            not possible, and why: nodes on the CPU, operators that wait for the host or have it upload tables. It pays
            where the host is slower than the device, and takes memory that no other session can use.
        weight_gradients: how weight gradients of convolutions are computed: "convolution" (of the input with the
            gradient of the result), "taps" (a matrix product for each tap of the kernel), "columns" (one for all taps),
            or "auto": the first on CUDA, one of the others by its sizes on a CPU, in float32.
        provider_options: options of ONNX Runtime's CUDA provider for steps, over the package's own choice, such as
            `{"use_tf32": "0"}`; on CUDA only. Options of memory have no effect: all executors of a process share it.

    On CUDA a run returns when its work is queued: feeds are copied while the step before runs, and the host waits only
    for what is read. All executors of a process queue work on a device in one stream, and share its memory.

    As a context manager it is closed in the end.

    Raises:
        OptionError: `tiling_accum` is neither "fp32" nor "low", `max_sessions` is less than 1, `weight_gradients` is
            none of the four, or `provider_options` has one that the executor sets itself (device, stream, CUDA graph).
        EnvironmentProblem: `tiling_accum` is "low", or there are `provider_options`, on the CPU.
    """

    def __init__(
        self,
        place: Place | None = None,
        *,
        emulate: bool = True,
        tiling_accum: TilingAccum = "fp32",
        recompute: bool = False,
        max_sessions: int = 8,
        cuda_graph: bool = False,
        weight_gradients: Formulation = "auto",
        provider_options: Mapping[str, str] | None = None,
    ) -> None:
        self.place: Place = default_place() if place is None else place
        options = StepOptions(
            emulate=emulate,
            tiling_accum=tiling_accum,
            recompute=recompute,
            cuda_graph=cuda_graph,
            weight_gradients=weight_gradients,
            provider_options=dict(provider_options or {}),
        )
        self._steps = self._executor(options, max_sessions)

    def _executor(self, options: StepOptions, max_sessions: int) -> StepExecutor:
        return StepExecutor(self.place, options, max_sessions=max_sessions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Executor({self.place})"

    def run(
        self,
        program: Program | None = None,
        feed: Mapping[str, Any] | None = None,
        fetch_list: Sequence[Variable | str] | Variable | str | None = None,
        scope: Scope | None = None,
        return_numpy: bool = True,
        not_finite: NotFinite | None = None,
    ) -> list[Any]:
        """Run a program once, replace the persistable values that it updates, and return what is fetched.

        An error leaves the scope as it was.

        Args:
            program: a startup, training or inference program; the default main program unless given.
            feed: input name -> array.
            fetch_list: variables or their names, or one of them alone. A persistable one has its value after the run.
            scope: where persistable values live; the global scope unless given.
            return_numpy: False for ONNX Runtime's values, left where they are.
            not_finite: what happens if a value that replaces a persistable one, a loss, or a fetched value of the
                forward pass is infinite or NaN. "allow": nothing; "skip": the scope stays as it was, all of the step's
                updates are left out, and a warning says so; "stop": the scope stays as it was, and an error names the
                first node that made it, after a second run that watches every value. Without it, "stop" if the flag
                `FLAGS_check_nan_inf` is set, else "allow", which costs nothing. Gradients that a loss scale lets
                overflow do not count: that step is the scaler's.

        Raises:
            NotFiniteError: something is not finite, and the run was to stop then.
            OptionError: `not_finite` is another word.
            InputError: a feed is missing, unknown or of a wrong shape or type; something fetched does not exist; a
                value that the program reads is not in the scope yet.
            EnvironmentProblem: the place cannot be used or does not know an option of its provider; or `tiling_accum`
                is another one than an earlier CUDA session's, or contradicts the environment variable
                ORT_CUDA_GEMM_OPTIONS.
        """
        program = default_main_program() if program is None else program
        reaction = _reaction(not_finite)
        fetch = [_name(program, item) for item in _listed(fetch_list)]
        arrays = _arrays(program, feed or {})
        if not fetch and not program.updates:
            return []  # nothing to compute: an empty startup program, for one
        found = self._steps.run(program, fetch, arrays, global_scope() if scope is None else scope, reaction)
        return [to_host(value) for value in found] if return_numpy else list(found)

    def close(self) -> None:
        """Close every session, and give back the memory that they took. What lies in scopes stays there."""
        self._steps.close()


def _listed(fetch_list: Sequence[Variable | str] | Variable | str | None) -> Sequence[Variable | str]:
    if fetch_list is None:
        return ()
    return [fetch_list] if isinstance(fetch_list, (str, Variable)) else fetch_list


def _name(program: Program, item: Variable | str) -> str:
    if isinstance(item, (str, Variable)):
        return program.name_of(item)
    raise InputError(f"feed and fetch_list take variables and names, got {item!r}")


def _reaction(not_finite: NotFinite | None) -> NotFinite:
    if not_finite is None:
        return "stop" if flag("FLAGS_check_nan_inf") else "allow"
    if not_finite not in (words := get_args(NotFinite)):
        raise OptionError(f"not_finite must be one of {', '.join(map(repr, words))}, got {not_finite!r}")
    return not_finite


def _arrays(program: Program, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
    inputs = {str(value.name): value for value in program.model.graph.inputs}
    known = [name for name in inputs if name not in program.persistables]
    arrays = {}
    for key, array in feed.items():
        name = _name(program, key)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f", did you mean '{near[0]}'?" if near else f": its inputs are {', '.join(known) or 'none'}"
            raise InputError(f"the program has no input '{name}'{hint}")
        arrays[name] = np.asarray(array)
        rank = inputs[name].shape
        if rank is not None and len(rank) != arrays[name].ndim:
            raise InputError(f"input '{name}': got shape {list(arrays[name].shape)}, expected {rank}")
    return arrays
