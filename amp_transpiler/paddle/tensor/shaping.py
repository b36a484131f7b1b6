"""Changes shapes: other sizes, other orders of axes, joining, splitting and repeating."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.building import (
    Axes,
    Size,
    accept_name,
    axes_of,
    axis_of,
    builder_of,
    emit,
    in_one_type,
    shape_operand,
    size_at,
    with_sizes,
    wrap,
)
from amp_transpiler.program.program import Variable

__all__ = [
    "as_strided",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "broadcast_shape",
    "broadcast_shapes",
    "broadcast_tensors",
    "broadcast_to",
    "cartesian_prod",
    "cat",
    "chunk",
    "column_stack",
    "combinations",
    "concat",
    "concatenate",
    "dsplit",
    "dstack",
    "expand",
    "expand_as",
    "flatten",
    "flip",
    "hsplit",
    "hstack",
    "matrix_transpose",
    "moveaxis",
    "numel",
    "permute",
    "rank",
    "ravel",
    "repeat_interleave",
    "reshape",
    "reverse",
    "roll",
    "rot90",
    "row_stack",
    "shape",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "swapdims",
    "t",
    "tensor_split",
    "tile",
    "transpose",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "unstack",
    "view",
    "view_as",
    "vsplit",
    "vstack",
]


# ---- what there is ----


def shape(input: Variable) -> Variable:
    """Return the sizes of the axes, as a vector of int64 that is computed when the program runs."""
    return wrap(input, builder_of(input).op("Shape", [input.value]))


def numel(x: Variable) -> Variable:
    """Return how many elements there are, an int64 without axes that is computed when the program runs."""
    return wrap(x, builder_of(x).op("Size", [x.value]))


def rank(input: Variable) -> Variable:
    """Return how many axes there are, as an int32 constant without axes."""
    return wrap(input, builder_of(input).constant(np.array(input.ndim, np.int32)))


def broadcast_shape(x_shape: Sequence[int], y_shape: Sequence[int]) -> list[int]:
    """Return the shape in which variables of two shapes meet.

    Raises:
        InputError: they do not broadcast.
    """
    sizes: list[int] = []
    for position in range(-max(len(x_shape), len(y_shape)), 0):
        x_size, y_size = (s[position] if len(s) >= -position else 1 for s in (x_shape, y_shape))
        if 1 not in (x_size, y_size) and -1 not in (x_size, y_size) and x_size != y_size:
            raise InputError(f"broadcast_shape: {list(x_shape)} and {list(y_shape)} do not broadcast")
        is_of_y = x_size == 1 or (x_size == -1 and y_size != 1)
        sizes.append(y_size if is_of_y else x_size)
    return sizes


# ---- other sizes ----


def reshape(x: Variable, shape: Variable | Sequence[Size]) -> Variable:
    """Return `x` in another shape.

    Args:
        x: what to reshape.
        shape: sizes: numbers, of which one may be -1, to be computed, and 0 keeps the size of that axis; or integer
            variables of one element; or one integer vector for all.
    """
    b, sizes = builder_of(x), shape_operand(x, shape)
    result = b.reshape(x.value, sizes)
    if isinstance(sizes, ir.Value) and not isinstance(shape, Variable):
        x_sizes = dict(enumerate(x.shape))
        with_sizes(
            result,
            [x_sizes.get(axis) if isinstance(size, int) and size == 0 else size for axis, size in enumerate(shape)],
        )
    return wrap(x, result)


def view(x: Variable, shape_or_dtype: Sequence[Size] | str) -> Variable:
    """Return `x` in another shape, as `reshape`.

    Raises:
        OptionError: an element type is given: ONNX cannot read the bits of one type as another's.
    """
    if isinstance(shape_or_dtype, (list, tuple)):
        return reshape(x, shape_or_dtype)
    raise OptionError(f"view: an element type ({shape_or_dtype!r}) is not available: use cast for another type")


def view_as(x: Variable, other: Variable) -> Variable:
    """Return `x` in the shape of `other`."""
    return wrap(x, builder_of(x, other).reshape_like(x.value, other.value))


def ravel(input: Variable) -> Variable:
    """Return `input` as a vector."""
    return wrap(input, builder_of(input).reshape(input.value, [-1]))


def squeeze(x: Variable, axis: Axes = None) -> Variable:
    """Return `x` without those of the given axes that have size 1; without all axes of size 1 if none are given."""
    return wrap(x, builder_of(x).squeeze(x.value, [a for a in axes_of(x, axis) if x.shape[a] == 1]))


def unsqueeze(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Return `x` with new axes of size 1, inserted one after the other."""
    value, b = x.value, builder_of(x)
    for extra, place in enumerate([axis] if isinstance(axis, int) else axis):
        value = b.unsqueeze(value, [axis_of(x, place, beyond=extra + 1)])
    return wrap(x, value)


def flatten(x: Variable, start_axis: int = 0, stop_axis: int = -1) -> Variable:
    """Return `x` with the axes from `start_axis` to `stop_axis`, both included, flattened into one.

    Raises:
        OptionError: `start_axis` comes after `stop_axis`.
    """
    if not x.ndim:
        return reshape(x, [1])
    first, last = axis_of(x, start_axis), axis_of(x, stop_axis)
    if first > last:
        raise OptionError(f"flatten: start_axis {start_axis} is behind stop_axis {stop_axis} of {x!r}")
    behind = x.shape[last + 1 :]
    if all(size >= 0 for size in behind):
        return reshape(x, [*[0] * first, -1, *behind])
    b = builder_of(x)
    tail = b.slice(b.shape(x.value), [last + 1], [x.ndim], [0])
    return wrap(x, b.reshape(x.value, b.concat([b.constant(np.array([*[0] * first, -1], np.int64)), tail], 0)))


def unflatten(x: Variable, axis: int, shape: Variable | Sequence[Size]) -> Variable:
    """Return `x` with one axis split into axes of these sizes, of which one may be -1."""
    place = axis_of(x, axis)
    before, behind = x.shape[:place], x.shape[place + 1 :]
    if not isinstance(shape, Variable) and all(size >= 0 for size in behind):
        return reshape(x, [*[0] * len(before), *shape, *behind])
    b, sizes = builder_of(x), builder_of(x).shape(x.value)
    operand = shape_operand(x, shape)
    middle = operand if isinstance(operand, ir.Value) else b.constant(np.array(operand, np.int64))
    parts = [b.slice(sizes, [0], [place], [0]), middle, b.slice(sizes, [place + 1], [x.ndim], [0])]
    return wrap(x, b.reshape(x.value, b.concat(parts, 0)))


def atleast_1d(*inputs: Variable) -> Variable | list[Variable]:
    """Return variables with one axis or more; a list if there are several."""
    return _with_axes(inputs, 1, lambda rank: [0] * (1 - rank))


def atleast_2d(*inputs: Variable) -> Variable | list[Variable]:
    """Return variables with two axes or more, new ones in front; a list if there are several."""
    return _with_axes(inputs, 2, lambda rank: [0] * (2 - rank))


def atleast_3d(*inputs: Variable) -> Variable | list[Variable]:
    """Return variables with three axes or more, a vector in the middle; a list if there are several."""
    return _with_axes(inputs, 3, lambda rank: {0: [0, 0, 0], 1: [0, 2], 2: [2]}[rank])


def _with_axes(inputs: Sequence[Variable], least: int, missing: Any) -> Variable | list[Variable]:
    results = [x if x.ndim >= least else unsqueeze(x, missing(x.ndim)) for x in inputs]
    return results[0] if len(results) == 1 else results


# ---- other orders ----


def transpose(x: Variable, perm: Sequence[int]) -> Variable:
    """Return `x` with its axes in the order of `perm`."""
    return emit("Transpose", [x], {"perm": [axis_of(x, axis) for axis in perm]})


def permute(x: Variable, *dims: int | Sequence[int]) -> Variable:
    """Return `x` with its axes in the order of `dims`."""
    return transpose(x, [int(d) for d in (dims if isinstance(dims[0], int) else dims[0])])  # type: ignore[arg-type]  # all are numbers


def matrix_transpose(x: Variable) -> Variable:
    """Return `x` with its last two axes exchanged."""
    return swapaxes(x, -1, -2)


def t(input: Variable) -> Variable:
    """Return a matrix with its axes exchanged; a vector as it is.

    Raises:
        InputError: `input` has more than two axes.
    """
    if input.ndim > 2:
        raise InputError(f"t: expected at most two axes, got {input!r}: use transpose")
    return input if input.ndim < 2 else transpose(input, [1, 0])


def swapaxes(x: Variable, axis0: int, axis1: int) -> Variable:
    """Return `x` with two axes exchanged."""
    order = list(range(x.ndim))
    first, second = axis_of(x, axis0), axis_of(x, axis1)
    order[first], order[second] = second, first
    return transpose(x, order)


def moveaxis(x: Variable, source: int | Sequence[int], destination: int | Sequence[int]) -> Variable:
    """Return `x` with some axes moved to other places; the rest keep their order."""
    sources, goals = ([item] if isinstance(item, int) else list(item) for item in (source, destination))
    places = {axis_of(x, goal): axis_of(x, start) for start, goal in zip(sources, goals, strict=True)}
    rest = iter(axis for axis in range(x.ndim) if axis not in places.values())
    return transpose(x, [places[i] if i in places else next(rest) for i in range(x.ndim)])


def flip(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Return `x` in reverse along these axes."""
    axes = axes_of(x, axis)
    if not axes:
        return x
    ends, last = [-(2**63) + 1] * len(axes), [-1] * len(axes)
    return wrap(x, builder_of(x).slice(x.value, last, ends, axes, last))


reverse = flip


def rot90(x: Variable, k: int = 1, axes: Sequence[int] = (0, 1)) -> Variable:
    """Return `x` turned `k` times by a right angle, from the first of two axes to the second."""
    first, second = (axis_of(x, axis) for axis in axes)
    turns = k % 4
    if turns == 0:
        return x
    if turns == 2:
        return flip(x, [first, second])
    return swapaxes(flip(x, second), first, second) if turns == 1 else flip(swapaxes(x, first, second), second)


def roll(x: Variable, shifts: int | Sequence[int], axis: Axes = None) -> Variable:
    """Return `x` moved along axes, around the end to the beginning; without `axis`, moved as if `x` were flat."""
    b = builder_of(x)
    if axis is None:
        return view_as(roll(ravel(x), shifts, 0), x) if x.ndim != 1 else roll(x, shifts, 0)
    axes = [axis] if isinstance(axis, int) else list(axis)
    value = x.value
    for shift, rolled_axis in zip([shifts] if isinstance(shifts, int) else shifts, axes, strict=True):
        place, size = axis_of(x, rolled_axis), x.shape[axis_of(x, rolled_axis)]
        distance = shift % size if size > 0 else shift
        if distance:
            tail = b.slice(value, [-distance], [2**63 - 1], [place])
            value = b.concat([tail, b.slice(value, [0], [-distance], [place])], place)
    if value.shape is not None and x.value.shape is not None:
        value.shape = ir.Shape(x.value.shape)
    return wrap(x, value)


# ---- joining ----


def concat(x: Sequence[Variable], axis: int | Variable = 0) -> Variable:
    """Return the parts, in the type that they meet in, joined along `axis`.

    Raises:
        InputError: `axis` is no whole number, such as a variable.
    """
    if not isinstance(axis, (int, np.integer)):
        raise InputError(f"concat: the axis must be a number, got {axis!r}")
    parts = in_one_type(*x)
    return wrap(x[0], builder_of(x[0]).op("Concat", parts, {"axis": axis_of(x[0], axis)}))


cat = concat


def stack(x: Sequence[Variable], axis: int = 0) -> Variable:
    """Return the parts, in the type that they meet in, joined along a new axis."""
    place = axis_of(x[0], axis, beyond=1)
    b = builder_of(*x)
    return wrap(x[0], b.op("Concat", [b.unsqueeze(part, [place]) for part in in_one_type(*x)], {"axis": place}))


def hstack(x: Sequence[Variable]) -> Variable:
    """Return the parts joined along axis 1, vectors along axis 0."""
    parts = _at_least(1, x)
    return concat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(x: Sequence[Variable]) -> Variable:
    """Return the parts joined along axis 0, vectors as rows."""
    return concat(_at_least(2, x), 0)


row_stack = vstack


def dstack(x: Sequence[Variable]) -> Variable:
    """Return the parts joined along axis 2."""
    return concat(_at_least(3, x), 2)


def column_stack(x: Sequence[Variable]) -> Variable:
    """Return the parts joined along axis 1, vectors as columns."""
    return concat([reshape(part, [-1, 1]) if part.ndim < 2 else part for part in x], 1)


def _at_least(rank: int, x: Sequence[Variable]) -> list[Variable]:
    parts = {1: atleast_1d, 2: atleast_2d, 3: atleast_3d}[rank](*x)
    return [parts] if isinstance(parts, Variable) else parts


# ---- splitting ----


def split(x: Variable, num_or_sections: int | Sequence[int], axis: int = 0) -> list[Variable]:
    """Return equal parts, or parts of given sizes, of which one may be -1.

    Raises:
        InputError: the axis cannot be split into these parts.
    """
    b, place = builder_of(x), axis_of(x, axis)
    size = x.shape[place]
    if isinstance(num_or_sections, int):
        if size >= 0 and size % num_or_sections:
            raise InputError(f"split: axis {axis} of {x!r} cannot be split into {num_or_sections} equal parts")
        if size >= 0:
            return _split(x, [size // num_or_sections] * num_or_sections, place)
        length = b.slice(b.shape(x.value), [place], [place + 1], [0])  # a size that is no multiple stops the run
        lengths = b.op("Tile", [b.div(length, num_or_sections), b.constant(np.array([num_or_sections], np.int64))])
        return [
            wrap(x, part) for part in b.nodes("Split", [x.value, lengths], {"axis": place}, outputs=num_or_sections)
        ]
    sections = [int(part) for part in num_or_sections]
    if sections.count(-1) == 1 and size >= 0:
        sections[sections.index(-1)] = size - (sum(sections) + 1)
    if -1 in sections or (size >= 0 and sum(sections) != size):
        raise InputError(f"split: axis {axis} of {x!r} cannot be split into {list(num_or_sections)}")
    return _split(x, sections, place)


def _split(x: Variable, sections: Sequence[int], axis: int) -> list[Variable]:
    b = builder_of(x)
    lengths = b.constant(np.array(sections, np.int64))
    return [wrap(x, part) for part in b.nodes("Split", [x.value, lengths], {"axis": axis}, outputs=len(sections))]


def chunk(x: Variable, chunks: int, axis: int = 0) -> list[Variable]:
    """Return equal parts, as `split`; the last is smaller where the size of the axis is no multiple."""
    place = axis_of(x, axis)
    size = x.shape[place]
    if size < 0:
        b = builder_of(x)
        length = b.slice(b.shape(x.value), [place], [place + 1], [0])
        part = b.div(b.add(length, chunks - 1), chunks)
        remaining = b.sub(length, b.mul(part, b.constant(np.arange(chunks))))
        lengths = b.minimum(b.maximum(remaining, 0), part)
        return [wrap(x, output) for output in b.nodes("Split", [x.value, lengths], {"axis": place}, outputs=chunks)]
    each = -(-size // chunks)
    return _split(x, [min(each, size - start) for start in range(0, size, each)], place)


def tensor_split(x: Variable, num_or_indices: int | Sequence[int], axis: int = 0) -> list[Variable]:
    """Return parts that are as equal as can be, the larger first, or those between given positions."""
    place = axis_of(x, axis)
    size = size_at(x, place, "tensor_split")
    if isinstance(num_or_indices, int):
        each, more = divmod(size, num_or_indices)
        return _split(x, [each + (i < more) for i in range(num_or_indices)], place)
    cuts = [0, *(min(max(i + size if i < 0 else i, 0), size) for i in num_or_indices), size]
    return _split(x, [max(end - start, 0) for start, end in itertools.pairwise(cuts)], place)


def hsplit(x: Variable, num_or_indices: int | Sequence[int]) -> list[Variable]:
    """Split along axis 1, a vector along axis 0, by `tensor_split`."""
    return tensor_split(x, num_or_indices, min(x.ndim - 1, 1))


def vsplit(x: Variable, num_or_indices: int | Sequence[int]) -> list[Variable]:
    """Split along axis 0 by `tensor_split`."""
    return tensor_split(x, num_or_indices, 0)


def dsplit(x: Variable, num_or_indices: int | Sequence[int]) -> list[Variable]:
    """Split along axis 2 by `tensor_split`."""
    return tensor_split(x, num_or_indices, 2)


def unbind(input: Variable, axis: int = 0) -> list[Variable]:
    """Return the slices along `axis`, whose size must be known, without that axis."""
    place = axis_of(input, axis)
    b, count = builder_of(input), size_at(input, place, "unbind")
    return [wrap(input, b.squeeze(part.value, [place])) for part in _split(input, [1] * count, place)]


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """Return the slices along `axis`, without that axis; `num` says how many there are if its size is not known."""
    place = axis_of(x, axis)
    if num is None or x.shape[place] >= 0:
        return unbind(x, place)
    b = builder_of(x)
    return [wrap(x, b.squeeze(part.value, [place])) for part in _split(x, [1] * num, place)]


# ---- repeating ----


def expand(x: Variable, shape: Variable | Sequence[Size]) -> Variable:
    """Return `x` repeated along axes of size 1, and along new ones in front, to this shape; -1 keeps a size."""
    b, sizes = builder_of(x), shape_operand(x, shape)
    if isinstance(sizes, ir.Value):  # ONNX broadcasts both ways, so that 1 keeps a size: and -1 becomes 1
        result = b.op("Expand", [x.value, b.maximum(sizes, 1)])
        if not isinstance(shape, Variable):
            x_sizes = [1] * (len(shape) - x.ndim) + list(x.shape)
            with_sizes(result, [_expanded(size, requested) for size, requested in zip(x_sizes, shape, strict=True)])
        return wrap(x, result)
    return wrap(x, b.op("Expand", [x.value, b.constant(np.array([1 if s == -1 else s for s in sizes], np.int64))]))


def _expanded(size: int, requested: Size) -> int | None:
    """Return the size of an axis after `expand`; None if it is not known."""
    if isinstance(requested, Variable):  # 1, or any number of 1
        return size if size > 1 else None
    return requested if requested > 1 else size


broadcast_to = expand


def expand_as(x: Variable, y: Variable) -> Variable:
    """Return `x` broadcast to the shape of `y`."""
    return wrap(x, builder_of(x, y).expand_like(x.value, y.value))


def broadcast_tensors(input: Sequence[Variable]) -> list[Variable]:
    """Return variables in the shape in which all of them meet."""
    b = builder_of(*input)
    like = b.constant(np.array(0, np.int64))
    for x in input:
        like = b.add(like, b.zeros_like(x.value, ir.DataType.INT64))
    return [wrap(x, b.expand_like(x.value, like)) for x in input]


def tile(x: Variable, repeat_times: Variable | Sequence[Size]) -> Variable:
    """Return `x` repeated `repeat_times` along each axis; with fewer numbers than axes, along the last ones."""
    b, times = builder_of(x), shape_operand(x, repeat_times)
    if isinstance(times, ir.Value):
        return wrap(x, b.op("Tile", [x.value, times]))
    value = b.unsqueeze(x.value, list(range(len(times) - x.ndim)))
    counts = [1] * (x.ndim - len(times)) + times
    return wrap(x, b.op("Tile", [value, b.constant(np.array(counts, np.int64))]))


def repeat_interleave(x: Variable, repeats: int | Sequence[int], axis: int | None = None) -> Variable:
    """Return `x` with each slice along `axis` repeated, all as often or each by its number; flat without `axis`."""
    if axis is None:
        x, axis = ravel(x), 0
    place, b = axis_of(x, axis), builder_of(x)
    if isinstance(repeats, int):
        wider = b.unsqueeze(x.value, [place + 1])
        counts = [repeats if i == place + 1 else 1 for i in range(x.ndim + 1)]
        return flatten(tile(wrap(x, wider), counts), place, place + 1)
    positions = np.repeat(np.arange(len(repeats)), [int(count) for count in repeats])
    return wrap(x, b.op("Gather", [x.value, b.constant(positions.astype(np.int64))], {"axis": place}))


def as_strided(x: Variable, shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> Variable:
    """Return the elements of `x`, in the order of its memory, at `offset` and multiples of the strides behind it."""
    positions = np.full(tuple(shape), offset, np.int64)
    for axis, step in enumerate(stride):
        positions += (np.arange(shape[axis]) * step).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    flat = ravel(x)
    count = math.prod(x.shape)
    if positions.size and min(x.shape, default=1) >= 0 and int(positions.max()) >= count:
        raise InputError(f"as_strided: element {int(positions.max())} is outside of {x!r}, which has {count}")
    return wrap(x, builder_of(x).op("Gather", [flat.value, builder_of(x).constant(positions)], {"axis": 0}))


concatenate = concat


def swapdims(x: Variable, dim0: int, dim1: int) -> Variable:
    """Return `x` with two axes exchanged."""
    return swapaxes(x, dim0, dim1)


def broadcast_shapes(*shapes: Sequence[int]) -> list[int]:
    """Return the shape in which variables of these shapes meet."""
    common: list[int] = []
    for sizes in shapes:
        common = broadcast_shape(common, sizes)
    return common


def unfold(x: Variable, axis: int, size: int, step: int) -> Variable:
    """Return the windows of `size` along `axis`, whose size must be known, one every `step`, as a new last axis."""
    place = axis_of(x, axis)
    count = (size_at(x, place, "unfold") - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    b = builder_of(x)
    taken = b.op("Gather", [x.value, b.constant(places.astype(np.int64))], {"axis": place})
    return moveaxis(wrap(x, taken), place + 1, -1)


def block_diag(inputs: Sequence[Variable]) -> Variable:
    """Return a matrix with matrices, of known sizes, along its diagonal and zeros elsewhere."""
    parts = _at_least(2, inputs)
    widths = [size_at(part, 1, "block_diag") for part in parts]
    rows = []
    for index, (part, value) in enumerate(zip(parts, in_one_type(*parts), strict=True)):
        ends = np.array([0, sum(widths[:index]), 0, sum(widths[index + 1 :])], np.int64)
        rows.append(wrap(part, builder_of(part).op("Pad", [value, builder_of(part).constant(ends)])))
    return concat(rows, 0)


def combinations(x: Variable, r: int = 2, with_replacement: bool = False) -> Variable:
    """Return all choices of `r` elements of a vector of known size, in its order, as rows."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(size_at(x, 0, "combinations")), r)), np.int64).reshape(-1, r)
    b = builder_of(x)
    return wrap(x, b.op("Gather", [x.value, b.constant(places)], {"axis": 0}))


def cartesian_prod(x: Sequence[Variable]) -> Variable:
    """Return all tuples of elements of vectors of known sizes, as rows; one vector stays as it is."""
    if len(x) == 1:
        return x[0]
    sizes = [size_at(part, 0, "cartesian_prod") for part in x]
    places = np.stack(np.meshgrid(*(np.arange(size) for size in sizes), indexing="ij"), -1).reshape(-1, len(x))
    b = builder_of(*x)
    columns = [
        b.op("Gather", [value, b.constant(places[:, i].astype(np.int64))], {"axis": 0})
        for i, value in enumerate(in_one_type(*x))
    ]
    return stack([wrap(x[0], column) for column in columns], 1)


accept_name(globals(), __all__)
