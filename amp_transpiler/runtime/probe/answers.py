"""Asking a device: runs the graph of a question, and says which candidate gives the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.runtime.ort import SessionSettings, error_text, nodes_on_cpu
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.probe.arithmetic import Array, Rounding
from amp_transpiler.runtime.probe.question import Candidate, Question
from amp_transpiler.runtime.run_errors import NO_VALUE
from amp_transpiler.runtime.session import Session

__all__ = ["SETTINGS", "Row", "answer", "distance"]

Row: TypeAlias = dict[str, Any]

SETTINGS = SessionSettings(threads=1, record_assignment=True)
"""Else as ONNX Runtime opens a session; one thread, so that a CPU adds up in one order."""

_SAMPLES = 16


def answer(question: Question, place: Place) -> Row:
    """Return what a device answers to a question; a refusal is an answer, too."""
    row: Row = {
        "probe": question.probe,
        "op": question.op,
        "format": question.low.name,
        "condition": question.condition,
    }
    feeds = question.feeds()
    try:
        session = place.open_session(question.model().SerializeToString(), SETTINGS)
        with Session.over(session, place) as opened:
            results = [np.asarray(opened.run(feeds, ["y"])[0]) for _ in range(question.repeats)]
    except NO_VALUE as error:
        return {**row, "refused": error_text(error, 200)}
    on_cpu = [] if place.in_main_memory else nodes_on_cpu(session)
    if on_cpu:
        row["on_cpu"] = list(on_cpu)
    result = results[0]
    distances = _distances(question, result)
    return {
        **row,
        "candidates": distances,
        "is": next((name for name, value in distances.items() if value.get("differing") == 0), None),
        "deterministic": all(_bits(other).tobytes() == _bits(result).tobytes() for other in results[1:])
        if question.repeats > 1
        else None,
        "inputs_sha256": _digest([*feeds.values()]),
        "outputs_sha256": _digest([result]),
        "sample_bits": _sample(_bits(result)),
    }


def _distances(question: Question, result: Array) -> dict[str, Row]:
    with np.errstate(invalid="ignore"):  # NaN is among the inputs
        wide = question.wide()
    return {name: _tried(candidate, question.low, wide, result) for name, candidate in question.candidates.items()}


def _tried(candidate: Candidate, low: LowFormat, wide: Mapping[str, Array], result: Array) -> Row:
    with np.errstate(all="ignore"):  # of NaN, infinities and subnormals, which are among the inputs
        expected = np.asarray(candidate(Rounding(low), **wide), np.float64)
        if expected.shape != result.shape:
            return {"shape": list(expected.shape), "device_shape": list(result.shape)}
        return distance(result.astype(np.float64), expected, low)


def distance(result: Array, expected: Array, low: LowFormat) -> Row:
    """Return how far a result is from what was expected, in units in the last place of the format.

    Returns:
        `max_ulp` and `rms_ulp` of the finite values; `relative`: the norm of what differs over the norm of what was
        expected, which unlike them does not grow where a sum cancels; `differing`: how many values are not the same;
        `nonfinite`: how many are NaN or infinite only on one side, or of another sign; `of`: how many there are.
    """
    finite = np.isfinite(result) & np.isfinite(expected)
    same_kind = (np.isnan(result) & np.isnan(expected)) | (result == expected)
    wrong_kind = ~finite & ~same_kind
    smallest = 2.0**-14 if low.name == "float16" else 2.0**-126
    result, expected = np.where(finite, result, 0.0), np.where(finite, expected, 0.0)
    apart, norm = np.abs(result - expected), float(np.linalg.norm(expected))
    exponents = np.floor(np.log2(np.maximum(np.abs(expected), smallest)))
    ulps = apart / 2.0 ** (exponents - low.digits + 1)
    return {
        "max_ulp": round(float(ulps.max(initial=0.0)), 3),
        "rms_ulp": round(float(np.sqrt((ulps**2).mean())), 5) if ulps.size else 0.0,
        "relative": float(f"{np.linalg.norm(apart) / norm:.3g}") if norm else None,
        "differing": int((wrong_kind | (ulps > 0)).sum()),
        "nonfinite": int(wrong_kind.sum()),
        "of": int(result.size),
    }


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _digest(arrays: Sequence[Array]) -> str:
    digest = hashlib.sha256()
    for values in arrays:
        digest.update(f"{values.dtype.name}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _sample(bits: Array) -> list[int]:
    flat = bits.reshape(-1)
    if not flat.size:
        return []
    places = np.linspace(0, flat.size - 1, min(_SAMPLES, flat.size)).astype(int)
    return [int(value) for value in flat[places]]
