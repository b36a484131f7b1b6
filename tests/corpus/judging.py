"""A written file of the corpus before the oracle: valid, opened, its values and counts within what is recorded."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import amp_transpiler as amp
from tests.corpus.agreement import FIVE_PERCENT, TWO_PERCENT
from tests.corpus.files import inputs_of, name_of
from tests.corpus.limits import Entry, faults, limit_of, source_mark
from tests.oracle.interpreter import CannotEvaluate
from tests.oracle.judge import CannotRun, Counts, Values, checker_fault, count, judge_values, opening_fault

LIMITS = {"float16": TWO_PERCENT, "bfloat16": FIVE_PERCENT}
_MAX_BYTES = 300 << 20  # of a model: the oracle keeps its weights in memory, low and widened
# Both judges round alike but add up in another order. One sum that is rounded the other way, of a value that scales a
# whole channel, tripled the error of a text detector (0.1 % to 0.3 %). They may differ by this factor and so much more.
_FACTOR, _ROOM = 2.0, {"float16": 4 * 2.0**-11, "bfloat16": 4 * 2.0**-8}

_EXCUSABLE = 0.01  # the share of labels that a verdict may excuse
_SOME = 16  # of so many integers one may differ: a sum that is rounded the other way can take one over its bound


@dataclasses.dataclass(frozen=True)
class Judged:
    """What the oracle found.

    Attributes:
        invalid: why the file is none that one could use; empty if it is.
        worse: in what it is worse than the table allows; empty if in nothing.
        values: how far its outputs are from float32; None if no judge could tell, which `told` says.
        measured: for the table of limits.
        told: all of it in a line.
    """

    invalid: list[str]
    worse: list[str]
    values: Values | None
    measured: dict[str, Any]
    told: str


def judge(model: pathlib.Path, written: pathlib.Path, variant: str, *, optimized: bool) -> Judged:
    """Judge a file that was made of `model` in one way (`O2 float16`).

    Args:
        model: the source.
        written: the file.
        variant: the way and the format.
        optimized: ONNX Runtime must open it with its default options, and not only without optimizing it.
    """
    name, mark = name_of(model), source_mark(model)
    computed = _find(model, written, optimized)
    values = computed.values
    entry = Entry.of(values, computed.counts)
    worse = faults(name, mark, variant, entry, values.elements if values else 0)
    error = f"not judged: {computed.reason}" if values is None else f"{entry.error:.3g} from float32"
    differing = f", {entry.differing:.3g} of the integers differ" if entry.differing else ""
    known = "" if limit_of(name, mark, variant) else ", no limits recorded"
    told = f"{entry.low} nodes low, {entry.casts} casts, {error}{differing}{known}"
    measured = {"model": name, "mark": mark, "variant": variant, "row": entry.row()}
    return Judged(computed.invalid, worse, values, measured, told)


@dataclasses.dataclass(frozen=True)
class _Found:
    invalid: list[str]
    counts: Counts
    values: Values | None
    reason: str  # why there are no values


_KNOWN: dict[
    tuple[str, bool], _Found
] = {}  # of the model that was asked about last: several ways lead to the same file
_LAST: list[pathlib.Path] = []


def _find(model: pathlib.Path, written: pathlib.Path, optimized: bool) -> _Found:
    if [model] != _LAST:
        _KNOWN.clear()
        _LAST[:] = [model]
    with written.open("rb") as file:
        key = hashlib.file_digest(file, "sha256").hexdigest(), optimized
    if key not in _KNOWN or any(written.parent.glob("*.data")):  # weights beside the file are not in its digest
        _KNOWN[key] = _Found(_invalid(model, written, optimized), count(written), *_values(model, written))
    return _KNOWN[key]


def _invalid(model: pathlib.Path, written: pathlib.Path, optimized: bool) -> list[str]:
    invalid, refused = checker_fault(written), opening_fault(written, optimized=optimized)
    return [
        *([f"onnx.checker: {invalid}"] if invalid and not _source_fault(model) else []),
        *([f"ONNX Runtime: {refused}"] if refused else []),
    ]


@functools.lru_cache(maxsize=2)
def _source_fault(model: pathlib.Path) -> str:
    return checker_fault(model)


def _values(model: pathlib.Path, written: pathlib.Path) -> tuple[Values | None, str]:
    if model.stat().st_size > _MAX_BYTES:
        return None, f"{model.stat().st_size >> 20} MB are too much for the oracle"
    try:
        return judge_values(model, written, inputs_of(model)), ""
    except (CannotEvaluate, CannotRun) as error:
        return None, str(error)


def contradictions(report: amp.Report, values: Values | None, dtype: str) -> list[str]:
    """List what a report says that the oracle's values contradict."""
    if values is None or report.verdict_word == "structure only":  # nothing is said of values
        return []
    words = list(_other_numbers(report, values, dtype)) if report.verdict_word != "not checked" else []
    if report.verdict_word != "compared":
        over = [f"{name}: {error:.3g}" for name, error in values.errors.items() if not error <= LIMITS[dtype]]
        excused = 1 / values.integers if values.integers >= _SOME else 0.0
        if values.differing > max(_EXCUSABLE, excused):
            over.append(f"{values.differing:.3g} of the integers differ")
        words += [f"'{report.verdict}', but the oracle finds {', '.join(over)}"] if over else []
    return words


def _other_numbers(report: amp.Report, values: Values, dtype: str) -> Iterator[str]:
    for name, error in values.errors.items():
        row = report.outputs.get(name)
        if row is None:
            yield f"{name} is not in the report; the oracle finds {error:.3g}"
            continue
        # The oracle rounds once a node, as the plain emulation does; a verdict states the worst of a device's draws.
        stated = row.relative if report.draws is None else report.draws.plain[name]
        # The oracle's error is the norm of the whole on the samples as given: a worse part or level says more than it.
        covered = (row.part or report.gains) and error <= stated
        if not covered and not _alike(stated, error, _ROOM[dtype]):
            yield f"{name}: {stated:.3g} in the report, {error:.3g} by the oracle"


def _alike(ours: float, theirs: float, room: float) -> bool:
    small, large = sorted((ours, theirs))
    return small == large or (math.isfinite(large) and large <= _FACTOR * small + room)
