"""Masks of attention: what is added to scores, or chosen in place of them, and which of their axes it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.fusion.attention_values import changes_nothing, made_by, number_of, repeated_number
from amp_transpiler.fusion.attention_views import REPEATED, Part, View, is_single, view_through, whole_view
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.sizes import Dim, Sizes
from amp_transpiler.ops.names import is_standard

__all__ = ["MASKED", "Mask", "as_truths", "masks_in_axes", "shape_of_mask"]

MASKED = -1e3  # a constant at or below takes the place of a score that does not count
_DEEPEST = 12  # nodes before a mask that are looked through


@dataclasses.dataclass(frozen=True, slots=True)
class Mask:
    """A summand of the scores, or what takes their place.

    Attributes:
        value: what is added; where `allowed` is set, the condition of which it is made.
        allowed: whether `value` holds truths: True where a score counts (or False, where `inverted`).
        inverted: truths mean the opposite.
        filler: with truths, what is added where a score does not count.
        replaces: `filler` takes the place of a score, which is lost then.
        places: the axes of `value` as axes of the scores [batch, heads, queries, keys]; its axes of one element that
            are none are -1. None where it has their last axes.
    """

    value: ir.Value
    allowed: bool = False
    inverted: bool = False
    filler: float = 0.0
    replaces: bool = False
    places: tuple[int, ...] | None = None


def as_truths(value: ir.Value, sizes: Sizes) -> Mask:
    """Read `Where(condition, 0, very small)` as a condition; anything else as a summand."""
    node = made_by(value, "Where")
    condition = None if node is None else node.inputs[0]
    if node is None or condition is None:
        return Mask(value)
    numbers = [number_of(each) for each in node.inputs[1:]]
    if None in numbers and sizes.shape(condition) is not None and sizes.shape(condition) == sizes.shape(value):
        numbers = [repeated_number(each) for each in node.inputs[1:]]
    yes, no = numbers
    if yes == 0.0 and no is not None and no <= MASKED:
        return Mask(condition, allowed=True, filler=no)
    if no == 0.0 and yes is not None and yes <= MASKED:
        return Mask(condition, allowed=True, inverted=True, filler=yes)
    return Mask(value)


def shape_of_mask(mask: Mask, sizes: Sizes) -> tuple[Dim, ...] | None:
    """Return the shape of a mask in the axes of the scores."""
    shape = sizes.shape(mask.value)
    if mask.places is None or shape is None:
        return shape
    return tuple(shape[mask.places.index(axis)] if axis in mask.places else 1 for axis in range(4))


# ---- axes ----


def masks_in_axes(mask: Mask, scores: Sequence[Dim], rank: int, sizes: Sizes) -> list[Mask] | None:
    """Return what a mask consists of, before exporters bring it into the form of the scores.

    Args:
        mask: as it meets the scores.
        scores: their sizes [batch, heads, queries, keys].
        rank: how many axes the scores have: 3 where samples and heads are one axis.
        sizes: the sizes of the graph's values.

    Returns:
        The masks whose sum it is. None if scores of three axes meet one whose axes cannot be told.
    """
    masks = [_placed(view, mask, scores, rank, sizes) for view in _summands(mask.value, sizes, 4 - rank)]
    if masks and all(each is not None for each in masks):
        return [each for each in masks if each is not None]
    return [mask] if rank == 4 else None


def _placed(view: View, mask: Mask, scores: Sequence[Dim], rank: int, sizes: Sizes) -> Mask | None:
    if view.source is mask.value and rank == 4:
        return mask
    shape, axes = sizes.shape(view.source), _in_four_axes(view, rank, scores[1])
    if shape is None or axes is None:
        return None
    places = [-1] * len(shape)
    for place, parts in enumerate(axes):
        if is_single(parts):
            continue
        if len(parts) != 1 or parts[0].size != scores[place]:
            return None  # it may be more than the scores have
        (part,) = parts
        if part.axis == REPEATED:
            continue
        if part.size != shape[part.axis]:
            return None
        places[part.axis] = place
    if any(size != 1 and place < 0 for size, place in zip(shape, places, strict=True)):
        return None
    source = mask if mask.allowed else as_truths(view.source, sizes)
    value = view.source if mask.allowed else source.value
    if sizes.shape(value) != shape:
        return Mask(view.source, places=tuple(places))
    return dataclasses.replace(source, value=value, places=tuple(places))


def _in_four_axes(view: View, rank: int, heads: Dim) -> tuple[tuple[Part, ...], ...] | None:
    """Return the parts of samples, heads, queries and keys."""
    if len(view.axes) > rank:
        return None
    axes = ((),) * (rank - len(view.axes)) + view.axes
    if rank == 4:
        return axes
    outer = axes[0]
    if is_single(outer):
        return ((), (), *axes[1:])
    if heads == 1 and len(outer) == 1:
        return (outer, (), *axes[1:])
    return ((outer[0],), (outer[1],), *axes[1:]) if len(outer) == 2 else None


def _summands(value: ir.Value, sizes: Sizes, depth: int) -> list[View]:
    """Return the views whose sum a value is. A sum that meets scores of four axes, at depth 0, stays whole."""
    unchanged = whole_view(value, sizes)
    node = value.producer()
    source = None if node is None or not node.inputs else node.inputs[0]
    if unchanged is None:
        return []
    if node is None or source is None or depth > _DEEPEST or not is_standard(node):
        return [unchanged]
    if node.op_type == "Add" and depth and value.dtype == ir.DataType.FLOAT and not changes_nothing(node):
        terms = [view for term in node.inputs if term is not None for view in _summands(term, sizes, depth + 1)]
        return _met(terms) or [unchanged]
    if constant_array(value) is not None:
        return [unchanged]
    views = [view_through(node, value, view, sizes) for view in _summands(source, sizes, depth + 1)]
    seen = [view for view in views if view is not None and not view.picked]
    return seen if seen and len(seen) == len(views) else [unchanged]


def _met(views: Sequence[View]) -> list[View] | None:
    """Return views as they meet in a sum: each repeated as the others need it; None if that cannot be told."""
    rank = max(len(view.axes) for view in views)
    rows = [[()] * (rank - len(view.axes)) + list(view.axes) for view in views]
    for axis in range(rank):
        wanted = next((row[axis] for row in rows if not is_single(row[axis])), ())
        sizes = [part.size for part in wanted]
        for row in rows:
            if is_single(row[axis]):
                row[axis] = tuple(Part(REPEATED, size) for size in sizes)
            elif [part.size for part in row[axis]] != sizes:
                return None
    return [dataclasses.replace(view, axes=tuple(row)) for view, row in zip(views, rows, strict=True)]
