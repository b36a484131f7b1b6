"""Gradients of Slice and Pad."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.rules.placing import axis_of, dim, put_at, surround, without_bfloat16
from amp_transpiler.graph.builder import is_static, rank_of, shape_of
from amp_transpiler.graph.walk import constant_of

_END = np.iinfo(np.int64).max


@gradient("Slice")
def slice_(n: NodeGradient) -> ir.Value:
    """`g` among zeros. Axes of known size take Pad, others with step 1 a Pad of computed widths, the rest a scatter."""
    index = _SliceIndex.of(n)
    if index.steps is None or index.axes is None or n.x.shape is None:
        return put_at(n, index.inputs)
    sizes = [dim(n.x, axis) for axis in index.axes]
    if index.starts is not None and index.ends is not None and None not in sizes:
        return _known_slice(n, index)
    if all(step == 1 for step in index.steps):
        return _unit_slice(n, index)
    return put_at(n, index.inputs)


@dataclasses.dataclass(frozen=True)
class _SliceIndex:
    """What a Slice takes; None for what is not constant. `inputs` are starts, ends, axes, steps as values."""

    starts: list[int] | None
    ends: list[int] | None
    axes: list[int] | None
    steps: list[int] | None
    inputs: list[ir.Value | None]

    @staticmethod
    def of(n: NodeGradient) -> _SliceIndex:
        if len(n.node.inputs) > 1:
            inputs = [n.optional(i) for i in range(1, 5)]
        else:  # before opset 10 they are attributes
            given = [n.attribute(name) for name in ("starts", "ends", "axes")]
            inputs = [None if part is None else n.b.constant(np.array(list(part), np.int64)) for part in given] + [None]
        starts, ends, axes, steps = (_numbers(value) for value in inputs)
        start = inputs[0]
        count = dim(start, 0) if start is not None else None
        if inputs[2] is None:
            axes = None if count is None else list(range(count))
        elif axes is not None and n.x.shape is not None:
            axes = [axis_of(axis, len(n.x.shape)) for axis in axes]
        if inputs[3] is None:
            steps = None if axes is None else [1] * len(axes)
        return _SliceIndex(starts, ends, axes, steps, inputs)


def _numbers(value: ir.Value | None) -> list[int] | None:
    tensor = constant_of(value)
    return None if tensor is None else [int(number) for number in tensor.numpy().reshape(-1)]


def _positions(start: int, end: int, step: int, size: int) -> range:
    """The positions that a slice takes of an axis, by ONNX's rule of clamping."""
    start, end = (start + size if start < 0 else start), (end + size if end < 0 else end)
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _known_slice(n: NodeGradient, index: _SliceIndex) -> ir.Value:
    rank = rank_of(n.x)
    before, after, g = [0] * rank, [0] * rank, n.g
    for start, end, axis, step in zip(
        index.starts or (), index.ends or (), index.axes or (), index.steps or (), strict=True
    ):
        size = dim(n.x, axis) or 0
        taken = _positions(start, end, step, size)
        if not taken:
            return n.b.zeros_like(n.x)
        if step < 0:
            g, taken = n.b.slice(g, [-1], [-_END], [axis], [-1]), taken[::-1]
        g = _spread(n, g, axis, len(taken), taken.step)
        before[axis], after[axis] = taken[0], size - 1 - taken[-1]
    return surround(n, g, before, after)


def _spread(n: NodeGradient, g: ir.Value, axis: int, count: int, step: int) -> ir.Value:
    """Put `step` - 1 zeros between the `count` elements of an axis."""
    if step == 1 or count == 1:
        return g
    b, rank = n.b, rank_of(g)
    factors = [step if i == axis else 1 for i in range(rank)]
    if is_static(g):
        shape = b.constant(np.array(shape_of(g), np.int64) * factors)
    else:
        shape = b.mul(b.shape(g), b.constant(np.array(factors, np.int64)))
    after = [step - 1 if i == axis + 1 else 0 for i in range(rank + 1)]
    apart = surround(n, b.unsqueeze(g, [axis + 1]), [0] * (rank + 1), after)
    return b.slice(b.reshape(apart, shape), [0], [(count - 1) * step + 1], [axis])


def _unit_slice(n: NodeGradient, index: _SliceIndex) -> ir.Value:
    """Zeros before: the start, which counts from the end if negative; zeros after: what is missing then."""
    b, rank = n.b, rank_of(n.x)
    axes = b.constant(np.array(index.axes, np.int64))
    starts = b.cast(index.inputs[0], ir.DataType.INT64) if index.inputs[0] is not None else axes
    sizes, kept = (b.op("Gather", [b.op("Shape", [value]), axes]) for value in (n.x, n.g))
    zero = b.constant(np.int64(0))
    before = b.where(b.compare("Less", starts, zero), b.maximum(b.add(starts, sizes), zero), b.minimum(starts, sizes))
    after = b.sub(b.sub(sizes, before), kept)
    none = b.constant(np.zeros(rank, np.int64))
    pads = b.concat([b.op("ScatterElements", [none, axes, part]) for part in (before, after)], 0)
    made = b.op("Pad", [without_bfloat16(n, n.g), pads])
    made.shape = None if n.x.shape is None else ir.Shape(n.x.shape)
    return made


@gradient("Pad")
def pad(n: NodeGradient) -> Sequence[ir.Value | None]:
    """Zeros: the part of `g` that is not padding; others: what each border took is added where it came from."""
    rank = rank_of(n.x)
    before, after = _widths(n, rank)
    mode = n.attribute("mode", "constant")
    if mode != "constant":
        return [_fold_borders(n, mode, before, after)]
    crop = [axis for axis in range(rank) if before[axis] > 0 or after[axis] > 0]
    g = n.g
    if crop:
        ends = [-after[axis] if after[axis] > 0 else _END for axis in crop]
        g = n.b.slice(g, [max(before[axis], 0) for axis in crop], ends, crop)
    # Negative widths cut off: what was cut has no gradient.
    dx = surround(n, g, [max(-width, 0) for width in before], [max(-width, 0) for width in after])
    if not n.wants(2):
        return [dx]
    return [dx, None, n.b.reshape_like(n.b.sub(n.b.sum(n.g, keepdims=False), n.b.sum(g, keepdims=False)), n.input(2))]


def _widths(n: NodeGradient, rank: int) -> tuple[list[int], list[int]]:
    """How much is added before and after each axis, the axes that are not padded included."""
    pads = n.constant(1) if len(n.node.inputs) > 1 else n.attribute("pads")
    widths = [int(width) for width in np.asarray(pads).reshape(-1)]
    given = n.constant(3)
    axes = range(rank) if given is None else [axis_of(int(axis), rank) for axis in given]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = widths[i], widths[len(axes) + i]
    return before, after


def _fold_borders(n: NodeGradient, mode: str, before: Sequence[int], after: Sequence[int]) -> ir.Value:
    g = n.b.high(n.g)
    for axis in range(rank_of(n.x)):
        first, last = before[axis], after[axis]
        if first == 0 and last == 0:
            continue
        size = dim(n.x, axis)
        if size is None:
            raise n.error(f"mode '{mode}' pads axis {axis}, whose size must be known: give the inputs fixed shapes")
        taken = np.arange(size)[max(-first, 0) : size - max(-last, 0)]
        sources = np.pad(taken, (max(first, 0), max(last, 0)), mode=mode)  # type: ignore[call-overload]  # ONNX's are numpy's
        g = _fold(n, g, axis, [int(i) for i in sources], size)
    return g


def _fold(n: NodeGradient, g: ir.Value, axis: int, sources: Sequence[int], size: int) -> ir.Value:
    """Add every element of `g` along `axis` at the position that it was copied from, a run of neighbours at a time."""
    b, rank = n.b, rank_of(g)
    total = None
    for first, last in _runs(sources):
        run = sources[first : last + 1]
        part = b.slice(g, [first], [last + 1], [axis])
        if len(run) > 1 and run[0] == run[1]:
            part, run = b.sum(part, [axis]), run[:1]
        elif run[-1] < run[0]:
            part = b.slice(part, [-1], [-_END], [axis], [-1])
        before, after = [0] * rank, [0] * rank
        before[axis], after[axis] = min(run), size - 1 - max(run)
        part = surround(n, part, before, after)
        total = part if total is None else b.add(total, part)
    return b.zeros_like(n.x) if total is None else total


def _runs(sources: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last index of each stretch in which the numbers go up by one, down by one, or stay."""
    runs, first = [], 0
    for i in range(1, len(sources) + 1):
        ended = i == len(sources)
        step = None if ended else sources[i] - sources[i - 1]
        if ended or step not in (-1, 0, 1) or (i - first > 1 and step != sources[i - 1] - sources[i - 2]):
            runs.append((first, i - 1))
            first = i
    return runs if sources else []
