"""Excuses labels that float32 itself decided by a hair's breadth: where such a label differs, the result is not wrong.

A label is excused if the two scores that it and float32's label have in float32 lie closer together than the tolerance
of the output times the spread (largest minus smallest) of their row, and at most one label of an output in a hundred.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.evaluate import evaluate
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.limits import Limits
from amp_transpiler.report import OutputComparison

__all__ = ["LabelSource", "Watch", "label_source"]

_ONE_IN = 100  # labels may be excused

Fetch = Callable[[Sequence[str]], list[dict[str, Any]]]
"""Returns float32 values by name, one dict per sample; values that it cannot get are missing."""


@dataclasses.dataclass(frozen=True, slots=True)
class LabelSource:
    """Where the labels of an output come from.

    Attributes:
        node: ArgMax, ArgMin or TopK.
        moves: the nodes between its labels and the output, in order.
    """

    node: ir.Node
    moves: tuple[ir.Node, ...]

    @property
    def labels(self) -> ir.Value:
        """The labels as they are found."""
        return self.node.outputs[-1]

    @property
    def scores(self) -> ir.Value | None:
        """The scores that decide the labels."""
        return self.node.inputs[0]

    def names(self) -> list[str]:
        """Return the names of the values that are needed to tell which row a label belongs to."""
        moved = (value for node in self.moves if node.op_type in _REORDER for value in node.inputs)
        return [str(value.name) for value in (self.scores, self.labels, *moved) if value is not None]


def label_source(output: ir.Value) -> LabelSource | None:
    """Return where the labels of a graph output come from; None if it is none of labels."""
    moves: list[ir.Node] = []
    value: ir.Value | None = output
    while value is not None and (node := value.producer()) is not None and is_standard(node):
        if node.op_type in ("ArgMax", "ArgMin") or (node.op_type == "TopK" and value.index() == 1):
            return LabelSource(node, tuple(reversed(moves)))
        if node.op_type not in _KEEP_ORDER | _REORDER:
            return None
        moves.append(node)
        value = node.inputs[0]
    return None


class Watch:
    """Looks at the labels of results that pass by, and keeps those that differ.

    Args:
        graph: the graph of the float32 program.
        outputs: its outputs, one dict per sample.
        limits: whose tolerances count; without one nothing is excused.
    """

    def __init__(self, graph: ir.Graph, outputs: Sequence[Mapping[str, Any]], limits: Limits) -> None:
        self._outputs, self._limits = outputs, limits
        self._sources = {
            str(value.name): source
            for value in graph.outputs
            if math.isfinite(limits.for_output(str(value.name))) and (source := label_source(value)) is not None
        }
        self._differing: dict[str, dict[int, np.ndarray]] = {}

    def watched(self, results: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the results as they are."""
        for index, result in enumerate(results):
            for name in self._sources:
                wanted, got = self._outputs[index].get(name), result.get(name)
                if (
                    _are_labels(wanted)
                    and _are_labels(got)
                    and wanted.shape == got.shape
                    and not np.array_equal(wanted, got)
                ):
                    self._differing.setdefault(name, {})[index] = got
            yield result

    def excused(self, rows: Mapping[str, OutputComparison], fetch: Fetch) -> dict[str, OutputComparison]:
        """Return the comparisons with the excused labels counted in.

        Args:
            rows: output name -> comparison.
            fetch: gets float32's scores; only asked where labels differ.
        """
        comparisons = dict(rows)
        for name, samples in self._differing.items():
            source, tolerance = self._sources[name], self._limits.for_output(name)
            values = fetch(source.names())
            close = sum(
                _close_calls(source, values[index], self._outputs[index][name], got, tolerance)
                for index, got in samples.items()
            )
            row = comparisons[name]
            comparisons[name] = dataclasses.replace(row, excused=min(close, row.elements // _ONE_IN))
        return comparisons


def _are_labels(array: Any) -> TypeGuard[np.ndarray]:
    return isinstance(array, np.ndarray) and array.dtype.kind in "iu"


def _close_calls(
    source: LabelSource, values: Mapping[str, Any], wanted: np.ndarray, got: np.ndarray, tolerance: float
) -> int:
    """Return how many of the differing labels float32 decided by less than the tolerance."""
    if any(name not in values for name in source.names()):
        return 0
    assert source.scores is not None
    scores, labels = values[str(source.scores.name)], values[str(source.labels.name)]
    axis = source.node.attributes.get_int("axis", -1 if source.node.op_type == "TopK" else 0) % max(1, scores.ndim)
    rows = np.moveaxis(scores, axis, -1)
    rows = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
    row_of = _rows_of_labels(source, scores.shape, axis, labels.shape)
    moved, moved_rows = (_moved(source.moves, values, array) for array in (labels, row_of))
    first, second = wanted.reshape(-1).astype(np.int64), got.reshape(-1).astype(np.int64)
    if moved is None or moved_rows is None or moved.size != first.size:
        return 0
    moved, row_of = moved.reshape(-1), moved_rows.reshape(-1)
    # Where the run with the scores as outputs finds another label, the scores say nothing about the one that counts.
    at = np.flatnonzero((first != second) & (moved == first) & (second >= 0) & (second < rows.shape[1]))
    chosen = rows[row_of[at]]
    with np.errstate(invalid="ignore"):
        margin = np.abs(
            np.take_along_axis(chosen, first[at, None], 1) - np.take_along_axis(chosen, second[at, None], 1)
        )
    finite = np.isfinite(chosen)
    largest = np.max(chosen, axis=1, initial=-np.inf, where=finite)
    smallest = np.min(chosen, axis=1, initial=np.inf, where=finite)
    return int(np.count_nonzero(margin[:, 0] < tolerance * (largest - smallest)))


def _rows_of_labels(source: LabelSource, scores: tuple[int, ...], axis: int, labels: tuple[int, ...]) -> np.ndarray:
    """Return for every label the number of its row of scores."""
    others = (*scores[:axis], *scores[axis + 1 :])
    rows = np.arange(math.prod(others)).reshape(others)
    if source.node.op_type == "TopK":
        return np.broadcast_to(np.expand_dims(rows, axis), labels)
    return rows.reshape(labels)


def _moved(moves: Sequence[ir.Node], values: Mapping[str, Any], array: np.ndarray) -> np.ndarray | None:
    """Return the elements of `array`, which stands for the labels, in the order in which the last node has them."""
    for node in moves:
        if node.op_type in _KEEP_ORDER:
            continue
        operands: list[Any] = [None if value is None else values[str(value.name)] for value in node.inputs]
        moved = evaluate(node, [array.reshape(operands[0].shape), *operands[1:]], most=math.inf)
        if moved is None:
            return None
        array = moved
    return array


_KEEP_ORDER = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
_REORDER = frozenset(("Gather", "Slice", "Transpose"))
