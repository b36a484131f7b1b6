"""One training step or inference run, profiled: its time, and the memory that it needs, measured and counted."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff import expand_gradients
from amp_transpiler.errors import InputError
from amp_transpiler.files.loading import load
from amp_transpiler.program.assemble import assemble
from amp_transpiler.program.fed_shapes import specialise
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.runtime.executor import StepExecutor
from amp_transpiler.runtime.liveness import kept_bytes, live_bytes
from amp_transpiler.runtime.lowering import lower
from amp_transpiler.runtime.places import Place, default_place
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.runtime.session import AnyProgram, Session
from amp_transpiler.runtime.step_options import StepOptions

__all__ = ["StepProfile", "profile_step"]

_WITHOUT_KERNEL = frozenset({"Constant", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})

_EMULATED = "emulated: time and measured memory say nothing about a GPU; the counted bytes do"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """The profile of one step or run.

    Attributes:
        place: where it ran.
        runs: timed runs.
        milliseconds: the median time of a run. Feeds are copied to the device before an inference run, and in each
            training step.
        nodes: nodes that compute something, as the step runs on CUDA: about as many kernels are launched, fewer where
            ONNX Runtime fuses some. Nodes in bodies count once.
        casts: those of them that are casts.
        alive_bytes: the most bytes alive at the same time, counted from the program (`live_bytes`): it depends neither
            on the place nor on what ran before. None if a shape depends on values.
        kept_bytes: the bytes of forward results that the backward pass reads, counted (`kept_bytes`). 0 without one.
        peak_bytes: measured growth of the memory in use, from before compiling to its peak; None if that is unknown,
            and on a CPU if this process has used more before.
        memory: the kind of `peak_bytes`: `device`, of all processes; or `resident`, of this process.
        emulated: whether it ran emulated, so that time and measured memory are those of the emulation.
        note: what limits the measurements; empty if nothing does.
    """

    place: str
    runs: int
    milliseconds: float
    nodes: int
    casts: int
    alive_bytes: int | None
    kept_bytes: int | None
    peak_bytes: int | None
    memory: str
    emulated: bool
    note: str = ""

    def __str__(self) -> str:
        alive, for_backward, peak = (_size(count) for count in (self.alive_bytes, self.kept_bytes, self.peak_bytes))
        lines = [
            f"{self.milliseconds:.3f} ms on {self.place} (median of {self.runs})",
            f"{self.nodes} nodes, {self.casts} of them casts",
            f"alive at once {alive}, kept for the backward pass {for_backward} (counted); peak {peak} ({self.memory})",
        ]
        return "\n".join([*lines, self.note] if self.note else lines)


def profile_step(
    program: AnyProgram,
    feed: Mapping[str, Any],
    fetch_list: Sequence[Variable | str] | None = None,
    place: Place | None = None,
    *,
    scope: Scope | None = None,
    runs: int = 10,
    warmup: int = 3,
) -> StepProfile:
    """Profile one training step, or one run of a model.

    A training program runs on a copy of the scope: parameters, moments and loss scale stay as they are.

    Args:
        program: a training program after its startup program has run, or anything that `Session` takes.
        feed: input name -> array.
        fetch_list: what is fetched; None for the program's outputs.
        place: where to run; None for CUDA if a device answers, else the CPU.
        scope: the values of a training program; the global scope unless given.
        runs: timed runs, at least 1.
        warmup: untimed runs before; the first one compiles.

    Returns:
        Time and memory, which `print` shows.

    Raises:
        InputError: the feeds do not fit, something fetched does not exist, or the scope lacks a value.
        EnvironmentProblem: the place cannot be used.
    """
    loaded = load(program)
    place = default_place() if place is None else place
    arrays = {name: np.asarray(array) for name, array in feed.items()}
    names = None if fetch_list is None else [item if isinstance(item, str) else item.name for item in fetch_list]
    before = place.memory_in_use(), place.peak_memory()
    run = _runner(program, loaded, arrays, names, place, global_scope() if scope is None else scope)
    seconds = _timed(run, runs=max(1, runs), warmup=warmup)
    peak = _growth(before, place.peak_memory(), resident=place.memory_kind == "resident")
    emulated = place.emulates_low and has_low_values(loaded)
    counts = _counted(loaded, arrays, names)
    return StepProfile(
        place=str(place),
        runs=len(seconds),
        milliseconds=statistics.median(seconds) * 1e3,
        nodes=counts["nodes"],
        casts=counts["casts"],
        alive_bytes=counts["alive_bytes"],
        kept_bytes=counts["kept_bytes"],
        peak_bytes=peak,
        memory=place.memory_kind,
        emulated=emulated,
        note="; ".join(filter(None, (_EMULATED if emulated else "", counts["note"]))),
    )


def _runner(
    source: AnyProgram,
    program: Program,
    arrays: Mapping[str, np.ndarray],
    fetch: Sequence[str] | None,
    place: Place,
    scope: Scope,
) -> Callable[[], object]:
    """Return a function that runs once and waits for the end."""
    if not program.is_training:
        if fetch is not None:
            program = program.clone()
            program.outputs = list(fetch)
            return Session(program, place).bind(arrays)
        return Session(source if isinstance(source, (str, os.PathLike)) else program, place).bind(arrays)
    run_scope = Scope()
    for name in scope:
        run_scope.hold(name, scope.held(name))  # a run writes to new buffers, so the values can be shared
    executor = StepExecutor(place, StepOptions())
    wanted = program.outputs if fetch is None else fetch
    return lambda: executor.run(program, wanted, arrays, run_scope)


def _timed(run: Callable[[], object], *, runs: int, warmup: int) -> list[float]:
    for _ in range(warmup):
        run()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def _growth(before: tuple[int | None, int | None], peak: int | None, *, resident: bool) -> int | None:
    in_use, earlier = before
    if in_use is None or peak is None or (resident and peak == earlier):
        return None
    return max(0, peak - in_use)


def _counted(program: Program, arrays: Mapping[str, np.ndarray], fetch: Sequence[str] | None) -> dict[str, Any]:
    """Return the counts of a `StepProfile`, for the shapes that are fed."""
    sized = _sized(program, arrays)
    if fetch is None:
        fetch = sized.outputs or [str(value.name) for value in sized.model.graph.outputs]
    model = lower(assemble(sized, fetch)).model
    working = [node for node in model.graph.all_nodes() if node.op_type not in _WITHOUT_KERNEL]
    casts = sum(node.op_type == "Cast" for node in working)
    try:
        alive, for_backward, note = live_bytes(sized, fetch), kept_bytes(sized, fetch), ""
    except InputError as error:  # a shape depends on values
        alive, for_backward, note = None, None, f"not counted: {str(error).partition(':')[0]}"
    return {"nodes": len(working), "casts": casts, "alive_bytes": alive, "kept_bytes": for_backward, "note": note}


def _sized(program: Program, arrays: Mapping[str, np.ndarray]) -> Program:
    """Return a copy of the program with the sizes that are fed, wherever their names stand."""
    sized = program.clone()
    sizes = {
        declared.value: size
        for value in sized.model.graph.inputs
        if value.name in arrays and value.shape is not None
        for declared, size in zip(value.shape, arrays[str(value.name)].shape, strict=False)
        if isinstance(declared, ir.SymbolicDim)
    }
    specialise(sized.model, {name: array.shape for name, array in arrays.items()})
    expand_gradients(sized.model)
    for node in sized.model.graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape([d if isinstance(d, int) else sizes.get(d.value) for d in value.shape])
    sized.touch()
    return sized


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 2**20:.1f} MB" if count >= 1 << 20 else f"{count / 2**10:.1f} KB"
