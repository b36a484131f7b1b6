"""MaxPool written as Max over strided Slices, one axis after the other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["max_pool_from_phases", "max_pool_from_slices", "why_not_max_pool"]

_END = np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True, slots=True)
class _Window:
    """Pooling along one axis, with the padding that makes a plain floor count of windows the right one.

    Attributes:
        axis: of the input.
        kernel, stride, dilation: as in the schema.
        before, after: elements of padding.
    """

    axis: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def extent(self) -> int:
        """Distance from a window's first element to its last."""
        return self.dilation * (self.kernel - 1)


class _Undecided(Exception):
    """The windows cannot be laid out without running the model; the message says why."""


def why_not_max_pool(node: ir.Node) -> str | None:
    """Return why `node` cannot be written as Max over Slices, or None if it can."""
    indices = node.outputs[1] if len(node.outputs) > 1 else None
    if indices is not None and (indices.uses() or indices.is_graph_output()):
        return "its Indices output is used"
    if "kernel_shape" not in node.attributes:
        return "it has no kernel_shape"
    data = node.inputs[0]
    if data is not None and data.dtype is not None and not data.dtype.is_floating_point():
        return f"its input is {data.dtype}, which Max has no kernel for"
    try:
        windows = _windows(node)
    except _Undecided as reason:
        return str(reason)
    if any(w.dilation > 1 and (w.before or w.after) for w in windows) and (data is None or data.dtype is None):
        return "the element type of its input, and so of the padding, is unknown"
    return None


def max_pool_from_slices(node: ir.Node, build: NodeBuilder) -> None:
    """Pool along one axis after the other: the maximum over a box is that of the maxima over its rows.

    Along an axis every element of the window is one Slice with the stride as step; Max joins them. Slices count from
    the end, so that no size has to be known.
    """
    value, taps = node.inputs[0], list[ir.Value]()
    for window in _windows(node):
        if taps:
            value = taps[0] if len(taps) == 1 else build.node("Max", taps, dtype=taps[0].dtype)
        if value is None:
            raise ValueError(f"node '{node.name}' (MaxPool) has no input")
        padded = _pad(value, window, build)
        taps = [_tap(padded, window, index, build) for index in range(window.kernel)]
    build.become("Max" if len(taps) > 1 else "Identity", taps)


def max_pool_from_phases(node: ir.Node, build: NodeBuilder) -> None:
    """Pool as `max_pool_from_slices` does, in a form whose gradient moves less.

    1. Elements that are a stride apart are split off at once, as phases of the axis. So each element of the window is
       a part of a phase in one piece, and the gradients of the phases are joined by one Concat. That of a Slice with
       steps is padded once between its elements and once around them, and all of these are added up.
    2. The padding is -inf, which has no gradient; that of a repeated edge would be padded to the size of the axis.

    An axis without a known size, one that is not strided, and one with gaps between its windows stay as there.
    """
    value, taps, shape = node.inputs[0], list[ir.Value](), _known_shape(node)
    for window in _windows(node):
        if taps:
            value = taps[0] if len(taps) == 1 else build.node("Max", taps, dtype=taps[0].dtype)
        if value is None:
            raise ValueError(f"node '{node.name}' (MaxPool) has no input")
        if shape is not None and node.inputs[0] is not None and node.inputs[0].shape is not None:
            value.shape = ir.Shape([*node.inputs[0].shape[:2], *shape[2:]])
        count = 0 if shape is None else _count(window, shape[window.axis])
        if shape is not None and 1 < window.stride <= window.kernel and count > 0:
            taps = _phase_taps(value, window, shape, count, build)
        else:
            padded = _pad(value, window, build, lowest=True)
            taps = [_tap(padded, window, index, build) for index in range(window.kernel)]
        if shape is not None:
            shape = [*shape[: window.axis], count, *shape[window.axis + 1 :]]
    build.become("Max" if len(taps) > 1 else "Identity", taps)


def _known_shape(node: ir.Node) -> list[int] | None:
    """Return the shape of a pool's input; batch and channels as 0, which keeps a dimension. None if it is not known."""
    data = node.inputs[0]
    if data is None or data.shape is None or not all(isinstance(size, int) for size in data.shape[2:]):
        return None
    return [0, 0, *(size for size in data.shape[2:] if isinstance(size, int))]


def _count(window: _Window, size: int) -> int:
    """Return how many windows there are along an axis of a size."""
    return (size + window.before + window.after - window.extent - 1) // window.stride + 1


def _phase_taps(
    value: ir.Value, window: _Window, shape: Sequence[int], count: int, build: NodeBuilder
) -> list[ir.Value]:
    places = [divmod(index * window.dilation, window.stride) for index in range(window.kernel)]
    length = count + max(skipped for skipped, _ in places)
    after = length * window.stride - shape[window.axis] - window.before
    padded = _pad(value, dataclasses.replace(window, after=max(after, 0)), build, lowest=True)
    if after < 0:
        padded = _slice(build, padded, window.axis, 0, length * window.stride, 1)
    before, behind = shape[: window.axis], shape[window.axis + 1 :]
    apart = _reshape(build, padded, [*before, length, window.stride, *behind])
    split = {"axis": window.axis + 1, "num_outputs": window.stride}
    parts = build.nodes("Split", [apart], window.stride, split, value.dtype)
    phases = [_reshape(build, part, [*before, length, *behind]) for part in parts]
    return [
        phases[phase]
        if (skipped, skipped + count) == (0, length)
        else _slice(build, phases[phase], window.axis, skipped, skipped + count, 1)
        for skipped, phase in places
    ]


def _reshape(build: NodeBuilder, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    return build.node("Reshape", [value, build.constant(np.array(shape, np.int64))], dtype=value.dtype)


def _windows(node: ir.Node) -> list[_Window]:
    kernel = node.attributes["kernel_shape"].as_ints()
    rank = len(kernel)
    strides, dilations = _ints(node, "strides", [1] * rank), _ints(node, "dilations", [1] * rank)
    pads = _ints(node, "pads", [0] * (2 * rank))
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if shape is not None and len(shape) != rank + 2:
        raise _Undecided(f"its kernel has {rank} axes, its input {len(shape)}")
    windows = []
    for i in range(rank):
        size = shape[i + 2] if shape is not None else None
        plain = _Window(i + 2, kernel[i], strides[i], dilations[i], pads[i], pads[i + rank])
        windows.append(_laid_out(plain, size if isinstance(size, int) else None, node))
    return windows


def _ints(node: ir.Node, name: str, default: Sequence[int]) -> Sequence[int]:
    attribute = node.attributes.get(name)
    return default if attribute is None or not attribute.as_ints() else attribute.as_ints()


def _laid_out(window: _Window, size: int | None, node: ir.Node) -> _Window:
    """Turn auto_pad and ceil_mode into padding."""
    attribute, ceil = node.attributes.get("auto_pad"), node.attributes.get("ceil_mode")
    auto_pad = "NOTSET" if attribute is None else attribute.as_string()
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return _same(window, size, upper=auto_pad == "SAME_UPPER")
    if auto_pad == "VALID":
        return dataclasses.replace(window, before=0, after=0)
    if not 0 <= window.before <= window.extent or not 0 <= window.after <= window.extent:
        raise _Undecided("it pads by more than its kernel, or by a negative number")
    return _ceil(window, size) if ceil is not None and ceil.as_int() else window


def _same(window: _Window, size: int | None, *, upper: bool) -> _Window:
    if size is None and window.stride > 1:
        raise _Undecided(f"auto_pad=SAME needs the size of axis {window.axis}, which is not known before it runs")
    # With stride 1 the padding does not depend on the size.
    count = math.ceil(size / window.stride) if size is not None else 1
    total = max((count - 1) * window.stride + window.extent + 1 - (size if size is not None else 1), 0)
    small, large = total // 2, total - total // 2
    before, after = (small, large) if upper else (large, small)
    return dataclasses.replace(window, before=before, after=after)


def _ceil(window: _Window, size: int | None) -> _Window:
    """A last, partial window counts, unless it would start behind the input."""
    more = window.stride - 1
    if window.after + window.stride > window.extent + 1:  # otherwise no window can start behind the input
        if size is None:
            raise _Undecided(f"ceil_mode needs the size of axis {window.axis}, which is not known before it runs")
        rest = size + window.before + window.after - window.extent - 1
        if math.ceil(rest / window.stride) * window.stride >= size + window.before:
            more = 0
    return dataclasses.replace(window, after=window.after + more)


def _slice(build: NodeBuilder, value: ir.Value, axis: int, start: int, end: int, step: int) -> ir.Value:
    bounds = [build.constant(np.array([number], np.int64)) for number in (start, end, axis, step)]
    return build.node("Slice", [value, *bounds], dtype=value.dtype)


def _pad(value: ir.Value, window: _Window, build: NodeBuilder, *, lowest: bool = False) -> ir.Value:
    """Lengthen the axis by elements that never are a maximum of their own.

    Without dilation each window that reaches into the padding also holds the element at the edge, which may therefore
    be repeated. With dilation it may skip that one, and the padding is -inf; also with `lowest`, where the type is
    known.
    """
    if not window.before and not window.after:
        return value
    first = last = _slice(build, value, window.axis, 0, 1, 1)
    if window.dilation == 1 and not (lowest and value.dtype is not None):
        last = _slice(build, value, window.axis, -1, _END, 1)
    elif value.dtype is not None:
        shape = build.node("Shape", [first], dtype=ir.DataType.INT64)
        number = build.constant(np.asarray(-np.inf, value.dtype.numpy()))
        first = last = build.node("Expand", [number, shape], dtype=value.dtype)
        if value.shape is not None:  # nothing infers it, and gradients of an unknown shape are found at run time
            first.shape = ir.Shape([*value.shape[: window.axis], 1, *value.shape[window.axis + 1 :]])
    parts = [first] * window.before + [value] + [last] * window.after
    return build.node("Concat", parts, {"axis": window.axis}, value.dtype)


def _tap(value: ir.Value, window: _Window, index: int, build: NodeBuilder) -> ir.Value:
    start = index * window.dilation
    left = window.extent - start  # elements that must remain behind this one
    if start == 0 and left == 0 and window.stride == 1:
        return value
    return _slice(build, value, window.axis, start, -left if left else _END, window.stride)
