"""Latency and peak memory of a program and its low-precision version, side by side."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from amp_transpiler.graph.loading import load
from amp_transpiler.graph.saving import save
from amp_transpiler.graph.staging import temporary_folder
from amp_transpiler.runtime.ort import ORT_ERRORS
from amp_transpiler.runtime.places import Place, default_place, place_named
from amp_transpiler.runtime.session import AnyProgram, Session

__all__ = ["BenchmarkResult", "benchmark", "measure_peak", "measure_peak_here"]

_logger = logging.getLogger(__name__)

CPU_TIMES = "on a CPU low precision buys size; its time says nothing about a GPU"
EMULATED_TIMES = "emulated, since ONNX Runtime does not run it on the CPU: its time says nothing about a GPU"


@dataclasses.dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """The measurements of a benchmark.

    Attributes:
        place: where both programs ran.
        runs: timed runs of each.
        reference_ms: median latency of the float32 program in milliseconds, without copies from and to the host.
        low_ms: the same for the low program.
        memory: the kind of the peaks. `device`: growth of the device's memory in use, from before loading to after the
            runs (ONNX Runtime's arena keeps all memory that it once took). `resident`: growth of the resident memory
            of a separate process, from before loading to its peak.
        reference_peak: peak bytes of the float32 program; None if they could not be measured.
        low_peak: the same for the low program.
        emulated: whether the low program ran emulated, so that its time and memory are those of the emulation.
        notes: limits of the measurements.
    """

    place: str
    runs: int
    reference_ms: float
    low_ms: float
    memory: str
    reference_peak: int | None
    low_peak: int | None
    emulated: bool = False
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float | None:
        """Latency of the float32 program over that of the low one: above 1 if that is faster; None if emulated."""
        if self.emulated:
            return None
        return self.reference_ms / self.low_ms if self.low_ms else float("inf")


def benchmark(
    reference: AnyProgram,
    low: AnyProgram,
    feeds: Mapping[str, Any],
    place: Place | None = None,
    *,
    runs: int = 20,
    warmup: int = 3,
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
        runs: timed runs of each program, at least 1.
        warmup: untimed runs of each before.

    Raises:
        InputError: the feeds do not fit.
        EnvironmentProblem: the place cannot be used.
        ORT_ERRORS: ONNX Runtime refuses one of the programs, or crashes on it.
    """
    place = default_place() if place is None else place
    before = _in_child(reference, feeds, place).checked()
    after = _in_child(low, feeds, place, emulate=False)
    if after.failure is not None and place.emulates_low:
        emulated, after = True, _in_child(low, feeds, place)
    else:
        emulated = False
    after.checked()
    run_reference = Session(reference, place).bind(feeds)
    run_low = Session(low, place, emulate=emulated).bind(feeds)
    times_reference, times_low = _alternate(run_reference, run_low, runs=max(1, runs), warmup=warmup)
    return BenchmarkResult(
        place=str(place),
        runs=max(1, runs),
        reference_ms=statistics.median(times_reference) * 1e3,
        low_ms=statistics.median(times_low) * 1e3,
        memory=place.memory_kind,
        reference_peak=before.peak,
        low_peak=after.peak,
        emulated=emulated,
        notes=(EMULATED_TIMES,) if emulated else (CPU_TIMES,) if place.emulates_low else (),
    )


def _alternate(
    first: Callable[[], None], second: Callable[[], None], *, runs: int, warmup: int
) -> tuple[list[float], list[float]]:
    """Time two functions in turn; return the seconds of every call of each."""
    for _ in range(warmup):
        first()
        second()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for function, found in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
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


_CODE = "import sys; from amp_transpiler.runtime.benchmark import measure_peak_here; measure_peak_here(sys.argv[1])"
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
        return _Measured(failure=(child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1])
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
        found = [arrays[f"feed{i}"] for i in range(len(order["names"]))]
    extensions = [getattr(ml_dtypes, name, None) for name in order["dtypes"]]
    typed = [array if dtype is None else array.view(dtype) for array, dtype in zip(found, extensions, strict=True)]
    return dict(zip(order["names"], typed, strict=True))
