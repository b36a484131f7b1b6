"""Checks the written file on a device: opens it as users do, runs it three times, judges it by float32 and emulation.

An option of a session can spoil only later runs: `fuse_conv_bias` did, from the second run on. So each session runs
on three samples, and each run is judged by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from amp_transpiler.child_process.child import RUN_ERRORS, RuntimeCrash
from amp_transpiler.child_process.remote import open_as_session, open_by_default, open_file, open_program
from amp_transpiler.errors import InputError
from amp_transpiler.precision.limits import Limits
from amp_transpiler.program.program import Program
from amp_transpiler.report import OutputComparison
from amp_transpiler.report.wording import percent
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.verification.accuracy import Reference
from amp_transpiler.verification.first_states import first_states
from amp_transpiler.verification.run_samples import RUNS, RunsSamples, for_runs, run_sample
from amp_transpiler.verification.structure import lacks_something
from amp_transpiler.verification.verdict import failing_outputs, fault_of, worst

__all__ = ["FORMS", "DeviceFault", "DeviceOutcome", "Form", "check_on_device", "is_contradicted"]

logger = logging.getLogger(__name__)

Form: TypeAlias = Literal["amp.Session", "ONNX Runtime's default session"]
FORMS: tuple[Form, ...] = ("amp.Session", "ONNX Runtime's default session")
"""The sessions that a file is checked in: what `amp.Session` opens, with its options and CUDA graph; the default."""

_TIMES = 2.0  # of 34 models on an H100, 32 were within 1.8 times of their emulated error
# What devices round otherwise than the emulation does, whatever it says: half a unit of the format's last place; in
# float32 that is TF32, in which products and convolutions take their operands.
_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-10}
_ERRORS: tuple[type[Exception], ...] = (*RUN_ERRORS, InputError)
_NO_MEMORY = ("Failed to allocate memory", "out of memory", "STATUS_ALLOC_FAILED")  # ONNX Runtime's words, and CUDA's
_ANYTHING_LIKE_IT = Limits(tolerance=1.0, mismatch=1.0)


Opener: TypeAlias = Callable[[Form], contextlib.AbstractContextManager[RunsSamples]]


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceFault:
    """A session that is not as it should be on the device.

    Attributes:
        form: which session.
        detail: what is wrong, with numbers.
        of_source: the source itself fails there.
    """

    form: Form
    detail: str
    of_source: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceOutcome:
    """What the sessions of a device did.

    Attributes:
        sessions: those that ran well.
        faults: what is wrong with the others.
        skipped: session -> why nothing can be said of it.
        outputs: graph output -> its comparison with float32, of the run with the largest error on the samples that the
            verdict is about.
        emulated: graph output -> the relative error of the emulation on that sample.
        contradictions: a sentence for each output whose error the emulation does not explain.
    """

    sessions: tuple[Form, ...]
    faults: tuple[DeviceFault, ...]
    skipped: Mapping[Form, str]
    outputs: Mapping[str, OutputComparison]
    emulated: Mapping[str, float]
    contradictions: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """One run of a session, to be judged.

    Attributes:
        number: from 1.
        expected: the float32 outputs of its sample, as a reference of one sample.
        sample: the inputs.
        emulated: output -> the comparison of the emulation with float32; empty where that did not run.
        counts: the verdict is about its sample; else it is a reordered one.
    """

    number: int
    expected: Reference
    sample: Mapping[str, Any]
    emulated: Mapping[str, OutputComparison]
    counts: bool


def check_on_device(
    path: pathlib.Path,
    program: Program,
    source: Program,
    reference: Reference | None,
    limits: Limits,
    dtype: str,
    place: str,
    opener: Opener | None = None,
) -> DeviceOutcome:
    """Open the file at `path` in each form of `FORMS` on a device, and run it three times on different samples.

    Args:
        path: the written file.
        program: the program that it holds.
        source: the program as the user gave it; a fault that it has on the device, too, is its own.
        reference: samples, and the float32 outputs; None to open the file only.
        limits: of the outputs.
        dtype: the low format.
        place: the device, such as `CUDA:0`.
        opener: opens a form of the file; None for a session in a child process.
    """
    opener = opener or functools.partial(_opened, path, place)
    runs = [] if reference is None else _runs(program, reference, limits)
    sessions: list[Form] = []
    faults: list[DeviceFault] = []
    skipped: dict[Form, str] = {}
    judged: list[tuple[_Run, Mapping[str, OutputComparison]]] = []
    for form in FORMS:
        try:
            with opener(form) as session:
                rows = [(run, _compared(session, run, limits)) for run in runs]
        except _ERRORS as error:
            if _says_nothing(error):
                skipped[form] = str(error) if isinstance(error, InputError) else error_text(error)
                continue
            fault: str | None = f"it fails: {error_text(error)}"
        else:
            judged += rows
            fault = next((text for run, compared in rows if (text := _fault(run, compared, limits, dtype))), None)
        if fault is None:
            sessions.append(form)
        else:
            faults.append(DeviceFault(form, fault, of_source=_source_fails(source, place, reference)))
    worst_rows = _worst_rows(judged)
    return DeviceOutcome(
        tuple(sessions),
        tuple(faults),
        skipped,
        {name: row for name, (_, row) in worst_rows.items()},
        {name: run.emulated[name].relative for name, (run, _) in worst_rows.items() if name in run.emulated},
        tuple(dict.fromkeys(text for run, rows in judged for text in _contradictions(run, rows, dtype))),
    )


def _says_nothing(error: Exception) -> bool:
    """Whether an error is no fault of the file: feeds that cannot be passed, a missing kernel, or too little memory."""
    if isinstance(error, InputError) or lacks_something(error):
        return True
    if isinstance(error, RuntimeCrash):
        return error.signal == "SIGKILL"
    return any(sign in str(error) for sign in _NO_MEMORY)


@contextlib.contextmanager
def _opened(path: pathlib.Path, place: str, form: Form) -> Iterator[RunsSamples]:
    with open_as_session(path, place) if form == "amp.Session" else open_file(path, None, place) as session:
        yield session


def _runs(program: Program, reference: Reference, limits: Limits) -> list[_Run]:
    """Return the runs: each sample with what float32 and the emulation make of it."""
    sampled = for_runs(reference)
    singles = [
        dataclasses.replace(sampled, samples=[sample], outputs=[outputs], _fetched={})
        for sample, outputs in zip(sampled.samples, sampled.outputs, strict=True)
    ]
    emulated: list[Mapping[str, OutputComparison]] = [{}] * len(singles)
    added: dict[str, Any] = {}
    try:
        with open_program(program) as session:
            added = first_states(program, session, sampled.samples)
            for number, single in enumerate(singles):
                sample = {**added, **single.samples[0]}
                emulated[number] = single.compare_results([_run(session, sample)], limits)
    except RUN_ERRORS as error:
        logger.info("the emulation does not run, so the device is compared with float32 only: %s", error_text(error))
    known = len(reference.samples)
    return [
        _Run(number, single, {**added, **single.samples[0]}, rows, counts=number <= known)
        for number, (single, rows) in enumerate(zip(singles, emulated, strict=True), start=1)
    ]


def _run(session: RunsSamples, sample: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip((info.name for info in session.outputs), run_sample(session, sample), strict=True))


def _compared(session: RunsSamples, run: _Run, limits: Limits) -> Mapping[str, OutputComparison]:
    return run.expected.compare_results([_run(session, run.sample)], limits)


def _fault(run: _Run, rows: Mapping[str, OutputComparison], limits: Limits, dtype: str) -> str | None:
    """Return what is wrong with a run; None if nothing is.

    A reordered sample is nobody's data: there the emulation has to be within the limits for the device to be judged
    by them, and else the device may be as far off as the emulation.
    """
    failing = failing_outputs(rows.values(), run.expected, limits)
    if not run.counts:
        beyond = {row.name for row in failing_outputs(run.emulated.values(), run.expected, limits)}
        failing = [
            row
            for row in failing
            if row.name in run.emulated and (row.name not in beyond or is_contradicted(row, run.emulated, dtype))
        ]
    if not failing:
        return None
    row = worst(failing)
    emulation = run.emulated.get(row.name)
    second = "" if emulation is None else f"; emulated it differs by {percent(emulation.relative)}"
    return f"in run {run.number} of {RUNS} {fault_of(row, limits)}{second}"


def is_contradicted(row: OutputComparison, emulated: Mapping[str, OutputComparison], dtype: str) -> bool:
    """Whether an output is further from float32 than its emulation explains.

    Args:
        row: the output on the device.
        emulated: the emulation's outputs on the same sample.
        dtype: the low format.
    """
    other = emulated.get(row.name)
    if other is None or row.structure_differs or other.structure_differs:
        return other is not None and row.structure_differs != other.structure_differs
    if row.nonfinite or other.nonfinite:
        return bool(row.nonfinite) and not other.nonfinite
    return not row.relative <= _TIMES * other.relative + _ROUNDING.get(dtype, _ROUNDING["float32"])


def _contradictions(run: _Run, rows: Mapping[str, OutputComparison], dtype: str) -> Iterator[str]:
    for name, row in rows.items():
        if name not in run.expected.unsteady and is_contradicted(row, run.emulated, dtype):
            emulated = run.emulated[name].relative
            yield f"output '{name}' differs from float32 by {percent(row.relative)}, emulated by {percent(emulated)}"


def _worst_rows(
    judged: Sequence[tuple[_Run, Mapping[str, OutputComparison]]],
) -> dict[str, tuple[_Run, OutputComparison]]:
    """Return, for each output, the run on the verdict's samples in which it is furthest from float32."""
    furthest: dict[str, tuple[_Run, OutputComparison]] = {}
    for run, rows in judged:
        for name, row in rows.items() if run.counts else ():
            if name not in furthest or _distance(row) > _distance(furthest[name][1]):
                furthest[name] = run, row
    return furthest


def _distance(row: OutputComparison) -> tuple[float, float]:
    return row.relative, row.mismatch


def _source_fails(source: Program, place: str, reference: Reference | None) -> bool:
    """Whether the source itself fails on the device, or computes something else there."""
    try:
        with open_by_default(source, place) as session:
            if reference is None:
                return False
            feeds = reference.feeds(info.name for info in session.inputs)
            rows = reference.compare_results((_run(session, sample) for sample in feeds), _ANYTHING_LIKE_IT)
    except _ERRORS as error:
        logger.info("the source does not run on %s either: %s", place, error)
        return True
    return bool(failing_outputs(rows.values(), reference, _ANYTHING_LIKE_IT))
