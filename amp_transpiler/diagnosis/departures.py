"""Finds the kernels that compute something else than the emulation of a low program: both run on the same samples.

A kernel rounds in another order than the emulation does, so two results are never equal. They agree if they lie no
further apart than the errors of both explain, taking the emulated error for that of the device, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.differences import Difference, Measured, difference
from amp_transpiler.child_process.remote import open_program
from amp_transpiler.diagnosis.compared_reads import compared_reads
from amp_transpiler.diagnosis.pairs import Pairs, Shapes, through_casts
from amp_transpiler.graph.dtypes import LOW_NUMPY_DTYPES, LowFormat
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.ops.names import operator_name
from amp_transpiler.program.program import Program
from amp_transpiler.report.diagnosis import Departure, RunForm
from amp_transpiler.verification.calibrate import PIECE
from amp_transpiler.verification.run_samples import RunsSamples, run_sample

__all__ = ["Compared", "Form", "compared_results", "departures", "exposed"]

_TIMES = 3.0  # the emulated error: once for the emulation, twice for the device, which was within 1.8 times of it
_FLOAT32 = 4  # bytes of a number, of which groups are counted: no result takes more


Opener: TypeAlias = Callable[[Program], contextlib.AbstractContextManager[RunsSamples]]


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A program that is to compute what a low program does.

    Attributes:
        name: how it is run.
        program: the low program, or what became of it. Values of the same name are the same results.
        opener: opens a program, as one that is run so.
    """

    name: RunForm
    program: Program
    opener: Opener


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """A result that is compared.

    Attributes:
        node: the name of the float32 node that makes it.
        value: its name in the float32 program.
        allowed: the largest difference that says nothing, a fraction.
        size: bytes of it, as far as its shape is known.
    """

    node: str
    value: str
    allowed: float
    size: int


def compared_results(
    pairs: Pairs, measured: Mapping[str, Measured], shapes: Shapes, low: LowFormat
) -> dict[str, Compared]:
    """Return name of a result in the low program -> what is compared of it, in the order of the float32 program.

    Args:
        pairs: the results that both programs have.
        measured: result of the float32 program -> how far the emulation is from it.
        shapes: result of the float32 program -> its shape on a sample.
        low: the low format.
    """
    results = {}
    for its, mine in pairs.low.items():
        name, node = str(its.name), its.producer()
        if name not in measured or node is None or not isinstance(mine.type, ir.TensorType):
            continue
        allowed = _TIMES * measured[name].low.error + 2.0**-low.digits
        size = math.prod(shapes.get(name, ())) * _FLOAT32
        results[str(mine.name)] = Compared(str(node.name), name, allowed, size)
    return results


def exposed(program: Program, names: Sequence[str]) -> Program:
    """Return a copy of a program whose outputs are some of its values."""
    copy = program.clone()
    copy.source = None
    values = values_by_name(copy.model.graph)
    copy.model.graph.outputs[:] = [values[name] for name in names]
    copy.touch()
    return copy


def departures(
    low: Program,
    form: Form,
    results: Mapping[str, Compared],
    samples: Sequence[Mapping[str, Any]],
    limit: float = PIECE,
) -> tuple[int, tuple[Departure, ...]]:
    """Run a form of a low program beside its emulation.

    Args:
        low: the low program; not changed.
        form: what is to compute the same.
        results: what to compare; see `compared_results`.
        samples: the inputs.
        limit: bytes of the results that are fetched together.

    Returns:
        How many results the form has, and those of them that agree no more, while all that they are computed from does.

    Raises:
        RUN_ERRORS: one of them does not run.
        InputError: the samples cannot be fed.
    """
    values = values_by_name(form.program.model.graph)
    names = [name for name in results if name in values and values[name].producer() is not None]
    totals = _differences(low, form, names, _groups(names, results, limit), samples)
    beyond = {name for name, both in totals.items() if _departs(both, results[name].allowed)}
    compared = {values[name] for name in totals}
    origins = [
        name for name in beyond if all(read.name not in beyond for read in compared_reads(values[name], compared))
    ]
    rows = [_departure(form.name, results[name], values[name], totals[name]) for name in names if name in origins]
    return len(totals), tuple(rows)


@dataclasses.dataclass(frozen=True, slots=True)
class _Both:
    """A result of both runs, over all samples.

    Attributes:
        there: how far the form's is from the emulation's.
        here: how far the emulation's is from the form's: what is finite only there counts in it.
    """

    there: Difference = dataclasses.field(default_factory=Difference)
    here: Difference = dataclasses.field(default_factory=Difference)

    def __add__(self, other: _Both) -> _Both:
        return _Both(self.there + other.there, self.here + other.here)


def _groups(names: Sequence[str], results: Mapping[str, Compared], limit: float) -> Iterator[list[str]]:
    group: list[str] = []
    for name in names:
        if group and sum(results[each].size for each in group) + results[name].size > limit:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def _differences(
    low: Program,
    form: Form,
    names: Sequence[str],
    groups: Iterator[list[str]],
    samples: Sequence[Mapping[str, Any]],
) -> dict[str, _Both]:
    """Return name of a result -> how far both runs of it lie apart."""
    totals: dict[str, _Both] = {}
    if not names:
        return totals
    with (
        open_program(exposed(low, names), fuse=False) as emulated,
        form.opener(exposed(form.program, names)) as other,
    ):
        for group in groups:
            for sample in samples:
                pairs = zip(_run(emulated, sample, group), _run(other, sample, group), strict=True)
                for name, (expected, got) in zip(group, pairs, strict=True):
                    both = _Both(difference(expected, got), difference(got, expected))
                    totals[name] = totals.get(name, _Both()) + both
    return totals


def _run(session: RunsSamples, sample: Mapping[str, Any], fetch: Sequence[str]) -> list[np.ndarray]:
    return [_widened(np.asarray(result)) for result in run_sample(session, sample, fetch)]


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype in LOW_NUMPY_DTYPES else array


def _departs(both: _Both, allowed: float) -> bool:
    there, here = both.there, both.here
    return bool(there.infinite or here.infinite) or not there.error <= allowed


def _departure(form: RunForm, result: Compared, value: ir.Value, both: _Both) -> Departure:
    node = through_casts(value).producer()  # ONNX Runtime may have added casts behind it
    assert node is not None
    return Departure(
        node=result.node,
        op=operator_name(node),
        value=result.value,
        form=form,
        error=both.there.error,
        allowed=result.allowed,
        infinite=both.there.infinite / max(1, both.there.count),
        finite=both.here.infinite / max(1, both.here.count),
    )
