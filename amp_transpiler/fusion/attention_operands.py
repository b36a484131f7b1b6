"""Queries, keys, values and results of attention: what is split into heads, and where heads become rows again.

Where a product of matrices reads a value whose heads cannot be followed to rows, as one that was rotated or joined to
a cache, it is taken as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from amp_transpiler.fusion.attention_values import without_scale
from amp_transpiler.fusion.attention_views import REPEATED, Axes, Part, View, view_through, whole_view
from amp_transpiler.graph.sizes import Dim, Sizes
from amp_transpiler.ops.names import is_standard

__all__ = ["BATCH_FIRST", "LENGTH_FIRST", "End", "Operand", "ends_of", "in_heads", "operand"]

_LONGEST_CHAIN = 24  # nodes between a projection and a product
BATCH_FIRST, LENGTH_FIRST = (0, 1), (1, 0)  # the axes of a value that are batch and length


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """A value that is split into heads: [batch, rows, heads * size] or [rows, batch, heads * size].

    Batch and rows may be one axis of it, or heads an axis of their own.

    Attributes:
        whole: the value; of `parts` such values side by side, if there are more than one.
        order: its axes of batch and rows.
        batch: how many samples.
        rows: how many rows.
        heads: how many heads.
        size: of one head.
        part: which of the values side by side.
        parts: how many lie side by side.
        is_flat: its axes of batch and rows are one, in their order.
        places: of a value with four axes, those that are batch, heads, rows and size; empty for any other.
    """

    whole: ir.Value
    order: tuple[int, int]
    batch: Dim
    rows: Dim
    heads: int
    size: int
    part: int = 0
    parts: int = 1
    is_flat: bool = False
    places: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """The size of all heads together."""
        return self.heads * self.size


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """A value with all heads of a row side by side.

    Attributes:
        value: of shape [batch, rows, width], [rows, batch, width], or with these two as one axis.
        order: whether batch or rows come first.
        is_flat: they are one axis.
    """

    value: ir.Value
    order: tuple[int, int]
    is_flat: bool


# ---- operands ----


def operand(value: ir.Value | None, sizes: Sizes, *, rows_last: bool = False) -> tuple[Operand | None, float]:
    """Return what is split into heads for a product of matrices, and a factor on the way.

    Args:
        value: a side of the product, of shape [batch, heads, rows, size] or [batch * heads, rows, size].
        sizes: the sizes of the graph's values.
        rows_last: size comes before rows.
    """
    views = list(_views(value, sizes))
    for split_heads in (_split_heads, _split_flat):
        for view, factor in views:
            if (split := split_heads(view, sizes, rows_last=rows_last)) is not None:
                return split, factor
    return None, 1.0


def in_heads(value: ir.Value | None, sizes: Sizes, *, rows_last: bool = False) -> tuple[Operand | None, float]:
    """Return a side of a product as a value with an axis of heads, or with one head, and a factor on the way.

    Args:
        value: a side of the product, of shape [batch, heads, rows, size] or [batch, rows, size].
        sizes: the sizes of the graph's values.
        rows_last: size comes before rows.
    """
    for view, factor in _views(value, sizes):
        if (heads := _with_heads(view, sizes, rows_last=rows_last)) is not None:
            return heads, factor
    return None, 1.0


def _with_heads(view: View, sizes: Sizes, *, rows_last: bool) -> Operand | None:
    shape = sizes.shape(view.source)
    if shape is None or view.picked or len(view.axes) != len(shape) or any(len(parts) != 1 for parts in view.axes):
        return None
    parts = [parts[0] for parts in view.axes]
    if any(part.axis == REPEATED or part.size != shape[part.axis] for part in parts):
        return None
    if rows_last:
        parts[-2:] = reversed(parts[-2:])
    places = tuple(part.axis for part in parts)
    if len(parts) == 3 and places[:2] in (BATCH_FIRST, LENGTH_FIRST) and isinstance(parts[2].size, int):
        return Operand(view.source, (places[0], places[1]), parts[0].size, parts[1].size, 1, parts[2].size)
    if len(parts) != 4 or not isinstance(parts[1].size, int) or not isinstance(parts[3].size, int):
        return None
    heads, size = parts[1].size, parts[3].size
    return Operand(view.source, BATCH_FIRST, parts[0].size, parts[2].size, heads, size, places=places)


def _views(value: ir.Value | None, sizes: Sizes) -> Iterator[tuple[View, float]]:
    """Yield the views of values before that a value is, with the factor between them; the farthest one first."""
    chain: list[tuple[ir.Value, float, ir.Node | None]] = []
    factor = 1.0
    for _ in range(_LONGEST_CHAIN):
        value, further = without_scale(value, sizes)
        factor *= further
        node = None if value is None else value.producer()
        if value is None:
            break
        chain.append((value, factor, node))
        if node is None or not node.inputs or not is_standard(node):
            break
        value = node.inputs[0]
    for start in range(len(chain) - 1, -1, -1):
        view = whole_view(chain[start][0], sizes)
        for output, _, node in reversed(chain[:start]):
            assert node is not None, "each but the last has a maker"
            view = None if view is None else view_through(node, output, view, sizes)
        if view is not None:
            yield view, chain[start][1]


def _split_heads(view: View, sizes: Sizes, *, rows_last: bool) -> Operand | None:
    shape = sizes.shape(view.source)
    sides = _sides(view, rows_last=rows_last)
    if shape is None or len(shape) != 3 or sides is None:
        return None
    outer, rows, size = sides
    if len(outer[0]) != 1 if len(outer) == 2 else len(outer[0]) != 2:
        return None
    batch, *heads = (part for axis in outer for part in axis)
    order = (batch.axis, rows.axis)
    if order not in (BATCH_FIRST, LENGTH_FIRST) or batch.size != shape[order[0]] or rows.size != shape[order[1]]:
        return None
    return _of_parts(view, order, (batch, rows, *heads, size), shape)


def _split_flat(view: View, sizes: Sizes, *, rows_last: bool) -> Operand | None:
    """Read a value of two axes, of which one is batch and rows; a batch of one sample need not be an axis."""
    shape = sizes.shape(view.source)
    sides = _sides(view, rows_last=rows_last)
    if shape is None or len(shape) != 2 or sides is None:
        return None
    outer, rows, size = sides
    if rows.axis != 0 or (len(outer) == 2 and len(outer[0]) > 1):
        return None
    batch_and_heads = [part for axis in outer for part in axis]
    batch = next((part for part in batch_and_heads[:1] if part.axis == 0), Part(0, 1))
    heads = [part for part in batch_and_heads if part is not batch]
    if len(outer) == 2 and len(heads) != len(outer[1]):
        return None  # heads before the axis of heads
    order = _order_in_one_axis(batch, rows, shape[0])
    return None if order is None else _of_parts(view, order, (batch, rows, *heads, size), shape)


def _sides(view: View, *, rows_last: bool) -> tuple[Axes, Part, Part] | None:
    """Return the axes of a stack of matrices, their rows and the other side; None if a side is made of several parts.

    Args:
        view: three axes or four.
        rows_last: the matrices are turned.
    """
    if len(view.axes) not in (3, 4) or len(view.picked) > 1:
        return None
    *outer, rows, size = view.axes
    if rows_last:
        rows, size = size, rows
    return (tuple(outer), rows[0], size[0]) if len(rows) == len(size) == 1 else None


def _order_in_one_axis(batch: Part, rows: Part, whole: Dim) -> tuple[int, int] | None:
    """Return how batch and rows make up an axis; None if they do not."""
    if batch.size == 1:
        return BATCH_FIRST if rows.size == whole and rows.stride == 1 else None
    if not isinstance(batch.size, int) or not isinstance(rows.size, int) or batch.size * rows.size != whole:
        return None
    if (batch.stride, rows.stride) == (rows.size, 1):
        return BATCH_FIRST
    return LENGTH_FIRST if (batch.stride, rows.stride) == (1, batch.size) else None


def _of_parts(view: View, order: tuple[int, int], parts: Sequence[Part], shape: Sequence[Dim]) -> Operand | None:
    """Read the last axis: values side by side, in them heads, in them the size."""
    batch, rows, *inner = parts
    last = len(shape) - 1
    if len(inner) > 2 or any(part.axis != last or not isinstance(part.size, int) for part in inner):
        return None
    picked = [part for part, _ in view.picked]
    stride = 1
    for part in reversed([*picked, *inner]):
        if part.axis != last or part.stride != stride or not isinstance(part.size, int):
            return None
        stride *= part.size
    if stride != shape[last]:
        return None
    sizes = [part.size for part in inner if isinstance(part.size, int)]
    heads, size = sizes if len(sizes) == 2 else (1, *sizes)
    index, count = (view.picked[0][1], picked[0].size) if picked else (0, 1)
    assert isinstance(count, int), "it was asked above"
    return Operand(view.source, order, batch.size, rows.size, heads, size, index, count, is_flat=last == 1)


# ---- the result ----


def ends_of(value: ir.Value, query: Operand, width: int, sizes: Sizes) -> list[End] | None:
    """Return where a product of weights and values has all heads of a row side by side; None if it is read otherwise.

    Args:
        value: the product, of shape [batch, heads, rows, size] or [batch * heads, rows, size].
        query: whose rows they are.
        width: the size of a head's values.
        sizes: the sizes of the graph's values. Who only asks for a shape does not count.
    """
    shape = sizes.shape(value)
    parts = (Part(0, query.batch), Part(1, query.heads), Part(2, query.rows), Part(3, width))
    axes: Axes = tuple((part,) for part in parts)
    if shape is not None and len(shape) == 3:
        axes = (parts[:2], parts[2:3], parts[3:])
        if query.heads == 1:  # an axis of one element may count to any other
            axes = (parts[:1], parts[2:3], (parts[1], parts[3]))
    return _ends(value, View(value, axes), sizes)


def _ends(value: ir.Value, view: View, sizes: Sizes) -> list[End] | None:
    order = [part.axis for axis in view.axes for part in axis]
    is_flat = len(view.axes) == 2
    has_rows = is_flat or (len(view.axes) == 3 and all(len(parts) == 1 for parts in view.axes[:2]))
    # A batch of one sample may count as a part of the row: it changes no place.
    inner = [part for part in view.axes[-1] if part.axis != 0 or part.size != 1] if has_rows else []
    if order in ([0, 2, 1, 3], [2, 0, 1, 3]) and len(inner) == 2:
        return [End(value, BATCH_FIRST if order[0] == 0 else LENGTH_FIRST, is_flat)]
    if value.is_graph_output():
        return None
    ends: list[End] = []
    for use in value.uses():
        if use.node.op_type == "Shape" and is_standard(use.node):
            continue
        output = use.node.outputs[0]
        further = view_through(use.node, output, view, sizes) if use.idx == 0 else None
        below = None if further is None or further.picked else _ends(output, further, sizes)
        if below is None:
            return None
        ends += below
    return ends
