"""Measures that need more than a count: boxes over boxes, rows next to rows, and classes that are rare."""

from __future__ import annotations

import numpy as np

from amp_transpiler.verification.placed_kinds import are_corners

__all__ = ["BoxOverlap", "Neighbours", "RareClasses"]

_RAREST = 2.0**-30  # the least probability of a class that anybody reads
_SUM = 1e-2  # by so much may probabilities differ from one together
_MOST_ROWS = 512  # whose neighbours are looked for
_MOST_ELEMENTS = 2**20  # in such rows
_FEWEST_ROWS = 4  # of two, each is the other's neighbour


class RareClasses:
    """The errors of the classes, each over the norm of its own probabilities."""

    def __init__(self) -> None:
        self._sums: np.ndarray | None = None  # squares of differences, of float32, and the largest; a column a class
        self._are_probabilities = True

    def add(self, reference: np.ndarray, result: np.ndarray) -> None:
        """Add rows of scores, float64, of shape [rows, classes]; scores that are no probabilities end it."""
        if not len(reference) or not self._are_probabilities:
            return
        near_one = np.abs(reference.sum(axis=1) - 1.0) < _SUM
        self._are_probabilities = bool((reference >= 0.0).all() and near_one.all())
        if not self._are_probabilities:
            return
        if self._sums is None or self._sums.shape[1] != reference.shape[1]:
            self._are_probabilities = self._sums is None
            self._sums = np.zeros((3, reference.shape[1]))
        self._sums[0] += np.square(result - reference).sum(axis=0)
        self._sums[1] += np.square(reference).sum(axis=0)
        self._sums[2] = np.maximum(self._sums[2], reference.max(axis=0))

    def worst(self) -> float | None:
        """Return the largest error of a class; None for scores that are no probabilities."""
        if self._sums is None or not self._are_probabilities:
            return None
        difference, norm, largest = self._sums
        counted = largest >= _RAREST
        with np.errstate(invalid="ignore"):
            errors = np.sqrt(difference[counted] / norm[counted])
        return float(errors.max()) if np.isfinite(errors).all() and errors.size else None


class BoxOverlap:
    """The mean of intersection over union of each box with itself in float32; boxes without an area are left out."""

    def __init__(self) -> None:
        self._sum, self._boxes = 0.0, 0
        self._corners: bool | None = None

    def add(self, reference: np.ndarray, result: np.ndarray) -> None:
        """Add boxes, float64, of shape [boxes, 4]: corners, if the first ones are ordered, else centre and size."""
        known = np.isfinite(reference).all(axis=1)
        reference, result = reference[known], result[known]
        if self._corners is None:
            self._corners = are_corners(reference)
        if not self._corners:
            reference, result = _as_corners(reference), _as_corners(result)
        area = _area(reference)
        reference, result, area = reference[area > 0], result[area > 0], area[area > 0]
        with np.errstate(invalid="ignore"):
            low = np.maximum(reference[:, :2], result[:, :2])
            high = np.minimum(reference[:, 2:], result[:, 2:])
            both = _area(np.concatenate([low, high], axis=1))
            shares = both / (area + _area(result) - both)
        self._sum += float(np.nan_to_num(shares, nan=0.0, posinf=0.0, neginf=0.0).sum())
        self._boxes += len(area)

    def mean(self) -> float | None:
        """Return the mean; None without boxes."""
        return self._sum / self._boxes if self._boxes else None


def _as_corners(boxes: np.ndarray) -> np.ndarray:
    half = boxes[:, 2:] / 2.0
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def _area(corners: np.ndarray) -> np.ndarray:
    area: np.ndarray = np.prod(np.maximum(corners[:, 2:] - corners[:, :2], 0.0), axis=1)
    return area


class Neighbours:
    """The share of the rows whose nearest row, by the cosine, is the same; of the first rows, where there are many."""

    def __init__(self) -> None:
        self._reference: list[np.ndarray] = []
        self._result: list[np.ndarray] = []
        self._rows = 0

    def add(self, reference: np.ndarray, result: np.ndarray) -> None:
        """Add rows, of shape [rows, columns]."""
        columns = reference.shape[1]
        if self._reference and self._reference[0].shape[1] != columns:
            return
        room = max(0, min(_MOST_ROWS, _MOST_ELEMENTS // columns) - self._rows)
        self._reference.append(reference[:room].astype(np.float64))
        self._result.append(result[:room].astype(np.float64))
        self._rows += len(reference[:room])

    def share(self) -> float | None:
        """Return the share; None for fewer than four rows."""
        if self._rows < _FEWEST_ROWS:
            return None
        nearest = [_nearest(np.concatenate(rows)) for rows in (self._reference, self._result)]
        return float(np.mean(nearest[0] == nearest[1]))


def _nearest(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    likeness = np.nan_to_num(unit @ unit.T, nan=-2.0)
    np.fill_diagonal(likeness, -3.0)
    nearest: np.ndarray = likeness.argmax(axis=1)
    return nearest
