"""Sweeps back through a program: its pieces are differentiated one after the other, from the last to the first."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.child_process.child import Child
from amp_transpiler.child_process.kept_values import KeptValue
from amp_transpiler.child_process.remote import RemoteSession, open_plain
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.program.program import Program
from amp_transpiler.verification.local_errors import Backward, Weigher
from amp_transpiler.verification.partition import Piece, cut_out, pieces

__all__ = ["Contributions", "Draw", "Sweep", "open_sweep"]


@dataclasses.dataclass(slots=True)
class Contributions:
    """Squares of what rounding adds to the seeded outputs, by name.

    Attributes:
        nodes: node -> its own rounding, its inputs low already. A node with bodies stands for the nodes in them.
        alone: node -> its own rounding and that of its inputs.
        casts: value -> the rounding of the value.
        reads: value and node, as `read_key` joins them -> the rounding of the value where the node reads it.
    """

    nodes: dict[str, float] = dataclasses.field(default_factory=dict)
    alone: dict[str, float] = dataclasses.field(default_factory=dict)
    casts: dict[str, float] = dataclasses.field(default_factory=dict)
    reads: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(self, field: str, name: str, number: float) -> None:
        """Add a number to what a name has in a field."""
        errors = self.of(field)
        errors[name] = errors.get(name, 0.0) + number

    def of(self, field: str) -> dict[str, float]:
        """Return a field by its name."""
        squares: dict[str, float] = getattr(self, field)
        return squares

    def items(self) -> Iterator[tuple[str, str, float]]:
        """Yield field, name and number."""
        for field in ("nodes", "alone", "casts", "reads"):
            for name, number in self.of(field).items():
                yield field, name, number


@dataclasses.dataclass(slots=True)
class Draw:
    """What one draw of random signs says.

    Attributes:
        squares: sums of squares over elements: steady, but blind to rounding errors that depend on each other.
        signed: squares of sums over elements: true on average over many draws.
    """

    squares: Contributions = dataclasses.field(default_factory=Contributions)
    signed: Contributions = dataclasses.field(default_factory=Contributions)


@dataclasses.dataclass(slots=True)
class _Part:
    """The backward pass of a piece in a session: without guards, until a run shows that it needs them.

    Attributes:
        weighed: the program.
        session: it, opened.
        guarded: makes and opens the same with guards; None if it has them.
    """

    weighed: Backward
    session: RemoteSession
    guarded: Callable[[], tuple[Backward, RemoteSession]] | None

    def run(self, feed: Callable[[Backward, RemoteSession], dict[str, Any]], stays: Collection[str]) -> dict[str, Any]:
        """Run it on what `feed` returns for it; return the outputs by name.

        Args:
            feed: returns the inputs.
            stays: the values whose adjoints stay in the child.
        """
        while True:
            names = [info.name for info in self.session.outputs]
            stay = {output for name, output in self.weighed.adjoints.items() if name in stays}
            results = self.session.run_keeping(feed(self.weighed, self.session), names, stay)
            if self.guarded is None or not any(np.isnan(results[total]) for _, total, _ in self.weighed.terms):
                return results
            self.weighed, self.session = self.guarded()
            self.guarded = None


class Sweep:
    """Open sessions that sweep one settled program back, piece by piece.

    Attributes:
        measured: node without a gradient rule -> why.
    """

    def __init__(self, forward: Sequence[tuple[Piece, RemoteSession]], backward: Sequence[_Part]) -> None:
        self._forward = forward
        self._backward = backward
        self.measured = {name: why for part in backward for name, why in part.weighed.measured.items()}

    def values(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run forward; return the feeds and every value that a later piece reads, which stays in the child."""
        known = dict(feeds)
        for piece, session in self._forward:
            fed = {name: known[name] for name in piece.reads if name in known}
            known.update(session.run_keeping(fed, piece.leaves, piece.leaves))
        return known

    def back(self, known: Mapping[str, Any], seeds: Mapping[str, np.ndarray]) -> tuple[Draw, dict[str, Any]]:
        """Run backward.

        Args:
            known: what `values` returned.
            seeds: value -> its adjoint.

        Returns:
            The contributions of nodes and results, and the adjoints of the program's inputs.
        """
        adjoints = dict(seeds)
        draw = Draw()

        def feed(piece: Backward, session: RemoteSession) -> dict[str, Any]:
            fed = {info.name: known[info.name] for info in session.inputs if info.name in known}
            shapes = {info.name: info.shape for info in session.inputs}
            for name, seed in piece.seeds.items():
                adjoint = adjoints.get(name)
                fed[seed] = np.zeros(shapes[seed] or (), np.float32) if adjoint is None else adjoint
            return fed

        inside = {name for name, value in known.items() if isinstance(value, KeptValue)}
        for part in reversed(self._backward):
            results, piece = part.run(feed, inside), part.weighed
            for name in piece.seeds:
                adjoints.pop(name, None)
            for square, total, owners in piece.terms:
                for field, owner in owners:
                    draw.squares.add(field, owner, _known(results[square]))
                    draw.signed.add(field, owner, _known(results[total]))
            for name, output in piece.adjoints.items():
                adjoints[name] = adjoints[name] + results[output] if name in adjoints else results[output]
            del results  # adjoints that were read go before the next piece runs
        for field, name, number in draw.signed.items():
            draw.signed.of(field)[name] = number * number
        return draw, adjoints


def _known(square: np.ndarray) -> float:
    """Return a sum; infinite for NaN, which comes of an infinite value times zero."""
    number = float(square)
    return math.inf if math.isnan(number) else number


@contextlib.contextmanager
def open_sweep(
    program: Program,
    low: LowFormat,
    forms: Mapping[str, LowForm],
    targets: Sequence[str],
    limit: float,
    child: Child,
    beyond: frozenset[str] = frozenset(),
) -> Iterator[Sweep]:
    """Open the sessions of a sweep.

    Args:
        program: a settled program; not changed.
        low: the low format.
        forms: node name -> its low form.
        targets: names of the values that adjoints are given for.
        limit: bytes that the results of the nodes of a piece may take.
        child: where.
        beyond: names of values that become infinite in the low format: pieces with one have guards from the start.

    Raises:
        RUN_ERRORS: ONNX Runtime refuses a piece, or dies of it.
    """
    parts, once = pieces(program, limit), frozenset(_read_once(program, forms, targets))
    with contextlib.ExitStack() as stack:

        def guarded(piece: Piece) -> tuple[Backward, RemoteSession]:
            weighed = _weighed(program, low, forms, targets, piece, once, guarded=True)
            return weighed, stack.enter_context(open_plain(weighed.program, child))

        forward: list[tuple[Piece, RemoteSession]] = []
        backward: list[_Part] = []
        for piece in parts:
            if piece is not parts[-1]:
                leaves = cut_out(program, piece, piece.leaves)
                forward.append((piece, stack.enter_context(open_plain(leaves, child))))
            overflows = not beyond.isdisjoint(_names(program, piece))
            weighed = _weighed(program, low, forms, targets, piece, once, guarded=overflows)
            if weighed.program.model.graph.outputs:
                session = stack.enter_context(open_plain(weighed.program, child))
                backward.append(_Part(weighed, session, None if overflows else functools.partial(guarded, piece)))
        yield Sweep(forward, backward)


def _read_once(program: Program, forms: Mapping[str, LowForm], targets: Collection[str]) -> Iterator[str]:
    """Yield the names of the results that only one node reads, in a place that can be low."""
    for node in program.model.graph:
        for value in node.outputs:
            uses = list(value.uses())
            if len(uses) != 1 or value.is_graph_output() or value.name in targets or not is_float32(value):
                continue
            form = None if has_bodies(uses[0].node) else forms.get(str(uses[0].node.name))
            if form is not None and uses[0].idx in form.inputs:
                yield str(value.name)


def _names(program: Program, piece: Piece) -> Iterator[str]:
    """Yield the names of the values that a piece reads from before, and of those that it makes."""
    yield from piece.reads
    for node in itertools.islice(program.model.graph, piece.start, piece.stop):
        yield from (str(value.name) for value in node.outputs)


def _weighed(
    program: Program,
    low: LowFormat,
    forms: Mapping[str, LowForm],
    targets: Sequence[str],
    piece: Piece,
    read_once: Collection[str],
    *,
    guarded: bool,
) -> Backward:
    """Return the backward pass of a piece; see `open_sweep` and `Weigher`."""
    part = cut_out(program, piece, ())
    values = values_by_name(part.model.graph)
    computed = {str(v.name) for node in part.model.graph for v in node.outputs}
    seeded = [n for n in dict.fromkeys((*targets, *piece.leaves)) if n in computed and is_float32(values[n])]
    leaving = {str(value.name) for value in program.model.graph.outputs}.difference(piece.leaves)
    return Weigher(part, low, forms, guarded=guarded, read_once=read_once).backward(seeded, leaving, piece.leaves)
