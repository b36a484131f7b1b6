"""Writes the weight gradient of a convolution as a product of unfolded operands, which sums over the places of a plane.

Each tap of the kernel is a row of its own, that of the data or of the result's gradient which it meets at each place:
of a 3x3 kernel one side has nine rows a channel, or where the stride is 1 each side has three. Places that a plane does
not have are zeros: each channel gets one element more, a zero, and a Gather takes all rows from there.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.products import ALIGNED
from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.training_passes.convolution_layer import Layer
from amp_transpiler.training_passes.tap_tables import ZERO, Table, aligned, of_batch, tap_tables

__all__ = ["Unfolding", "unfold", "unfoldings"]

_FIRST_TAPS, _SECOND_TAPS = 2, 4  # axes of a product: [groups, channels, taps, channels, taps]
_LARGEST_TABLE = 1 << 21  # numbers: 8 MB


@dataclasses.dataclass(frozen=True, slots=True)
class Unfolding:
    """Says how a weight gradient is unfolded.

    Attributes:
        on_gradient: for each axis, whether its taps are rows of the result's gradient; otherwise they are of the data.
        whole: whether one product sums over all samples, for which a channel of all samples is made one row first.
            Otherwise each sample has a product, and the sum over samples follows.
        parts: into how many parts the taps of the larger side are split. Each is unfolded after the one before.
    """

    on_gradient: tuple[bool, ...]
    whole: bool
    parts: int = 1


def unfoldings(layer: Layer) -> list[list[Unfolding]]:
    """List unfoldings of a layer whose batch is known, each from one part to the most.

    They are those with the fewest rows, and those with all taps on the data's side, which may be split further.
    """
    can_turn = [k > 1 and s == 1 for k, s in zip(layer.kernel, layer.strides, strict=True)]
    turned = list(itertools.product(*((False, True) if can else (False,) for can in can_turn)))
    fewest = min(turned, key=lambda each: _Sizes.of(layer, Unfolding(each, whole=False)).rows)
    choices = [
        Unfolding(on_gradient, whole)
        for on_gradient in dict.fromkeys((fewest, turned[0]))
        for whole in (False, *([True] if _can_be_whole(layer) else []))
    ]
    sizes = [_Sizes.of(layer, each) for each in choices]
    return [
        [dataclasses.replace(each, parts=parts) for parts in size.parts]
        for each, size in zip(choices, sizes, strict=True)
        if size.table <= _LARGEST_TABLE
    ]


def _can_be_whole(layer: Layer) -> bool:
    """Whether one product may sum over all samples, other than the gradient as it stands."""
    is_there = layer.is_product and all(stride == 1 for stride in layer.strides)
    return layer.samples != 1 and layer.groups == 1 and not is_there


def unfold(builder: GraphBuilder, layer: Layer, unfolding: Unfolding) -> ir.Value:
    """Write the weight gradient of a layer whose batch is known; return it."""
    sizes = _Sizes.of(layer, unfolding)
    x_table, g_table = _tables(layer, unfolding, sizes.multiple)
    x = _Side.of(builder, layer.x, x_table, layer.groups, whole=unfolding.whole)
    g = _Side.of(builder, layer.g, g_table, layer.groups, whole=unfolding.whole)
    gradients = []
    for table in np.array_split(x_table if sizes.splits_data else g_table, unfolding.parts):
        of_x, of_g = ((x, table), (g, g_table)) if sizes.splits_data else ((x, x_table), (g, table))
        first, second = (of_x, of_g) if sizes.is_turned else (of_g, of_x)
        gradients.append(_product(builder, first, second, layer.groups))
    axis = _FIRST_TAPS if sizes.splits_data == sizes.is_turned else _SECOND_TAPS
    return _in_order(builder, layer, unfolding, builder.concat(gradients, axis), data_first=sizes.is_turned)


def _tables(layer: Layer, unfolding: Unfolding, multiple: int) -> tuple[Table, Table]:
    x_table, g_table = tap_tables(layer, unfolding.on_gradient)
    if unfolding.whole:
        assert layer.samples is not None
        x_table = of_batch(x_table, layer.samples, math.prod(layer.inputs))
        g_table = of_batch(g_table, layer.samples, math.prod(layer.outputs))
    return aligned(x_table, g_table, multiple)


# ---- the operands ----
@dataclasses.dataclass(frozen=True, slots=True)
class _Side:
    """An operand of the product, before it is unfolded.

    Attributes:
        rows: [N * C, places of a plane], or of the whole batch [C, places of all planes]; with a zero behind if some
            tap meets none of them.
        batch: the matrices that are multiplied one by one: samples times groups.
        channels: of one matrix.
        size: the places of a row.
        table: which of them each tap meets.
    """

    rows: ir.Value
    batch: int
    channels: int
    size: int
    table: Table

    @classmethod
    def of(cls, builder: GraphBuilder, x: ir.Value, table: Table, groups: int, *, whole: bool) -> _Side:
        """Lay out `x` [N, C, ...] by rows."""
        samples, channels, *plane = shape_of(x)
        size, batch = math.prod(plane), samples * groups
        if whole:
            x = builder.transpose(x, [1, 0, *range(2, 2 + len(plane))])
            size, batch = samples * size, 1
        rows = builder.reshape(x, [-1, size])
        if (table == ZERO).any():
            rows = _with_zeros(builder, rows, table.size - size if _goes_on(table, size) else 1)
        return cls(rows, batch, channels if whole else channels // groups, size, table)

    def unfolded(self, builder: GraphBuilder, table: Table) -> ir.Value:
        """Return [batch, channels * taps, places] by some taps of the table."""
        rows = self.rows
        if not _goes_on(self.table, self.size):
            places = np.where(table == ZERO, self.size, table).reshape(-1).astype(np.int32)
            rows = builder.op("Gather", [rows, builder.constant(places)], {"axis": 1})
        return builder.reshape(rows, [self.batch, self.channels * len(table), table.shape[1]])


_Part: TypeAlias = tuple[_Side, Table]


def _with_zeros(builder: GraphBuilder, rows: ir.Value, count: int) -> ir.Value:
    """Return rows with zeros behind. CUDA pads no bfloat16."""
    if rows.dtype == ir.DataType.BFLOAT16:
        zeros = builder.constant(np.zeros((shape_of(rows)[0], count)), rows.dtype)
        return builder.concat([rows, zeros], 1)
    return builder.op("Pad", [rows, builder.constant(np.array([0, 0, 0, count], np.int64))])


def _goes_on(table: Table, size: int) -> bool:
    """Whether a table takes each place of a row in turn, and zeros behind."""
    places = table.reshape(-1)
    return np.array_equal(places[:size], np.arange(size)) and bool((places[size:] == ZERO).all())


# ---- the product ----
def _product(builder: GraphBuilder, first: _Part, second: _Part, groups: int) -> ir.Value:
    """Multiply the rows of both sides and sum over samples: [groups, channels, taps, channels, taps]."""
    (left, ahead), (right, behind) = first, second
    product = builder.matmul(left.unfolded(builder, ahead), builder.swap_last(right.unfolded(builder, behind)))
    shape = [groups, left.channels, len(ahead), right.channels, len(behind)]
    samples = left.batch // groups
    if samples > 1:
        product = _summed(builder, builder.reshape(product, [samples, math.prod(shape)]))
    return builder.reshape(product, shape)


def _summed(builder: GraphBuilder, rows: ir.Value) -> ir.Value:
    """Return the sum of rows; 16-bit rows are multiplied with ones: that sums in float32 and rounds once."""
    if rows.dtype in LOW_DTYPES:
        return builder.matmul(builder.constant(np.ones((1, shape_of(rows)[0])), rows.dtype), rows)
    return builder.sum(rows, [0])


def _in_order(
    builder: GraphBuilder, layer: Layer, unfolding: Unfolding, gradient: ir.Value, *, data_first: bool
) -> ir.Value:
    """Return [groups, channels, taps, channels, taps] as [M, C / groups, ...]."""
    (m, c), groups, rank = layer.channels, layer.groups, len(layer.kernel)
    sizes: dict[str | int, int] = {"group": groups, "m": m // groups, "c": c // groups, **dict(enumerate(layer.kernel))}
    sides: list[list[str | int]] = [
        ["m", *(axis for axis in range(rank) if unfolding.on_gradient[axis])],
        ["c", *(axis for axis in range(rank) if not unfolding.on_gradient[axis])],
    ]
    order = ["group", *itertools.chain(*(reversed(sides) if data_first else sides))]
    spread = builder.reshape(gradient, [sizes[label] for label in order])
    turned = builder.transpose(spread, [order.index(label) for label in ("group", "m", "c", *range(rank))])
    return builder.reshape(turned, shape_of(layer.gradient))


# ---- sizes ----
@dataclasses.dataclass(frozen=True, slots=True)
class _Sizes:
    """How large the operands of an unfolding are.

    Attributes:
        multiple: the number of elements that rows of fast products are a multiple of.
        is_turned: whether the data's rows come first in the product, because their number is no multiple.
        splits_data: whether the data's taps are those that take more memory, and are split.
        parts: into how many parts they can be split, so that the largest part differs.
        table: the numbers of the larger table.
        rows: numbers of both operands of a sample.
    """

    multiple: int
    is_turned: bool
    splits_data: bool
    parts: tuple[int, ...]
    table: int
    rows: int

    @classmethod
    def of(cls, layer: Layer, unfolding: Unfolding) -> _Sizes:
        """Return those of a layer whose batch is known."""
        assert layer.samples is not None
        multiple = ALIGNED["float16" if layer.x.dtype in LOW_DTYPES else "float32"]
        axes = list(zip(layer.kernel, layer.inputs, layer.outputs, unfolding.on_gradient, strict=True))
        x_taps = math.prod(k for k, _, _, turned in axes if not turned)
        g_taps = math.prod(k for k, _, _, turned in axes if turned)
        places = math.prod(size if turned else out for _, size, out, turned in axes)
        m, c = (channels // layer.groups for channels in layer.channels)
        is_turned = bool(c * x_taps % multiple) and not m * g_taps % multiple
        splits_data = g_taps == 1 or (x_taps > 1 and c * x_taps >= m * g_taps)
        taps = x_taps if splits_data else g_taps
        parts = tuple(n for n in range(1, taps + 1) if n == 1 or -(-taps // n) < -(-taps // (n - 1)))
        table = max(x_taps, g_taps) * places * (layer.samples if unfolding.whole else 1)
        return cls(multiple, is_turned, splits_data, parts, table, (c * x_taps + m * g_taps) * places)
