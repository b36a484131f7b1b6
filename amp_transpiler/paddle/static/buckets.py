"""`Executor(bucket=...)`: feeds whose sizes vary are padded to few sizes, so that few steps are compiled."""

from __future__ import annotations

import bisect
import dataclasses
import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.phrases import first_few
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.padding_check import Compared, compare, drawing
from amp_transpiler.runtime.scope import Scope

__all__ = ["Bucket", "Buckets"]

logger = logging.getLogger(__name__)

_LEAST = 16  # the smallest power of two that is a bucket by default


@dataclasses.dataclass(frozen=True, slots=True)
class Bucket:
    """Says how one axis of a feed is padded behind its last element.

    Attributes:
        axis: the axis; -1 is the last.
        value: what it is padded with. Choose what the program leaves out, such as the label that its loss ignores.
        sizes: the sizes that it is padded to; what is larger than all of them stays as it is. One number stands for
            its multiples. None for powers of two, from 16.

    Raises:
        OptionError: a size is no positive integer, or `axis` or `value` is no number.
    """

    axis: int = 1
    value: float = 0
    sizes: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        if not _is_integer(self.axis):
            raise OptionError(f"Bucket: axis must be an integer, got {self.axis!r:.80}")
        if not isinstance(self.value, (int, float, np.number, np.bool_)):
            raise OptionError(f"Bucket: value must be a number, got {self.value!r:.80}")
        if self.sizes is None:
            return
        sizes = self.sizes if isinstance(self.sizes, Sequence) else [self.sizes]
        if not sizes or not all(_is_integer(size) and size > 0 for size in sizes):
            raise OptionError(f"Bucket: sizes must be positive integers, got {self.sizes!r:.80}")

    def size_for(self, size: int) -> int:
        """Return the size that a size is padded to."""
        if self.sizes is None:
            return max(_LEAST, 1 << (size - 1).bit_length()) if size else size
        if isinstance(self.sizes, Sequence):
            ascending = sorted(self.sizes)
            place = bisect.bisect_left(ascending, size)
            return ascending[place] if place < len(ascending) else size
        return -(-size // self.sizes) * self.sizes


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """Describes an axis that was padded.

    Attributes:
        name: the feed.
        axis: counted from the first.
        size: before.
        padded: now.
    """

    name: str
    axis: int
    size: int
    padded: int


class Buckets:
    """Pads feeds, checks once that this does not change a step, and cuts the padding off what is fetched.

    Args:
        given: feed -> how it is padded, or several of them for several axes.

    Raises:
        OptionError: it is something else.
    """

    def __init__(self, given: Mapping[str, Bucket | Sequence[Bucket]]) -> None:
        if not isinstance(given, Mapping):
            raise OptionError(f"bucket must be a dictionary of feeds and Bucket(axis, value), got {given!r:.80}")
        self._buckets: dict[Any, tuple[Bucket, ...]] = {}
        for name, entry in given.items():
            several = tuple(entry) if isinstance(entry, (list, tuple)) else ()
            parts = (entry,) if isinstance(entry, Bucket) else several
            if not parts or not all(isinstance(part, Bucket) for part in parts):
                raise OptionError(f"bucket['{name}'] must be a Bucket(axis, value) or several, got {entry!r:.80}")
            self._buckets[name] = parts
        self._cuts_by_key: weakref.WeakKeyDictionary[Program, dict[Any, _Cuts]] = weakref.WeakKeyDictionary()

    def fit(
        self,
        program: Program,
        fetch: Sequence[str],
        arrays: Mapping[str, np.ndarray],
        scope: Scope,
        *,
        together: bool = False,
    ) -> tuple[Mapping[str, np.ndarray], dict[str, tuple[slice, ...]]]:
        """Return the feeds, padded, and the part of each fetched value that belongs to the feeds as they are.

        The first step of each kind is computed a second time, as it was fed, and compared.

        Args:
            program: the program.
            fetch: the names of what is fetched.
            arrays: the feeds.
            scope: the persistable values.
            together: other processes run the step with this one.

        Raises:
            InputError: a feed has no such axis, its type cannot hold the value, or the padding changes what the step
                computes; or it makes batches of several processes equal that are not.
        """
        padded, axes = self._padded(program, arrays)
        if not axes:
            return arrays, {}
        if together and (batch := next((axis for axis in axes if axis.axis == 0), None)):
            raise InputError(
                f"bucket['{batch.name}']: axis 0, from {batch.size} to {batch.padded}, is the batch, which all "
                "processes feed with one size: the mean of their gradients is that of the samples. Pad only other axes"
            )
        fetch = [name for name in fetch if name not in program.persistables]
        return padded, self._cuts(program, fetch, arrays, padded, axes, scope)

    def _padded(self, program: Program, arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[Axis]]:
        """Return the feeds, padded where they have a bucket, and the axes that were padded."""
        feeds, axes = dict(arrays), list[Axis]()
        for key, parts in self._buckets.items():
            name = program.name_of(key)
            if name not in arrays:
                continue
            for part in parts:
                array = feeds[name]
                if not -array.ndim <= part.axis < array.ndim:
                    raise InputError(f"bucket['{name}']: {list(array.shape)} is fed, which has no axis {part.axis}")
                axis = part.axis % array.ndim
                size, padded_size = array.shape[axis], part.size_for(array.shape[axis])
                if size == padded_size:
                    continue
                widths = [(0, padded_size - size if i == axis else 0) for i in range(array.ndim)]
                feeds[name] = np.pad(array, widths, constant_values=_value(name, array.dtype, part.value))
                axes.append(Axis(name, axis, size, padded_size))
        return feeds, axes

    def _cuts(
        self,
        program: Program,
        fetch: Sequence[str],
        arrays: Mapping[str, np.ndarray],
        padded: Mapping[str, np.ndarray],
        axes: Sequence[Axis],
        scope: Scope,
    ) -> dict[str, tuple[slice, ...]]:
        """Return the part of each fetched value that belongs to the feeds as they are; see `fit`."""
        cached = self._cuts_by_key.setdefault(program, {})
        key = (program.version, tuple(fetch), tuple(sorted((axis.name, axis.axis) for axis in axes)))
        cuts = cached.get(key)
        parts = None if cuts is None else cuts.for_axes(axes)
        if parts is None:
            if node := drawing(program):
                logger.warning(
                    "%r: %s draws random numbers, so that it is not checked whether padding changes a step; what is "
                    "fetched keeps its padding where it is not known which axis it has",
                    program,
                    node,
                )
            compared = compare(program, fetch, arrays, padded, scope)
            if compared is None:
                return {}
            if compared.faults and not node:
                raise InputError(_changed(axes, compared.faults))
            cuts = _Cuts.of(compared, axes, cached.get(key))
            cached[key] = cuts
            parts = cuts.for_axes(axes)
            assert parts is not None  # it has just been made for them
        return parts


@dataclasses.dataclass(frozen=True, slots=True)
class _Cuts:
    """Says which axes of fetched values are padded, and which axes of feeds each of them can be.

    Attributes:
        found: fetched name, axis -> the feeds' axes, as (name, axis).
        ranks: fetched name -> its rank.
    """

    found: Mapping[tuple[str, int], frozenset[tuple[str, int]]]
    ranks: Mapping[str, int]

    @classmethod
    def of(cls, compared: Compared, axes: Sequence[Axis], before: _Cuts | None) -> _Cuts:
        """Find the feeds' axes by their sizes, without those that earlier feeds have ruled out.

        Raises:
            InputError: an axis has a size that is no feed's.
        """
        feed_axes = {}
        for name, shape in compared.shapes.items():
            for axis, (size, padded) in enumerate(zip(shape, compared.padded[name], strict=True)):
                if size == padded:
                    continue
                fits = {(a.name, a.axis) for a in axes if (a.size, a.padded) == (size, padded)}
                fits &= before.found.get((name, axis), frozenset(fits)) if before is not None else fits
                if not fits:
                    raise InputError(
                        f"bucket: axis {axis} of the fetched '{name}' has {padded} elements with padding and {size} "
                        "without, which is the size of no feed: it cannot be cut back. Fetch another value, or leave "
                        "out the bucket"
                    )
                feed_axes[name, axis] = frozenset(fits)
        return cls(feed_axes, {name: len(shape) for name, shape in compared.shapes.items()})

    def for_axes(self, axes: Sequence[Axis]) -> dict[str, tuple[slice, ...]] | None:
        """Return the slices for padded feeds; None if it is not known which of several sizes an axis has."""
        sizes = {(axis.name, axis.axis): axis.size for axis in axes}
        parts = {name: [slice(None)] * rank for name, rank in self.ranks.items()}
        for (name, axis), feeds in self.found.items():
            ends = {sizes[feed] for feed in feeds}
            if len(ends) > 1:
                return None
            parts[name][axis] = slice(ends.pop())
        return {name: tuple(part) for name, part in parts.items()}


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _value(name: str, dtype: np.dtype[Any], value: float) -> Any:
    """Return the padding in the type of a feed.

    Raises:
        InputError: the type has no such number.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        cast = np.asarray(value).astype(dtype)
    exact = dtype.kind in "fV" or bool(cast == value)
    if not exact:
        raise InputError(f"bucket['{name}']: {dtype.name} cannot hold {value!r}, which it is padded with")
    return cast


def _changed(axes: Sequence[Axis], faults: Sequence[str]) -> str:
    paddings = [f"'{axis.name}' axis {axis.axis} from {axis.size} to {axis.padded}" for axis in axes]
    return (
        f"bucket: padding {first_few(paddings)} changes what the step computes: {first_few(faults)}. Pad with what the "
        "program leaves out (labels with the loss's ignore_index, a mask with 0), take means over the elements that "
        "count, or leave out the bucket. Nothing was changed in the scope"
    )
