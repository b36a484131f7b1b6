"""Runs a joined program on samples, piece by piece, and measures how far its results lie apart."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amp_transpiler.child_process.child import lease
from amp_transpiler.child_process.differences import Measured
from amp_transpiler.child_process.remote import RemoteSession, open_plain
from amp_transpiler.diagnosis.joined import Joined, Triple
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.verification.calibrate import PIECE
from amp_transpiler.verification.fixed_sample import write_shapes
from amp_transpiler.verification.partition import Piece, cut_out, pieces

__all__ = ["compare_side_by_side"]


def compare_side_by_side(
    joined: Joined,
    shapes: Mapping[str, tuple[int, ...]],
    low: LowFormat,
    samples: Sequence[Mapping[str, Any]],
    limit: float = PIECE,
) -> dict[str, Measured]:
    """Run a joined program on samples.

    Args:
        joined: both programs in one; not changed.
        shapes: value of the float32 program -> its shape on the first sample, by which pieces are cut.
        low: the low format.
        samples: the inputs; one is in memory at a time.
        limit: bytes that the results of the nodes that run together may take.

    Returns:
        Result -> what is measured of it, over all samples.

    Raises:
        RUN_ERRORS: it does not run.
    """
    totals: dict[str, Measured] = {}
    with _open(joined, shapes, limit) as parts:
        for feeds in samples:
            known = dict(feeds)
            for part in parts:
                fed = {info.name: known[info.name] for info in part.session.inputs if info.name in known}
                names = [triple.names for triple in part.triples]
                before = {name: known[name] for triple in names for name in triple if name in known}
                facts, leaves = part.session.compare(fed, names, low, part.leaves, before)
                known.update(zip(part.leaves, leaves, strict=True))
                for triple, fact in zip(part.triples, facts, strict=True):
                    totals[triple.reference] = totals.get(triple.reference, Measured()) + fact
    return totals


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A piece in a session.

    Attributes:
        leaves: names of its values that later pieces read or compare.
        triples: the results that are compared once it has run.
        session: it, opened.
    """

    leaves: tuple[str, ...]
    triples: list[Triple]
    session: RemoteSession


@contextlib.contextmanager
def _open(joined: Joined, shapes: Mapping[str, tuple[int, ...]], limit: float) -> Iterator[list[_Part]]:
    """Open the pieces of a joined program, cut by the sizes that its values have on one sample."""
    parts = _pieces(joined, shapes, limit)
    triples, later = _distributed(joined, parts)
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(lease())
        opened = []
        for number, piece in enumerate(parts):
            leaves = tuple(dict.fromkeys((*piece.leaves, *later[number])))
            inside = _results_of(joined, piece)
            compared = [name for triple in triples[number] for name in triple.names if name in inside]
            part = cut_out(joined.program, piece, dict.fromkeys((*compared, *leaves)))
            if part.model.graph.outputs:
                opened.append(_Part(leaves, triples[number], stack.enter_context(open_plain(part, child))))
        yield opened


def _pieces(joined: Joined, shapes: Mapping[str, tuple[int, ...]], limit: float) -> list[Piece]:
    """Cut a joined program; all three values of a result are taken for as large as the float32 one."""
    graph = joined.program.model.graph
    values = values_by_name(graph)
    declared = {value: value.shape for value in values.values()}
    alike = {name: shapes[t.reference] for t in joined.triples if t.reference in shapes for name in t.names}
    write_shapes(graph, {**{name: shape for name, shape in shapes.items() if name in values}, **alike})
    parts = pieces(joined.program, limit)
    for value, shape in declared.items():  # other samples may be larger
        value.shape = shape
    return parts


def _results_of(joined: Joined, piece: Piece) -> set[str]:
    nodes = itertools.islice(joined.program.model.graph, piece.start, piece.stop)
    return {str(value.name) for node in nodes for value in node.outputs}


def _distributed(joined: Joined, parts: Sequence[Piece]) -> tuple[list[list[Triple]], list[list[str]]]:
    """Return for each piece the results that can be compared once it has run, and what it keeps for later ones."""
    maker = {name: number for number, piece in enumerate(parts) for name in _results_of(joined, piece)}
    triples: list[list[Triple]] = [[] for _ in parts]
    later: list[list[str]] = [[] for _ in parts]
    for triple in joined.triples:
        last = max(maker[name] for name in triple.names)
        triples[last].append(triple)
        for name in triple.names:
            if maker[name] < last:
                later[maker[name]].append(name)
    return triples, later
