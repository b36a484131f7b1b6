"""Gradients of Slice and Pad."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient, SizesUnknown
from amp_transpiler.autodiff.expression import Expr, concat
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.autodiff.rules.placing import axis_of, put_at, surround

_END = np.iinfo(np.int64).max


@gradient("Slice")
def slice_(g: Expr, x: Expr, *, node: NodeGradient) -> Expr:
    """`g` among zeros: by a Pad for axes of known size; by a Pad of computed widths for step 1; else by a scatter."""
    index = _SliceIndex.of(node, x)
    if index.steps is None or index.axes is None or x.shape is None:
        return put_at(g, x, index.inputs)
    sizes = [x.size(axis) for axis in index.axes]
    if index.starts is not None and index.ends is not None and None not in sizes:
        return _known_slice(g, x, index)
    if all(step == 1 for step in index.steps):
        return _unit_slice(g, x, index)
    return put_at(g, x, index.inputs)


@dataclasses.dataclass(frozen=True, slots=True)
class _SliceIndex:
    """The index of a Slice; None for numbers that are not constant.

    Attributes:
        starts, ends, axes, steps: the numbers.
        inputs: starts, ends, axes and steps as expressions, None where one is left out.
    """

    starts: list[int] | None
    ends: list[int] | None
    axes: list[int] | None
    steps: list[int] | None
    inputs: list[Expr | None]

    @staticmethod
    def of(node: NodeGradient, x: Expr) -> _SliceIndex:
        inputs = [node.optional(i) for i in range(1, 5)]  # attributes before opset 10, where no program is trained
        starts, ends, axes, steps = (_numbers(value) for value in inputs)
        count = node.input(1).size(0)
        if inputs[2] is None:
            axes = None if count is None else list(range(count))
        elif axes is not None and x.shape is not None:
            axes = [axis_of(axis, x.rank) for axis in axes]
        if inputs[3] is None:
            steps = None if axes is None else [1] * len(axes)
        return _SliceIndex(starts, ends, axes, steps, inputs)


def _numbers(x: Expr | None) -> list[int] | None:
    return None if x is None or x.known is None else [int(number) for number in x.known.reshape(-1)]


def _positions(start: int, end: int, step: int, size: int) -> range:
    """The positions of an axis that a slice takes, clamped as ONNX does."""
    start, end = (start + size if start < 0 else start), (end + size if end < 0 else end)
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _known_slice(g: Expr, x: Expr, index: _SliceIndex) -> Expr:
    before, after = [0] * x.rank, [0] * x.rank
    for start, end, axis, step in zip(
        index.starts or (), index.ends or (), index.axes or (), index.steps or (), strict=True
    ):
        size = x.size(axis) or 0
        taken = _positions(start, end, step, size)
        if not taken:
            return x.zeros_like()
        if step < 0:
            g, taken = g.slice([-1], [-_END], [axis], [-1]), taken[::-1]
        g = _spread(g, axis, len(taken), taken.step)
        before[axis], after[axis] = taken[0], size - 1 - taken[-1]
    return surround(g, before, after)


def _spread(g: Expr, axis: int, count: int, step: int) -> Expr:
    """Put `step` - 1 zeros between the `count` elements of an axis: pad a new axis, then flatten it."""
    if step == 1 or count == 1:
        return g
    rank = g.rank
    factors = [step if i == axis else 1 for i in range(rank)]
    if g.is_static:
        shape = g.constant(np.array(g.sizes, np.int64) * factors)
    else:
        shape = g.shape_tensor() * g.constant(np.array(factors, np.int64))
    after = [step - 1 if i == axis + 1 else 0 for i in range(rank + 1)]
    apart = surround(g.unsqueeze(axis + 1), [0] * (rank + 1), after)
    return apart.reshape(shape).slice([0], [(count - 1) * step + 1], [axis])


def _unit_slice(g: Expr, x: Expr, index: _SliceIndex) -> Expr:
    """Zeros before: the start, which counts from the end if negative; zeros after: the rest of the axis."""
    axes = x.constant(np.array(index.axes, np.int64))
    assert index.inputs[0] is not None  # the starts
    starts = index.inputs[0].cast(ir.DataType.INT64)
    sizes, slice_sizes = (value.op("Shape").op("Gather", axes) for value in (x, g))
    zero = x.constant(np.int64(0))
    before = (starts < zero).where((starts + sizes).maximum(zero), starts.minimum(sizes))
    after = sizes - before - slice_sizes
    none = x.constant(np.zeros(x.rank, np.int64))
    pads = concat([none.op("ScatterElements", axes, part) for part in (before, after)], 0)
    return g.without_bfloat16().op("Pad", pads).with_shape_of(x)


@gradient("Pad")
def pad(
    g: Expr, x: Expr, _pads: Expr | None = None, fill: Expr | None = None, *, node: NodeGradient, mode: str = "constant"
) -> Gradients:
    """Constant borders: the part of `g` that is not padding. Others: each border is added where it was copied from."""
    before, after = _widths(node, x.rank)
    if mode != "constant":
        return _fold_borders(g, x, mode, before, after)
    crop = [axis for axis in range(x.rank) if before[axis] > 0 or after[axis] > 0]
    inner = g
    if crop:
        ends = [-after[axis] if after[axis] > 0 else _END for axis in crop]
        inner = g.slice([max(before[axis], 0) for axis in crop], ends, crop)

    def to_fill() -> Expr:
        assert fill is not None
        return (g.sum(keepdims=False) - inner.sum(keepdims=False)).reshape_like(fill)

    # Negative widths cut elements off, which then have no gradient.
    dx = surround(inner, [max(-width, 0) for width in before], [max(-width, 0) for width in after])
    return dx, None, to_fill


def _widths(node: NodeGradient, rank: int) -> tuple[list[int], list[int]]:
    """The padding before and after each axis, 0 for axes that are not padded."""
    widths = [int(width) for width in node.constant(1).reshape(-1)]
    axes = range(rank) if node.optional(3) is None else [axis_of(int(axis), rank) for axis in node.constant(3)]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = widths[i], widths[len(axes) + i]
    return before, after


def _fold_borders(g: Expr, x: Expr, mode: str, before: Sequence[int], after: Sequence[int]) -> Expr:
    g = g.wide()
    for axis in range(x.rank):
        first, last = before[axis], after[axis]
        if first == 0 and last == 0:
            continue
        size = x.size(axis)
        if size is None:
            raise SizesUnknown(
                f"mode '{mode}' pads axis {axis}, whose size must be known: give the inputs fixed shapes"
            )
        taken = np.arange(size)[max(-first, 0) : size - max(-last, 0)]
        sources = np.pad(taken, (max(first, 0), max(last, 0)), mode=mode)  # type: ignore[call-overload]  # ONNX's are numpy's
        g = _fold(g, x, axis, [int(i) for i in sources])
    return g


def _fold(g: Expr, x: Expr, axis: int, sources: Sequence[int]) -> Expr:
    """Add every element of `g` along `axis` at the position it was copied from, a run of neighbours at a time."""
    rank, size, total = g.rank, x.size(axis) or 0, None
    for first, last in _runs(sources):
        run = sources[first : last + 1]
        part = g.slice([first], [last + 1], [axis])
        if len(run) > 1 and run[0] == run[1]:
            part, run = part.sum([axis]), run[:1]
        elif run[-1] < run[0]:
            part = part.slice([-1], [-_END], [axis], [-1])
        before, after = [0] * rank, [0] * rank
        before[axis], after[axis] = min(run), size - 1 - max(run)
        part = surround(part, before, after)
        total = part if total is None else total + part
    assert total is not None  # ONNX Runtime has no such borders of nothing
    return total


def _runs(sources: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last index of each stretch in which the numbers rise by one, fall by one, or stay the same."""
    runs, first = [], 0
    for i in range(1, len(sources) + 1):
        ended = i == len(sources)
        step = None if ended else sources[i] - sources[i - 1]
        if ended or step not in (-1, 0, 1) or (i - first > 1 and step != sources[i - 1] - sources[i - 2]):
            runs.append((first, i - 1))
            first = i
    return runs
