r"""Defines the error of a float output: that of its worst part, since a norm over everything hides what users read.

For an output x in float32 and y in the result, the error of a part P, a set of elements, is

    error(P) = norm of (y - x) over P / norm of x over P

and the error of the output is the largest of those of

- the whole: all elements of all samples;
- each sample: an array that was given or made up, or an item of a sequence; and each row of its first axis;
- each slice of the last axis, and of axis 1 where there are three axes or more, over all samples: a class, a
  coordinate, a channel;
- what is left without one extreme value that is repeated, such as the -10000 of masked logits: at least two elements
  of nearly one magnitude, `_LEAST_EXTREME` or more, and `_GAP` times as large as all others. The probabilities near one
  of a sure classifier are no such value.

Class scores next to boxes in pixels, a quiet recording next to a loud one, and logits next to their masks are so small
that a norm over both is only that of their neighbours: all scores of a detector may become zero at 0.0007 %.

A part is judged by itself where that is fair:

- its largest magnitude is at least 2^-14, float16's smallest normal number, and at least 2^-22 of the output's largest
  (without extreme values), which is what float32 itself leaves of a sum;
- it has at least `_FEWEST` elements, and there are at most `_MOST_SLICES` times as many parts of its kind as each has
  elements: of many small parts, some are close to zero by chance.

On the outputs of real models that have no such parts, it is the error of the whole.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

__all__ = ["PartErrors", "WorstPart", "part_weights"]

_COUNTS = 2.0**-14  # float16's smallest normal number
_OF_LARGEST = 2.0**-22  # a unit in the last place of float32, twice
_FEWEST = 8  # elements of a part
_MOST_SLICES = 64  # times as many as each has elements
_GAP = 32.0  # between the extreme value and all others
_WITHIN = 1.0625  # what is added to a mask's value changes it by less than this factor
_LEAST_EXTREME = 16.0  # an exponential of minus so much is nothing in a sum of those of logits
_BEYOND = 2.0**500  # squares overflow
_CHUNK = 1_000_000  # elements that are looked at together
_UNEVEN = 4.0  # slices whose sizes differ by more than this are weighed each by its own


@dataclasses.dataclass(frozen=True, slots=True)
class WorstPart:
    """The part of an output with the largest error.

    Attributes:
        error: norm of its difference over its norm, a fraction.
        name: which part it is, in words.
    """

    error: float
    name: str


@dataclasses.dataclass(slots=True)
class _Sums:
    """Sums over the parts of one kind; an element of each array a part."""

    difference: np.ndarray
    reference: np.ndarray
    largest: np.ndarray
    elements: int

    @classmethod
    def none(cls, parts: int) -> _Sums:
        return cls(np.zeros(parts), np.zeros(parts), np.zeros(parts), 0)

    def add(self, other: _Sums) -> None:
        """Add the same parts of another sample."""
        self.difference += other.difference
        self.reference += other.reference
        self.largest = np.maximum(self.largest, other.largest)
        self.elements += other.elements

    def worst(self, least: float) -> tuple[float, int]:
        """Return the largest error of a part that counts, and its place; 0 if none counts.

        Args:
            least: the largest magnitude that a part must have.
        """
        parts = len(self.largest)
        counted = self.largest >= least
        if self.elements < _FEWEST or parts > _MOST_SLICES * self.elements or not counted.any():
            return 0.0, 0
        squares = np.divide(self.difference, self.reference, out=np.zeros(parts), where=counted)
        place = int(squares.argmax())
        return math.sqrt(float(squares[place])), place


class PartErrors:
    """Sums over the parts of one output, in memory that does not grow with the number of samples."""

    def __init__(self) -> None:
        self._samples = 0
        self._largest = 0.0
        self._slices: dict[tuple[str, int], _Sums] = {}
        self._alone: list[tuple[WorstPart, float]] = []  # the worst of the samples, with the magnitude that they need
        self._others = _Sums.none(1)

    def add(self, arrays: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Add a sample: pairs of float arrays of one shape each, in float32 and of the result."""
        self._samples += 1
        for item, (reference, result) in enumerate(arrays):
            largest = _largest(reference)
            if not 0.0 < largest < _BEYOND or not _largest(result) < _BEYOND:
                continue
            name = f"sample {self._samples}" + (f", item {item + 1}" if len(arrays) > 1 else "")
            self._add(name, reference, result, largest)

    def worst(self) -> WorstPart:
        """Return the worst part; its error is 0 and its name empty if none is judged by itself."""
        least = self._least()
        parts = [WorstPart(0.0, ""), *(part for part, largest in self._alone if largest >= least)]
        for (axis, size), sums in self._slices.items():
            error, place = sums.worst(least)
            parts.append(WorstPart(error, f"index {place} of {axis}, of {size}"))
        parts.append(WorstPart(self._others.worst(least)[0], "without its extreme values"))
        return max(parts, key=lambda part: part.error)

    def _least(self) -> float:
        return max(_COUNTS, _OF_LARGEST * self._largest)

    def _add(self, name: str, reference: np.ndarray, result: np.ndarray, largest: float) -> None:
        threshold = _extreme_from(reference, largest)
        whole = _sums(reference, result, None)
        if threshold is None:
            self._largest = max(self._largest, largest)
        else:
            others = _sums(reference, result, None, threshold)
            self._largest = max(self._largest, float(others.largest[0]))
            self._others.add(others)
        self._note(name, whole)
        if reference.ndim > 1 and reference.shape[0] > 1:
            self._note(f"{name}, row", _sums(reference, result, 0))
        for axis, word in _feature_axes(reference.ndim):
            size = reference.shape[axis]
            if size > 1:
                sums = _sums(reference, result, axis, threshold)
                self._slices.setdefault((word, size), _Sums.none(size)).add(sums)

    def _note(self, name: str, sums: _Sums) -> None:
        error, place = sums.worst(self._least())
        if error > 0.0:
            which = f" {place}" if name.endswith("row") else ""
            self._alone.append((WorstPart(error, name + which), float(sums.largest[place])))
            self._alone = sorted(self._alone, key=lambda part: -part[0].error)[:_FEWEST]


def _feature_axes(rank: int) -> Iterator[tuple[int, str]]:
    """Yield the axes that classes, coordinates or channels may lie on, with their names."""
    if rank > 1:
        yield rank - 1, "the last axis"
    if rank > 2:
        yield 1, "axis 1"


def part_weights(reference: np.ndarray) -> np.ndarray | None:
    """Return by how much each element's rounding counts, where slices are of uneven size; None where they are not.

    An element of a slice that is judged by itself counts one over the norm of the slice and the root of their number,
    so that slices of equal norms count as the whole does.

    Args:
        reference: the output in float32.

    Returns:
        Weights in the output's shape, float32, finite elements only; None for the same weight everywhere.
    """
    largest = _largest(reference)
    if not 0.0 < largest < _BEYOND or reference.dtype.kind != "f":
        return None
    threshold, weights = _extreme_from(reference, largest), []
    if threshold is not None:
        largest = float(_sums(reference, reference, None, threshold).largest[0])
    least = max(_COUNTS, _OF_LARGEST * largest)
    axes = [axis for axis, _ in _feature_axes(reference.ndim) if reference.shape[axis] > 1]
    for axis in (*axes, *([0] if reference.ndim > 1 and reference.shape[0] > 1 else [])):
        sums = _sums(reference, reference, axis, threshold)
        size = reference.shape[axis]
        counted = sums.largest >= least
        if sums.elements < _FEWEST or size > _MOST_SLICES * sums.elements or not counted.any():
            continue
        norms = np.sqrt(sums.reference)
        smallest = norms[counted].min()
        if norms.max() > _UNEVEN * smallest:
            shape = [1] * reference.ndim
            shape[axis] = size
            weight = 1.0 / (np.where(counted, norms, norms.max()) * math.sqrt(size))
            weights.append(weight.reshape(shape))
    if threshold is not None:
        values = np.abs(np.where(np.isfinite(reference), reference, 0.0)).astype(np.float64)
        others = math.sqrt(float(np.sum(np.square(values, where=values < threshold, out=np.zeros(values.shape)))))
        if others > 0.0:
            weights.append(np.where(values < threshold, 1.0 / others, 1.0 / math.sqrt(float(np.sum(values**2)))))
    if not weights:
        return None
    combined: np.ndarray = np.sqrt(sum(np.square(part) for part in weights) / len(weights)) * np.ones(reference.shape)
    return combined.astype(np.float32)


def _largest(array: np.ndarray) -> float:
    """Return the largest finite magnitude."""
    largest = 0.0
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        piece = np.abs(flat[start : start + _CHUNK].astype(np.float64))
        largest = max(largest, float(np.max(piece, initial=0.0, where=np.isfinite(piece))))
    return largest


def _extreme_from(array: np.ndarray, largest: float) -> float | None:
    """Return the magnitude from which values are the extreme one, be they few or many; None if there is none.

    Args:
        array: the output in float32.
        largest: its largest magnitude.
    """
    if largest < _LEAST_EXTREME:
        return None
    high, low = largest / _WITHIN, largest / _GAP
    extreme = others = 0
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        piece = np.abs(flat[start : start + _CHUNK].astype(np.float64))
        piece = piece[np.isfinite(piece)]
        above, below = int(np.count_nonzero(piece > high)), int(np.count_nonzero(piece < low))
        if above + below < piece.size:
            return None
        extreme, others = extreme + above, others + below
    return high if extreme > 1 and others >= _FEWEST else None


def _sums(reference: np.ndarray, result: np.ndarray, axis: int | None, below: float | None = None) -> _Sums:
    """Return the sums over the slices of an axis; of None, over the whole.

    Args:
        reference: in float32.
        result: of the same shape.
        axis: whose slices are summed separately.
        below: only magnitudes below this count; None: all that are finite.
    """
    size = 1 if axis is None else reference.shape[axis]
    outer = 1 if axis is None else math.prod(reference.shape[:axis])
    shape = (outer, size, -1 if reference.size else 0)
    x, y = reference.reshape(shape), result.reshape(shape)
    sums = _Sums.none(size)
    sums.elements = reference.size // max(1, size)
    for reference_block, other in _blocks(x, y):
        wanted, got = reference_block.astype(np.float64), other.astype(np.float64)
        good = np.isfinite(wanted) & np.isfinite(got)
        if below is not None:
            good &= np.abs(wanted) < below
        if not good.all():
            wanted, got = np.where(good, wanted, 0.0), np.where(good, got, 0.0)
        sums.difference += np.einsum("osi->s", np.square(got - wanted))
        sums.reference += np.einsum("osi->s", np.square(wanted))
        sums.largest = np.maximum(sums.largest, np.abs(wanted).max(axis=(0, 2), initial=0.0))
    return sums


def _blocks(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield two arrays of three axes block by block, each with all of the second axis, or more of it than fits."""
    outer, size, inner = x.shape
    rows = max(1, _CHUNK // max(1, size * inner))
    columns = inner if rows > 1 else max(1, _CHUNK // max(1, size))
    for row in range(0, outer, rows):
        for column in range(0, inner, columns):
            place = np.s_[row : row + rows, :, column : column + columns]
            yield x[place], y[place]
