"""The verdict on a converted program: its outputs against the tolerance, and the notes for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from amp_transpiler.report import OutputComparison, Report
from amp_transpiler.verification.accuracy import Reference

__all__ = ["failing_outputs", "judge"]


def failing_outputs(report: Report, reference: Reference, tolerance: float) -> list[OutputComparison]:
    """Return the outputs that became non-finite, or whose relative error exceeds the tolerance."""
    unjudged = reference.unjudged()
    return [
        row
        for row in report.outputs.values()
        if row.nonfinite or (not row.relative <= tolerance and row.name not in unjudged)  # `not <=` catches NaN too
    ]


def judge(report: Report, reference: Reference, failing: list[OutputComparison], tolerance: float) -> str:
    """Write verdict and notes into `report`; return why the result is not good enough, empty if it is."""
    data = f"{len(reference.samples)} given" if reference.given else "1 made-up"
    samples = f"{data} sample{'s' if len(reference.samples) > 1 else ''}"
    if failing:
        report.verdict = f"failed on {samples}"
        return _failure(report, failing, tolerance)
    unjudged, empty = reference.unjudged(), _without_comparable(reference)
    report.notes = (*report.notes, *_remarks(report, unjudged, empty))
    if set(report.outputs) <= {*unjudged, *empty}:
        report.verdict = "structurally checked only: no finite output to compare"
        why = "no output shows an error; supply other inputs with --inputs" if report.outputs else "no outputs"
        report.notes = (*report.notes, f"not compared with the fp32 model: {why}")
        return ""
    worst = max((row.relative for row in report.outputs.values() if row.name not in unjudged), default=0.0)
    report.verdict = f"verified: within {worst:.2%} of {reference.name} on {samples}, rounding emulated"
    if not reference.given:
        report.notes = (*report.notes, "compared on made-up inputs; judge on real ones with --inputs")
    return ""


def _failure(report: Report, failing: list[OutputComparison], tolerance: float) -> str:
    row = max(failing, key=lambda row: (row.nonfinite, row.relative))
    if row.nonfinite:
        fault = f"has {row.nonfinite} non-finite values where fp32 is finite"
    else:
        fault = f"differs by {row.relative:.2%} in relative norm, allowed are {tolerance:.2%}"
    repaired = f" after making {len(report.repaired)} nodes float32" if report.repaired else ""
    return (
        f"{report.source}: output '{row.name}' {fault}{repaired}; nothing was written. Try level auto or O1, bfloat16, "
        "a black list, or a larger --tolerance"
    )


def _remarks(report: Report, unjudged: list[str], empty: list[str]) -> Iterator[str]:
    """Yield what the verdict leaves out: repairs, and outputs that were not judged or that changed."""
    if report.repaired:
        yield f"{len(report.repaired)} nodes were made float32 to be accurate enough"
    if unjudged:
        yield f"the made-up inputs leave {', '.join(unjudged)} practically zero, so its error is not judged"
    if empty:
        yield f"empty, NaN or infinite in fp32, so that nothing is compared: {', '.join(empty)}"
    changed = [row.name for row in report.outputs.values() if row.mismatched]
    if changed:
        yield f"integer or text outputs that changed: {', '.join(changed)}"


def _without_comparable(reference: Reference) -> list[str]:
    """Return the names of outputs without a comparable element in any sample."""
    names = dict.fromkeys(name for sample in reference.outputs for name in sample)
    return [
        name
        for name in names
        if not any(_is_comparable(array) for sample in reference.outputs for array in _arrays(sample[name]))
    ]


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of an output, which may be a sequence, the mapping of a ZipMap, or None."""
    if isinstance(value, Mapping):
        yield from (np.asarray(list(value)), np.asarray(list(value.values())))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
    elif value is not None:
        yield np.asarray(value)


def _is_comparable(array: np.ndarray) -> bool:
    """Whether an array has an integer, a truth value or text, or a float that is finite."""
    return bool(array.size) if array.dtype.kind in "biuOUS" else bool(np.isfinite(array).any())
