"""Measures the ranges of a program's values over many samples, with one sample in memory at a time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import onnx_ir as ir

from amp_transpiler.child_process.child import lease
from amp_transpiler.child_process.magnitudes import Magnitudes, measure
from amp_transpiler.child_process.remote import RemoteSession, open_plain
from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import is_static
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.program.program import Program
from amp_transpiler.verification.fixed_sample import Surveys, inline_branches, survey, write_shapes
from amp_transpiler.verification.partition import Piece, cut_out, pieces

__all__ = ["PIECE", "Calibration", "NamedSample", "calibrate"]

PIECE = 1 << 28
"""Bytes that the results of the nodes that run together may take; the largest result takes what it takes."""

NamedSample: TypeAlias = tuple[str, Mapping[str, Any]]
"""A sample and its name, such as its file, for messages."""


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """The ranges over all samples.

    Attributes:
        ranges: name -> range, for every float32 value that is no constant, of the main graph and of the branches that
            were taken. Values inside loops are not measured.
        samples: the names of the samples.
    """

    ranges: Mapping[str, TensorRange]
    samples: tuple[str, ...]


def calibrate(
    program: Program,
    low: LowFormat,
    samples: Iterable[NamedSample],
    limit: float = PIECE,
    surveys: Surveys | None = None,
) -> Calibration:
    """Run a program on samples and return the ranges of its values.

    Args:
        program: a typed program without functions, such as a prepared one; not changed.
        low: the low format, for what would become zero.
        samples: taken one by one, so that they may be more than fit in memory.
        limit: bytes that the results of the nodes that run together may take.
        surveys: those of the program.

    Raises:
        InputError: there is no sample.
        RUN_ERRORS: the program does not run.
    """
    totals: dict[str, Magnitudes] = {}
    setters: dict[str, str] = {}
    names: list[str] = []
    with contextlib.ExitStack() as stack:
        opened: dict[tuple[bool, ...], _Opened] = {}
        for name, feeds in samples:
            names.append(name)
            for value, magnitudes in _magnitudes(
                _opened_for(program, feeds, opened, stack, limit, surveys), feeds, low
            ):
                before = totals.get(value, Magnitudes())
                if value not in setters or magnitudes.largest > before.largest:
                    setters[value] = name
                totals[value] = before + magnitudes
    if not names:
        raise InputError("inputs: no sample was given; expected a dict of arrays, or several")
    ranges = {
        value: TensorRange(
            sizes.largest, sizes.smallest, setters[value], sizes.flushed / max(1, sizes.nonzero), sizes.histogram
        )
        for value, sizes in totals.items()
    }
    return Calibration(ranges, tuple(names))


@dataclasses.dataclass(frozen=True, slots=True)
class _Opened:
    """The sessions of a program's pieces.

    Attributes:
        inputs: names of its float32 inputs.
        pieces: each with the values that it measures, and its session.
    """

    inputs: tuple[str, ...]
    pieces: list[tuple[Piece, list[str], RemoteSession]]


def _opened_for(
    program: Program,
    feeds: Mapping[str, Any],
    opened: dict[tuple[bool, ...], _Opened],
    stack: contextlib.ExitStack,
    limit: float,
    surveys: Surveys | None,
) -> _Opened:
    """Return the sessions for a sample, those of an earlier one that took the same branches if there are any."""
    taken: tuple[bool, ...] = ()
    inlined = program
    if any(node.op_type == "If" for node in program.model.graph):
        inlined = program.clone()
        inlined.source = None
        taken = tuple(inline_branches(inlined, feeds))
    if taken not in opened:
        opened[taken] = stack.enter_context(_open(inlined, feeds, limit, surveys if inlined is program else None))
    return opened[taken]


@contextlib.contextmanager
def _open(program: Program, feeds: Mapping[str, Any], limit: float, surveys: Surveys | None) -> Iterator[_Opened]:
    """Open the pieces of a program, cut by the sizes that its values have on one sample."""
    sized = program.clone()
    graph = sized.model.graph
    results = [value for node in graph for value in node.outputs]
    declared = {value: value.shape for value in (*graph.inputs, *results)}
    if not all(map(is_static, results)):
        shapes, _ = survey(sized, feeds) if surveys is None else surveys.of(feeds)
        write_shapes(graph, shapes)
    parts = pieces(sized, limit)
    for value, shape in declared.items():  # other samples may be larger
        value.shape = shape
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(lease())
        nodes, opened = list(graph), []
        for piece in parts:
            inside = nodes[piece.start : piece.stop]
            names = [str(value.name) for node in inside for value in node.outputs if _is_measured(value)]
            part = cut_out(sized, piece, dict.fromkeys((*names, *piece.leaves)))
            if part.model.graph.outputs:
                opened.append((piece, names, stack.enter_context(open_plain(part, child))))
        yield _Opened(tuple(str(value.name) for value in graph.inputs if is_float32(value)), opened)


def _is_measured(value: ir.Value) -> bool:
    return is_float32(value) and bool(value.name) and constant_of(value) is None


def _magnitudes(opened: _Opened, feeds: Mapping[str, Any], low: LowFormat) -> Iterator[tuple[str, Magnitudes]]:
    """Run the pieces on a sample and yield what they hold."""
    for name in opened.inputs:
        if name in feeds:
            yield name, measure(feeds[name], low.smallest)
    known = dict(feeds)
    for piece, names, session in opened.pieces:
        fed = {info.name: known[info.name] for info in session.inputs if info.name in known}
        magnitudes, leaves = session.measure(fed, names, low.smallest, piece.leaves)
        known.update(zip(piece.leaves, leaves, strict=True))
        yield from zip(names, magnitudes, strict=True)
