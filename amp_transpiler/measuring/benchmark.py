"""Measures latency, throughput, memory and time per operator of one model, or of a float32 and a low one in turns."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from amp_transpiler.errors import PAGE, InputError
from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import save
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.measuring.node_times import NodeTimes, OperatorTime, node_times
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.runtime.ort import ORT_ERRORS
from amp_transpiler.runtime.places import Place, default_place, place_named
from amp_transpiler.runtime.session import AnyProgram, Session

__all__ = ["BenchmarkResult", "Profile", "benchmark", "measure_peak", "measure_peak_here", "profile"]

_logger = logging.getLogger(__name__)

CPU_TIMES = "on a CPU low precision buys size; its time says nothing about a GPU"
EMULATED_TIMES = "emulated, since ONNX Runtime does not run it on the CPU: its time says nothing about a GPU"
OPEN_SESSION = "of a session that is open only latencies are measured: profile the model for memory and operators"
HOST_TIMES = "time per operator is the host's, which starts kernels and does not wait for them"

_PRINTED = 8  # operators
_FEWEST = 5  # turns, however long they take


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The measurements of one model, as `print` shows them.

    Attributes:
        place: where it ran.
        runs: timed runs.
        p50_ms, p90_ms, p99_ms: latencies in milliseconds that half, nine tenths and 99 of 100 runs do not exceed,
            after warm-up, without copies from and to the host.
        mean_ms: the mean latency.
        samples: samples in a run: the first dimension, which all inputs share; None if they do not.
        memory: the kind of `peak_bytes`. `device`: growth of the device's memory in use, from before loading to after
            the runs (ONNX Runtime's arena keeps all memory that it once took). `resident`: growth of the resident
            memory of a separate process, from before loading to its peak.
        peak_bytes: peak of memory in a process of its own; None if it could not be measured.
        operators: time per operator, the longest first, from a few runs of their own.
        cpu_nodes: on a device, `OP NAME` of the nodes that ONNX Runtime runs on the CPU.
        copies: on a device, the copies from and to the host that it put between nodes.
        emulated: whether it ran emulated, so that its time and memory are those of the emulation.
        notes: limits of the measurements.
    """

    place: str
    runs: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float
    samples: int | None = None
    memory: str = "resident"
    peak_bytes: int | None = None
    operators: tuple[OperatorTime, ...] = ()
    cpu_nodes: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    emulated: bool = False
    notes: tuple[str, ...] = ()

    @property
    def throughput(self) -> float:
        """Samples a second at the mean latency; runs a second if the number of samples is not known."""
        return (self.samples or 1) * 1e3 / self.mean_ms if self.mean_ms else float("inf")

    def __str__(self) -> str:
        unit = "runs" if self.samples is None else "samples"
        peak = "unknown" if self.peak_bytes is None else f"{self.peak_bytes / 1e6:.1f} MB"
        lines = [
            f"{self.p50_ms:.3f} ms on {self.place} (p90 {self.p90_ms:.3f}, p99 {self.p99_ms:.3f}, {self.runs} runs)",
            f"{self.throughput:.1f} {unit} a second; peak memory {peak} ({self.memory})",
        ]
        lines += [
            f"{row.milliseconds:9.3f} ms {row.share:5.0%}  {row.nodes}x {row.operator} ({row.provider})"
            for row in self.operators[:_PRINTED]
        ]
        for title, names in (("on the CPU", self.cpu_nodes), ("copies", self.copies)):
            if names:
                lines.append(f"{title}: {', '.join(names)}")
        return "\n".join([*lines, *self.notes])


@dataclasses.dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """A float32 model and a low one, measured in turns.

    Attributes:
        reference: the float32 one.
        low: the low one.
        notes: limits of the measurements.
    """

    reference: Profile
    low: Profile
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where both ran."""
        return self.reference.place

    @property
    def runs(self) -> int:
        """Timed runs of each."""
        return self.reference.runs

    @property
    def reference_ms(self) -> float:
        """The median latency of the float32 program in milliseconds, without copies from and to the host."""
        return self.reference.p50_ms

    @property
    def low_ms(self) -> float:
        """The same for the low program."""
        return self.low.p50_ms

    @property
    def memory(self) -> str:
        """The kind of the peaks: see `Profile`."""
        return self.reference.memory

    @property
    def reference_peak(self) -> int | None:
        """Peak bytes of the float32 program; None if they could not be measured."""
        return self.reference.peak_bytes

    @property
    def low_peak(self) -> int | None:
        """The same for the low program."""
        return self.low.peak_bytes

    @property
    def emulated(self) -> bool:
        """Whether the low program ran emulated, so that its time and memory are those of the emulation."""
        return self.low.emulated

    @property
    def speedup(self) -> float | None:
        """Latency of the float32 program over that of the low one: above 1 if that is faster; None if emulated."""
        if self.emulated:
            return None
        return self.reference_ms / self.low_ms if self.low_ms else float("inf")

    @property
    def slower_than_fp32(self) -> bool | None:
        """Whether the low program took longer than the float32 one; None if it ran emulated."""
        return None if self.speedup is None else self.speedup < 1.0


def profile(
    model: AnyProgram | Session,
    feeds: Mapping[str, Any],
    place: Place | None = None,
    *,
    runs: int = 50,
    warmup: int = 5,
    seconds: float = 10.0,
) -> Profile:
    """Measure a model: latency after warm-up, throughput, memory, time per operator, nodes on the CPU and copies.

    On a CPU a low program runs as ONNX Runtime runs it (float16 mostly computed in float32), or emulated if it does
    not; either way a GPU runs something else, and the notes say so. A training step has `profile_step`.

    Args:
        model: anything that `Session` takes; or a session, which is timed as it is, without memory and operators.
        feeds: input name -> array.
        place: where to run; None for the session's place, CUDA if a device answers, else the CPU.
        runs: the most timed runs.
        warmup: untimed runs before.
        seconds: no further run begins after so long, but for the first five.

    Returns:
        The measurements, which `print` shows.

    Raises:
        InputError: the feeds do not fit, the model is a training program, or ONNX Runtime refuses it.
        EnvironmentProblem: the place cannot be used.
        ORT_ERRORS: ONNX Runtime crashes on the model.
    """
    if isinstance(model, Session):
        return _of_session(model, feeds, place, runs=runs, warmup=warmup, seconds=seconds)
    _refuse_training(model)
    place = default_place() if place is None else place
    peak, emulated = _peak_and_way(model, feeds, place)
    session = Session(model, place, emulate=emulated)
    (times,) = _in_turns([session.bind(feeds)], runs=runs, warmup=warmup, seconds=seconds)
    nodes = node_times(model, feeds, place, emulate=emulated)
    notes = (*_notes(model, place, emulated), *_of_device([session]))
    return _profile(place, times, feeds, nodes, peak=peak, emulated=emulated, notes=notes)


def benchmark(
    reference: AnyProgram,
    low: AnyProgram,
    feeds: Mapping[str, Any],
    place: Place | None = None,
    *,
    runs: int = 50,
    warmup: int = 5,
    seconds: float = 20.0,
) -> BenchmarkResult:
    """Measure a float32 program against its low-precision version on the same inputs.

    The two take turns, so that throttling and other load affect both alike. On the CPU the low program runs as ONNX
    Runtime runs it (float16 mostly computed in float32), or emulated if it does not. Memory is measured first, in
    processes of their own: a program that crashes ONNX Runtime ends one of those.

    Args:
        reference: the float32 program.
        low: the low-precision program.
        feeds: input name -> array.
        place: where to run; None for CUDA if a device answers, else the CPU.
        runs: the most timed runs of each program.
        warmup: untimed runs of each before.
        seconds: no further turn begins after so long, but for the first five.

    Raises:
        InputError: the feeds do not fit, or ONNX Runtime refuses one of the programs.
        EnvironmentProblem: the place cannot be used.
        ORT_ERRORS: ONNX Runtime crashes on one of the programs.
    """
    place = default_place() if place is None else place
    before = _in_child(reference, feeds, place).checked()
    peak, emulated = _peak_and_way(low, feeds, place)
    sessions = [Session(reference, place), Session(low, place, emulate=emulated)]
    times = _in_turns([session.bind(feeds) for session in sessions], runs=runs, warmup=warmup, seconds=seconds)
    notes = (*_notes(low, place, emulated), *_of_device(sessions))
    return BenchmarkResult(
        _profile(place, times[0], feeds, node_times(reference, feeds, place), peak=before.peak),
        _profile(place, times[1], feeds, node_times(low, feeds, place, emulate=emulated), peak=peak, emulated=emulated),
        notes,
    )


def _of_session(
    session: Session, feeds: Mapping[str, Any], place: Place | None, *, runs: int, warmup: int, seconds: float
) -> Profile:
    if place is not None and place != session.place:
        raise InputError(f"profile: the session runs on {session.place}, not on {place}: leave the place out")
    (times,) = _in_turns([session.bind(feeds)], runs=runs, warmup=warmup, seconds=seconds)
    limits = []
    if session.emulated:
        limits = [EMULATED_TIMES]
    elif session.place.emulates_low:
        limits = [CPU_TIMES]
    nodes = NodeTimes(cpu_nodes=session.cpu_nodes)
    notes = (*limits, *_of_device([session]), OPEN_SESSION)
    return _profile(session.place, times, feeds, nodes, peak=None, emulated=session.emulated, notes=notes)


def _refuse_training(model: AnyProgram) -> None:
    if not isinstance(model, (str, os.PathLike)) and load(model).is_training:
        raise InputError("profile: this is a training program; amp.profile_step measures a training step")


def _peak_and_way(program: AnyProgram, feeds: Mapping[str, Any], place: Place) -> tuple[int | None, bool]:
    """Return the peak of memory, and whether the program must run emulated."""
    measured = _in_child(program, feeds, place, emulate=False)
    if measured.failure is None or not place.emulates_low or not has_low_values(load(program)):
        return measured.checked().peak, False
    return _in_child(program, feeds, place).checked().peak, True


def _notes(program: AnyProgram, place: Place, emulated: bool) -> tuple[str, ...]:
    if not place.emulates_low:
        return (HOST_TIMES,)
    if emulated:
        return (EMULATED_TIMES,)
    return (CPU_TIMES,) if has_low_values(load(program)) else ()


def _of_device(sessions: Sequence[Session]) -> Iterator[str]:
    """Say what a time on a device rests on."""
    if sessions[0].tf32:
        yield "float32 products and convolutions may take TF32"
    graphs = [session.cuda_graph for session in sessions]
    if any(graphs):
        yield "each run is one CUDA graph" if all(graphs) else "one of the two runs as a CUDA graph"
    yield from dict.fromkeys(f"no CUDA graph: {session.no_cuda_graph}" for session in sessions if session.no_cuda_graph)


def _profile(
    place: Place,
    times: Sequence[float],
    feeds: Mapping[str, Any],
    nodes: NodeTimes,
    *,
    peak: int | None,
    emulated: bool = False,
    notes: tuple[str, ...] = (),
) -> Profile:
    milliseconds = np.asarray(times) * 1e3
    p50, p90, p99 = (float(value) for value in np.percentile(milliseconds, (50, 90, 99)))
    return Profile(
        place=str(place),
        runs=len(times),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        mean_ms=float(milliseconds.mean()),
        samples=_samples(feeds),
        memory=place.memory_kind,
        peak_bytes=peak,
        operators=nodes.operators,
        cpu_nodes=nodes.cpu_nodes,
        copies=nodes.copies,
        emulated=emulated,
        notes=notes,
    )


def _samples(feeds: Mapping[str, Any]) -> int | None:
    """Return the first dimension, if all inputs that have one share it."""
    first = {np.shape(value)[0] for value in feeds.values() if np.ndim(value)}
    return first.pop() if len(first) == 1 else None


def _in_turns(functions: Sequence[Callable[[], None]], *, runs: int, warmup: int, seconds: float) -> list[list[float]]:
    """Time functions in turn; return the seconds of every call of each."""
    for _ in range(warmup):
        for function in functions:
            function()
    times: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while len(times[0]) < max(1, runs) and (len(times[0]) < _FEWEST or time.perf_counter() < end):
        for function, durations in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            durations.append(time.perf_counter() - start)
    return times


@dataclasses.dataclass(frozen=True, slots=True)
class _Measured:
    """The outcome of loading and running a program in a process of its own.

    Attributes:
        peak: its peak of memory in bytes; None if that could not be measured.
        failure: the last line of what it said, or the signal that ended it; None if it did not fail.
        crashed: whether a signal ended it.
    """

    peak: int | None = None
    failure: str | None = None
    crashed: bool = False

    def checked(self) -> _Measured:
        """Return this, with a warning if the process failed; what else failed there fails here too, and says why.

        Raises:
            ORT_ERRORS: ONNX Runtime crashed, and would end this process as well.
        """
        if self.crashed:
            raise _CRASHED(f"ONNX Runtime crashed ({self.failure})")
        if self.failure is not None:
            _logger.warning("peak memory could not be measured: %s", self.failure)
        return self


_CODE = "import sys; from amp_transpiler.measuring.benchmark import measure_peak_here; measure_peak_here(sys.argv[1])"
_CRASHED = next(kind for kind in ORT_ERRORS if kind.__name__ == "RuntimeException")


def measure_peak(
    program: AnyProgram, feeds: Mapping[str, Any], place: Place | None = None, *, emulate: bool = True
) -> int | None:
    """Return the peak bytes of loading and running `program`, measured in a separate process.

    Args:
        program: a program with its weights, or anything else that `Session` takes.
        feeds: input name -> array.
        place: where to run; None for CUDA if a device answers, else the CPU.
        emulate: on the CPU, run a low program emulated.

    Returns:
        Growth of the device's memory in use, or on the CPU of the process's resident memory. None, with a warning in
        the log, if that process failed.

    Raises:
        ORT_ERRORS: the process crashed.
    """
    place = default_place() if place is None else place
    return _in_child(program, feeds, place, emulate=emulate).checked().peak


def _in_child(program: AnyProgram, feeds: Mapping[str, Any], place: Place, *, emulate: bool = True) -> _Measured:
    with temporary_folder() as folder:
        if isinstance(program, (str, os.PathLike)):
            model = pathlib.Path(program).absolute()
        else:
            model = folder / "model.onnx"
            save(load(program), model)
        arrays = {f"feed{i}": _storable(value) for i, value in enumerate(feeds.values())}
        np.savez(folder / "feeds.npz", allow_pickle=False, **arrays)
        order = {
            "model": str(model),
            "names": list(feeds),
            "dtypes": [array.dtype.name for array in arrays.values()],
            "place": str(place),
            "emulate": emulate,
        }
        (folder / "order.json").write_text(json.dumps(order))
        return _measured_in(folder)


def _storable(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.str_) if array.dtype.kind == "O" else array


def _measured_in(folder: pathlib.Path) -> _Measured:
    package_parent = str(pathlib.Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (package_parent, os.environ.get("PYTHONPATH")) if part)
    child = subprocess.run(  # noqa: S603  this very interpreter, with a folder made above
        [sys.executable, "-c", _CODE, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode < 0:
        return _Measured(failure=signal.Signals(-child.returncode).name, crashed=True)
    if child.returncode > 0:
        said = [line for line in child.stderr.strip().splitlines() if not line.startswith(f"See {PAGE}")]
        return _Measured(failure=(said or [f"exit status {child.returncode}"])[-1])
    return _Measured(peak=json.loads((folder / "peak.json").read_text()))


def measure_peak_here(folder: str | os.PathLike[str]) -> None:
    """Carry out `order.json` in `folder` and write the peak to `peak.json`, in the process of `measure_peak`."""
    work_folder = pathlib.Path(folder)
    order = json.loads((work_folder / "order.json").read_text())
    feeds = _read_feeds(work_folder / "feeds.npz", order)
    place = place_named(order["place"])
    before = place.memory_in_use()
    run = Session(order["model"], place, emulate=order["emulate"]).bind(feeds)
    for _ in range(2):  # the first run also chooses algorithms; the second allocates as later ones do
        run()
    after = place.peak_memory()
    peak = None if before is None or after is None else max(0, after - before)
    (work_folder / "peak.json").write_text(json.dumps(peak))


def _read_feeds(file: pathlib.Path, order: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read feeds back. numpy's files do not store the element types of `ml_dtypes`, so their names are in the order."""
    with np.load(file, allow_pickle=False) as arrays:
        stored = [arrays[f"feed{i}"] for i in range(len(order["names"]))]
    extensions = [getattr(ml_dtypes, name, None) for name in order["dtypes"]]
    typed = [array if dtype is None else array.view(dtype) for array, dtype in zip(stored, extensions, strict=True)]
    return dict(zip(order["names"], typed, strict=True))
