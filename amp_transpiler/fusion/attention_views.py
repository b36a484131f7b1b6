"""Where the axes of a value come from: the same elements seen through Reshape, Transpose, Gather and the like.

Exporters split heads in many orders. All that counts is which parts of which axes meet in the end: parts are followed
one by one: by numbers where an axis is split, by the names of `graph/sizes.py` where it is whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.fusion.attention_values import changes_nothing
from amp_transpiler.graph.sizes import Dim, Sizes
from amp_transpiler.ops.names import is_standard

__all__ = ["REPEATED", "Axes", "Part", "View", "is_single", "view_through", "whole_view"]

REPEATED = -1  # the axis of a part that only repeats elements


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of an axis of the source: the elements `stride`, `2 * stride`, ... apart.

    Attributes:
        axis: which axis; `REPEATED` for none.
        size: how many elements.
        stride: how far they lie apart, in elements of the axis.
    """

    axis: int
    size: Dim
    stride: int = 1


Axes: TypeAlias = tuple[tuple[Part, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """A value whose elements are those of a source.

    Attributes:
        source: the value that is seen.
        axes: of each axis the parts of the source's axes that it consists of, the outermost first.
        picked: parts of which one element is taken, each with its index.
    """

    source: ir.Value
    axes: Axes
    picked: tuple[tuple[Part, int], ...] = ()


def whole_view(value: ir.Value, sizes: Sizes) -> View | None:
    """Return a value seen as it is; None if the number of its axes is not known."""
    shape = sizes.shape(value)
    return None if shape is None else View(value, tuple((Part(axis, size),) for axis, size in enumerate(shape)))


def view_through(node: ir.Node, output: ir.Value, view: View, sizes: Sizes) -> View | None:
    """Return the view of a node's output, from that of its first input; None if it cannot be told."""
    if not is_standard(node):
        return None
    if changes_nothing(node):
        return view
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(node, output, view, sizes)


def _transpose(node: ir.Node, _output: ir.Value, view: View, _sizes: Sizes) -> View | None:
    order = node.attributes.get_ints("perm", tuple(reversed(range(len(view.axes)))))
    return dataclasses.replace(view, axes=tuple(view.axes[axis] for axis in order))


def _squeeze(node: ir.Node, _output: ir.Value, view: View, sizes: Sizes) -> View | None:
    axes = _listed_axes(node, len(view.axes), sizes)
    if axes is None or any(not is_single(view.axes[axis]) for axis in axes):
        return None
    return dataclasses.replace(view, axes=tuple(parts for axis, parts in enumerate(view.axes) if axis not in axes))


def _unsqueeze(node: ir.Node, output: ir.Value, view: View, sizes: Sizes) -> View | None:
    shape = sizes.shape(output)
    axes = None if shape is None else _listed_axes(node, len(shape), sizes)
    if shape is None or axes is None or len(shape) != len(view.axes) + len(set(axes)):
        return None
    rest = iter(view.axes)
    return dataclasses.replace(view, axes=tuple(() if axis in axes else next(rest) for axis in range(len(shape))))


def _expand(node: ir.Node, _output: ir.Value, view: View, sizes: Sizes) -> View | None:
    wanted = sizes.content(node.inputs[1])
    if wanted is None or any(isinstance(size, int) and size < 1 for size in wanted):
        return None
    missing = len(wanted) - len(view.axes)
    axes = [()] * missing + list(view.axes)
    for axis, size in enumerate(wanted, start=len(axes) - len(wanted)):
        if size == 1 or [part.size for part in axes[axis]] == [size]:
            continue
        if not is_single(axes[axis]):
            return None  # an open size may meet itself or 1
        axes[axis] = (Part(REPEATED, size),)
    return dataclasses.replace(view, axes=tuple(axes))


def _gather(node: ir.Node, _output: ir.Value, view: View, sizes: Sizes) -> View | None:
    index = sizes.content(node.inputs[1])
    if index is None or len(index) != 1:
        return None
    axis = node.attributes.get_int("axis", 0) % len(view.axes)
    return _taken(view, axis, index[0], keeps=sizes.shape(node.inputs[1]) != ())


def _slice(node: ir.Node, _output: ir.Value, view: View, sizes: Sizes) -> View | None:
    if len(node.inputs) < 4:
        return None  # it says its axes by attributes, or means all
    start, end, axes, *step = (sizes.content(bound) for bound in node.inputs[1:5])
    if start is None or end is None or axes is None or len(axes) != 1 or step not in ([], [(1,)]):
        return None
    first, last, axis = start[0], end[0], axes[0]
    if not isinstance(first, int) or first < 0 or last != first + 1 or not isinstance(axis, int):
        return None
    return _taken(view, axis % len(view.axes), first, keeps=True)


def _split(node: ir.Node, output: ir.Value, view: View, _sizes: Sizes) -> View | None:
    axis = node.attributes.get_int("axis", 0) % len(view.axes)
    (part,) = view.axes[axis] if len(view.axes[axis]) == 1 else (None,)
    if part is None or part.size != len(node.outputs):
        return None
    return _taken(view, axis, node.outputs.index(output), keeps=True)


def _taken(view: View, axis: int, index: Dim, *, keeps: bool) -> View | None:
    """Take one element of an axis that is a single part."""
    if len(view.axes[axis]) != 1 or not isinstance(index, int):
        return None
    (part,) = view.axes[axis]
    if not isinstance(part.size, int) or not -part.size <= index < part.size:
        return None
    rest: Axes = ((),) if keeps else ()
    axes = (*view.axes[:axis], *rest, *view.axes[axis + 1 :])
    return View(view.source, axes, (*view.picked, (part, index % part.size)))


def _reshape(node: ir.Node, _output: ir.Value, view: View, sizes: Sizes) -> View | None:
    content = sizes.content(node.inputs[1]) if len(node.inputs) > 1 else None  # an attribute before opset 5
    if content is None:
        return None
    wanted = [None if size == -1 else size for size in content]
    copies = not node.attributes.get_int("allowzero", 0)
    parts = [part for axis in view.axes for part in axis]
    if copies:
        wanted = [_copied(view, axis) if size == 0 else size for axis, size in enumerate(wanted)]
    if any(size == 0 for size in wanted):
        return None
    front: list[tuple[Part, ...]] = []
    while wanted and (taken := _front(wanted[0], parts)) is not None:
        front.append(taken[0])
        parts, wanted = taken[1], wanted[1:]
    back: list[tuple[Part, ...]] = []
    while wanted and (taken := _back(wanted[-1], parts)) is not None:
        back.insert(0, taken[0])
        parts, wanted = taken[1], wanted[:-1]
    if len(wanted) > 1 or (parts and not wanted):
        return None
    middle = [tuple(parts)] if wanted else []  # what is left is the size that was open
    return dataclasses.replace(view, axes=(*front, *middle, *back))


def _copied(view: View, axis: int) -> Dim | None:
    parts = view.axes[axis] if axis < len(view.axes) else ()
    return parts[0].size if len(parts) == 1 else None


def _front(size: Dim | None, parts: Sequence[Part]) -> tuple[tuple[Part, ...], list[Part]] | None:
    """Take a size from the front of some parts; return it and the rest; None if it is not told by them."""
    taken: list[Part] = []
    rest = list(parts)
    if size == 1 and (not rest or rest[0].size != 1):
        return (), rest
    while rest:
        part = rest.pop(0)
        if part.size == size:
            return (*taken, part), rest
        if not isinstance(size, int) or not isinstance(part.size, int) or min(size, part.size) < 1:
            return None
        if part.size % size == 0:
            inner = part.size // size
            outer = dataclasses.replace(part, size=size, stride=part.stride * inner)
            return (*taken, outer), [dataclasses.replace(part, size=inner), *rest]
        if size % part.size:
            return None
        taken.append(part)
        size //= part.size
    return None


def _back(size: Dim | None, parts: Sequence[Part]) -> tuple[tuple[Part, ...], list[Part]] | None:
    """Take a size from the back of some parts, as `_front` does."""
    taken: list[Part] = []
    rest = list(parts)
    if size == 1 and (not rest or rest[-1].size != 1):
        return (), rest
    while rest:
        part = rest.pop()
        if part.size == size:
            return (part, *taken), rest
        if not isinstance(size, int) or not isinstance(part.size, int) or min(size, part.size) < 1:
            return None
        if part.size % size == 0:
            outer = dataclasses.replace(part, size=part.size // size, stride=part.stride * size)
            return (dataclasses.replace(part, size=size), *taken), [*rest, outer]
        if size % part.size:
            return None
        taken.insert(0, part)
        size //= part.size
    return None


def _listed_axes(node: ir.Node, rank: int, sizes: Sizes) -> list[int] | None:
    axes: Sequence[Dim] | None = node.attributes.get_ints("axes", None)
    if axes is None:
        axes = sizes.content(node.inputs[1] if len(node.inputs) > 1 else None)
    return None if axes is None else [axis % rank for axis in axes if isinstance(axis, int)]


def is_single(parts: Sequence[Part]) -> bool:
    """Whether an axis of these parts has one element."""
    return all(part.size == 1 for part in parts)


_RULES: Mapping[str, Callable[[ir.Node, ir.Value, View, Sizes], View | None]] = MappingProxyType(
    {
        "Transpose": _transpose,
        "Reshape": _reshape,
        "Squeeze": _squeeze,
        "Unsqueeze": _unsqueeze,
        "Expand": _expand,
        "Gather": _gather,
        "Slice": _slice,
        "Split": _split,
    }
)
