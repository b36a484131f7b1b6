"""Labels and ids outside of their range are an error that names them; ONNX Runtime wraps some round in silence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from amp_transpiler.errors import InputError
from amp_transpiler.program.assemble import Assembled
from amp_transpiler.runtime.fed_integers import FedIntegers, fed_integers
from amp_transpiler.runtime.index_uses import IndexUse, index_uses

__all__ = ["IndexChecks", "find_index_checks", "message"]

_FLAG = "FLAGS_check_index_range"


@dataclasses.dataclass(frozen=True, slots=True)
class IndexChecks:
    """The labels and ids of a step.

    Attributes:
        fed: uses whose positions are fed, perhaps moved: checked before the step runs.
        computed: uses whose positions the step computes: they are outputs of its session, and checked before anything
            in the scope is replaced.
    """

    fed: tuple[tuple[IndexUse, FedIntegers], ...] = ()
    computed: tuple[IndexUse, ...] = ()

    def check_feeds(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Check the positions that are fed.

        Raises:
            InputError: one is outside of its range.
        """
        for use, source in self.fed:
            positions = source.numbers(arrays)
            bad = use.outside(positions)
            if bad is not None:
                first = _first(bad)
                feed, place = source.origin(arrays, first)
                raise InputError(message(use, positions, bad, f"input '{feed}' at {list(place)}"))

    def check_computed(self, read: Callable[[str], np.ndarray]) -> None:
        """Check the positions that the step has computed.

        Args:
            read: returns an output of the step by its name.

        Raises:
            InputError: one is outside of its range.
        """
        for use in self.computed:
            positions = read(use.value)
            bad = use.outside(positions)
            if bad is not None:
                raise InputError(message(use, positions, bad))


def find_index_checks(assembled: Assembled) -> IndexChecks:
    """Return what is to be checked in a step. A program without values in a scope, a loaded model, has nothing.

    Computed positions become outputs of the assembled model.
    """
    if not assembled.state and not assembled.updates:
        return IndexChecks()
    graph = assembled.model.graph
    fed, computed = [], []
    for use, value in index_uses(graph, frozenset(assembled.state)):
        if not use.is_strict:
            continue
        source = fed_integers(value, assembled.feeds)
        if source is not None:
            fed.append((use, source))
        elif value.producer() is not None:
            computed.append(use)
            if not value.is_graph_output():
                graph.outputs.append(value)
    return IndexChecks(tuple(fed), tuple(computed))


def message(use: IndexUse, positions: np.ndarray, bad: np.ndarray, where: str = "") -> str:
    """Return what is wrong: tensor, number, place, range and remedy.

    Args:
        use: where the positions are read.
        positions: the positions.
        bad: which of them are outside of the range.
        where: the place of the first bad one, if it is not one of the value itself.
    """
    first = _first(bad)
    count = int(bad.sum())
    more = f" ({count - 1} more are wrong)" if count > 1 else ""
    return (
        f"{where or f'{_named(use)} at {list(first)}'} is {positions[first]}{more}: {_subject(use)} are {_range(use)}; "
        f"{_remedy(use)}"
    )


def _first(bad: np.ndarray) -> tuple[int, ...]:
    return tuple(int(index) for index in np.unravel_index(int(bad.argmax()), bad.shape))


def _named(use: IndexUse) -> str:
    return f"'{use.value}'{f' (of {use.source!r})' if use.source != use.value else ''}"


def _subject(use: IndexUse) -> str:
    if use.what == "label":
        return f"the labels of {use.reader}"
    return f"the {'rows of' if use.what == 'id' else 'positions in'} '{use.into}' that {use.reader} reads"


def _range(use: IndexUse) -> str:
    least = 0 if use.least is None else use.least
    allowed = f"{least} and more" if use.size is None else f"{least} to {use.size - 1}"
    return allowed if use.ignored is None else f"{allowed}, or ignore_index={use.ignored}"


def _remedy(use: IndexUse) -> str:
    if not use.is_strict:
        return "mend the indices"
    mend = "give padding a row of its own (padding_idx)"
    if use.what == "label":
        mend = "mend them" if use.ignored is None else "mark samples without a label with ignore_index"
    return f"{mend}, or switch this check off with paddle.set_flags({{'{_FLAG}': False}})"
