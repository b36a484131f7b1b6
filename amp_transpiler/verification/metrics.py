"""Measures how far two programs agree in what users read from an output: the best classes, masks, maps of labels.

| reading (`output_kind.py`) | top-1 | top-5 | IoU |
|---|---|---|---|
| scores | best class the same, share of the rows | float32's best class among the best five; from six classes on | - |
| class map | best class the same, share of the pixels | - | of the best classes |
| mask | - | - | of what is true, or at least 0.5 |
| label map | - | - | of the labels |
| boxes | - | - | of each box with itself in float32, their mean |
| numbers | - | - | - |

For probabilities, the error of the class with the largest one is reported, however rare that class is; for embeddings,
the share of the rows whose nearest row, by the cosine, is the same.

Intersection over union is that over all samples; of several labels, the mean over those that occur on either side; of
two empty masks 1. Of equal scores the one with the lower index is the better, as ArgMax decides. Rows and elements that
are NaN in float32 are left out; where only the result is NaN, the two differ.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TypedDict

import numpy as np

from amp_transpiler.verification.output_kind import NUMBERS, OutputKind, settled
from amp_transpiler.verification.placed import BoxOverlap, Neighbours, RareClasses
from amp_transpiler.verification.placed_kinds import by_data, coordinates

__all__ = ["Agreement", "Figures"]

_CHUNK = 1_000_000  # elements that are looked at together
_BEST = 5
_TRUE = 0.5  # the least share that counts as true
_MOST_LABELS = 4096  # that are counted; more are no labels, but numbers
_NO_LABEL = -1  # the label of scores that are NaN


class Figures(TypedDict):
    """The fields of `OutputComparison` that an `Agreement` gives."""

    top1: float | None
    top5: float | None
    iou: float | None
    rare: float | None
    neighbours: float | None


class Agreement:
    """Counts of what agrees, over the samples of one output, in memory that does not grow with them.

    Args:
        kind: what the graph says of the output; None if nothing.
    """

    def __init__(self, kind: OutputKind | None = None) -> None:
        self._said = kind
        self._kind: OutputKind | None = None
        self._classes = sys.maxsize  # the fewest of all samples
        self._rows = self._top1 = self._top5 = 0
        self._labels: dict[int, list[int]] = {}  # label -> in both, in either
        self._rare, self._overlap, self._neighbours = RareClasses(), BoxOverlap(), Neighbours()

    def add(self, reference: np.ndarray, result: np.ndarray) -> None:
        """Add two arrays of one shape and kind of elements; the first ones settle how all of them are read."""
        kind = by_data(settled(self._said, reference), reference)
        if self._kind is None:
            self._kind = kind
        elif (kind.reading, kind.axis) != (self._kind.reading, self._kind.axis):
            self._kind = NUMBERS
        if self._kind.reading in ("scores", "class map"):
            for x, y in zip(_rows(self._kind, reference), _rows(self._kind, result), strict=True):
                self._add_scores(x, y)
        elif self._kind.reading == "mask":
            for x, y in zip(_pieces(reference), _pieces(result), strict=True):
                self._add_mask(x, y)
        elif self._kind.reading == "boxes":
            self._overlap.add(coordinates(self._kind, reference), coordinates(self._kind, result))
        elif self._kind.reading == "embeddings":
            self._neighbours.add(reference, result)
        elif self._kind.reading == "label map":
            for x, y in zip(_pieces(reference), _pieces(result), strict=True):
                self._add_labels(x, y)

    def figures(self) -> Figures:
        """Return the shares; None for each that the output does not have."""
        figures = Figures(top1=None, top5=None, iou=None, rare=None, neighbours=None)
        reading = NUMBERS.reading if self._kind is None else self._kind.reading
        if reading in ("scores", "class map") and self._rows:
            figures["top1"] = self._top1 / self._rows
            if reading == "scores" and self._classes > _BEST:
                figures["top5"] = self._top5 / self._rows
        if reading in ("class map", "mask", "label map"):
            figures["iou"] = self._iou()
        if reading in ("scores", "class map"):
            figures["rare"] = self._rare.worst()
        if reading == "boxes":
            figures["iou"] = self._overlap.mean()
        if reading == "embeddings":
            figures["neighbours"] = self._neighbours.share()
        return figures

    def _add_scores(self, reference: np.ndarray, result: np.ndarray) -> None:
        known = ~np.isnan(reference).any(axis=1)
        reference, result = reference[known], result[known]
        broken = np.isnan(result).any(axis=1)
        self._rare.add(reference, result)
        best = reference.argmax(axis=1)
        chosen = np.take_along_axis(result, best[:, None], axis=1)
        before = np.arange(reference.shape[1]) < best[:, None]
        rank = np.count_nonzero((result > chosen) | ((result == chosen) & before), axis=1)
        self._classes = min(self._classes, reference.shape[1])
        self._rows += len(rank)
        self._top1 += int(np.count_nonzero((rank == 0) & ~broken))
        self._top5 += int(np.count_nonzero((rank < _BEST) & ~broken))
        if self._kind is not None and self._kind.reading == "class map":
            self._add_labels(best, np.where(broken, _NO_LABEL, result.argmax(axis=1)))

    def _add_mask(self, reference: np.ndarray, result: np.ndarray) -> None:
        if reference.dtype.kind != "b":
            known = ~np.isnan(reference)
            reference, result = reference[known], result[known]
            broken, reference = np.isnan(result), reference >= _TRUE
            result = np.where(broken, ~reference, result >= _TRUE)
        if reference.size:
            self._count(1, int((reference & result).sum()), int(reference.sum()), int(result.sum()))

    def _add_labels(self, reference: np.ndarray, result: np.ndarray) -> None:
        both, ours, theirs = map(_occurrences, (reference[reference == result], reference, result))
        for label in ours | theirs:
            if len(self._labels) <= _MOST_LABELS:  # one more than that, so that it shows
                self._count(label, both.get(label, 0), ours.get(label, 0), theirs.get(label, 0))

    def _count(self, label: int, both: int, ours: int, theirs: int) -> None:
        counts = self._labels.setdefault(label, [0, 0])
        counts[0] += both
        counts[1] += ours + theirs - both

    def _iou(self) -> float | None:
        if not 0 < len(self._labels) <= _MOST_LABELS:
            return None
        shares = [both / union if union else 1.0 for both, union in self._labels.values()]
        return math.fsum(shares) / len(shares)


def _occurrences(labels: np.ndarray) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _rows(kind: OutputKind, array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the scores as rows of float64, one a group of classes, some rows at a time."""
    table = array if kind.joined else np.moveaxis(array, kind.axis, -1)
    table = table.reshape(-1, math.prod(array.shape[kind.axis :]) if kind.joined else table.shape[-1])
    step = max(1, _CHUNK // table.shape[1])
    for start in range(0, len(table), step):
        yield table[start : start + step].astype(np.float64)


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the elements, floats as float64, some at a time."""
    flat = np.ravel(array)
    for start in range(0, flat.size, _CHUNK):
        piece = flat[start : start + _CHUNK]
        yield piece if piece.dtype.kind in "biu" else piece.astype(np.float64)
