"""Reads and writes by what stands in square brackets: `x[1, 2:, None, ..., rows, mask]`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.building import Number, builder_of, shape_operand, with_sizes, wrap
from amp_transpiler.program.program import Variable

__all__ = ["getitem", "setitem"]

_LAST = 2**63 - 1


def getitem(x: Variable, key: Any) -> Variable:
    """Return `x[key]`, as numpy does.

    Args:
        x: what to read.
        key: numbers, slices (their ends may be integer variables), None, `...`, lists or arrays of numbers or truth
            values, integer variables and bool variables; or a tuple of these.

    Raises:
        InputError: it has more entries than `x` has axes, or a number outside of an axis, or something else.
    """
    value, entries = _entry_per_axis(x, key)
    sliced = _sliced(x, value, entries)
    remaining = [entry for entry in entries if not isinstance(entry, _Number)]
    chosen = [axis for axis, entry in enumerate(remaining) if isinstance(entry, _Chosen)]
    if not chosen:
        return wrap(x, sliced)
    places = [remaining[axis].places for axis in chosen]  # type: ignore[union-attr]  # chosen are those that have them
    return wrap(x, _gathered(builder_of(x), sliced, chosen, places))


def setitem(x: Variable, index: Any, value: Number) -> Variable:
    """Return `x` with `value`, which broadcasts, written at `index`: what `x[index] = value` does to an array.

    Args:
        x: what to write to; it stays as it is, use the result.
        index: as in `x[index]`.
        value: a variable, a number or an array.

    Raises:
        InputError: the index does not fit `x`.
    """
    b = builder_of(x)
    count = b.op("Size", [x.value])
    numbers = b.op("Range", [b.constant(0), count, b.constant(1)])
    places = getitem(wrap(x, b.reshape_like(numbers, x.value)), index).value
    new = b.cast(value.value, x.value.dtype) if isinstance(value, Variable) else b.constant(value, x.value.dtype)
    flat = b.reshape(b.op("Expand", [new, b.shape(places)]), [-1])
    written = b.op("ScatterElements", [b.reshape(x.value, [-1]), b.reshape(places, [-1]), flat], {"axis": 0})
    return wrap(x, b.reshape_like(written, x.value))


@dataclasses.dataclass(frozen=True)
class _Number:
    """One position along an axis, which is dropped."""

    at: int


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """Positions, an int64 value, along an axis."""

    places: ir.Value


def _entry_per_axis(x: Variable, key: Any) -> tuple[ir.Value, list[_Number | slice | _Chosen]]:
    """Return `x` with its new axes, and an entry for each axis."""
    keys = list(key) if isinstance(key, tuple) else [key]
    b = builder_of(x)
    taken = sum(_axes_of_key(item) for item in keys)
    if taken > x.ndim:
        raise InputError(f"'{x.name}' of shape {list(x.shape)} has no {taken} axes to index, as in [{key!r}]")
    rest = [slice(None)] * (x.ndim - taken)
    at = next((i for i, item in enumerate(keys) if item is Ellipsis), len(keys))
    keys[at : at + 1] = rest
    if any(item is Ellipsis for item in keys):
        raise InputError(f"an index has one '...' at most, got {key!r}")
    entries: list[_Number | slice | _Chosen] = []
    new = []
    for item in keys:
        if item is None:
            new.append(len(entries))
            entries.append(slice(None))
        else:
            entries.extend(_entries(x, b, item, len(entries) - len(new)))
    return b.unsqueeze(x.value, new), entries


def _axes_of_key(item: Any) -> int:
    """Return how many axes an entry of a key stands for."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, Variable):
        return item.ndim if item.value.dtype == ir.DataType.BOOL else 1
    if isinstance(item, (list, np.ndarray)) and np.asarray(item).dtype == np.bool_:
        return np.asarray(item).ndim
    return 1


def _entries(x: Variable, b: GraphBuilder, item: Any, axis: int) -> list[_Number | slice | _Chosen]:
    if isinstance(item, slice):
        return [item]
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        size = x.shape[axis]
        if size >= 0 and not -size <= item < size:
            raise InputError(f"index {item} is outside of axis {axis} of '{x.name}' of shape {list(x.shape)}")
        return [_Number(int(item))]
    if isinstance(item, (list, np.ndarray)):
        array = np.asarray(item)
        if array.dtype == np.bool_:
            return [_Chosen(b.constant(places.astype(np.int64))) for places in np.nonzero(array)]
        if array.dtype.kind in "iu" or not array.size:
            return [_Chosen(b.constant(array.astype(np.int64)))]
    if isinstance(item, Variable):
        builder_of(x, item)
        if item.value.dtype == ir.DataType.BOOL:
            rows = b.nodes(
                "Split", [b.op("NonZero", [item.value])], {"axis": 0, "num_outputs": item.ndim}, outputs=item.ndim
            )
            return [_Chosen(b.squeeze(row, [0])) for row in rows]
        if item.value.dtype is not None and item.value.dtype.is_integer():
            return [_Chosen(b.cast(item.value, ir.DataType.INT64))]
    raise InputError(
        f"'{x.name}' is indexed with {item!r:.80}: expected a number, a slice, None, '...', integers or truth values"
    )


def _sliced(x: Variable, value: ir.Value, entries: Sequence[_Number | slice | _Chosen]) -> ir.Value:
    """Slice along all axes at once, and drop those that a number is taken from."""
    b = builder_of(x)
    starts, ends, steps, axes = [], [], [], []
    for axis, entry in enumerate(entries):
        if isinstance(entry, _Number):
            entry = slice(entry.at, entry.at + 1 or _LAST, 1)  # noqa: PLW2901  # a number is a slice of one
        if not isinstance(entry, slice) or entry == slice(None):
            continue
        step = 1 if entry.step is None else int(entry.step)
        starts.append((0 if step > 0 else _LAST) if entry.start is None else entry.start)
        ends.append((_LAST if step > 0 else -_LAST) if entry.stop is None else entry.stop)
        steps.append(step)
        axes.append(axis)
    if axes:
        bounds = [shape_operand(x, part) for part in (starts, ends, axes, steps)]
        values = [part if isinstance(part, ir.Value) else b.constant(np.array(part, np.int64)) for part in bounds]
        size_of_axis = dict(enumerate(value.shape or ()))
        ones = [axis for axis, entry in enumerate(entries) if isinstance(entry, _Number)]
        value = b.op("Slice", [value, *values])
        sizes = [1 if axis in ones else None if axis in axes else size for axis, size in size_of_axis.items()]
        value = with_sizes(value, sizes) if size_of_axis else value
    return b.squeeze(value, [axis for axis, entry in enumerate(entries) if isinstance(entry, _Number)])


def _gathered(b: GraphBuilder, value: ir.Value, axes: Sequence[int], places: Sequence[ir.Value]) -> ir.Value:
    """Take elements at positions along several axes, which meet as numpy's do: in front unless they are neighbours."""
    if len(axes) == 1:
        return b.op("Gather", [value, places[0]], {"axis": axes[0]})
    like = places[0]
    for other in places[1:]:
        like = b.add(b.mul(like, 0), b.mul(other, 0))
    width = len(like.shape or ())
    together = b.concat([b.unsqueeze(b.expand_like(place, like), [width]) for place in places], width)
    rank = len(value.shape or ())
    others = [axis for axis in range(rank) if axis not in axes]
    taken = b.op("GatherND", [b.transpose(value, [*axes, *others]), together])
    if list(axes) != list(range(axes[0], axes[-1] + 1)) or not axes[0]:
        return taken
    first = axes[0]
    order = [*range(width, width + first), *range(width), *range(width + first, width + len(others))]
    return b.transpose(taken, order)
