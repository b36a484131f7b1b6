"""Writing masks of attention as a summand of the scores, and which rows have a score that counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_masks import Mask, shape_of_mask
from amp_transpiler.fusion.attention_operands import Operand
from amp_transpiler.fusion.attention_pattern import Found
from amp_transpiler.fusion.attention_values import made_by
from amp_transpiler.fusion.attention_writing import OperandWriter
from amp_transpiler.fusion.operand_products import source_of
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.evaluate import evaluate
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = [
    "MaskWriter",
    "Masking",
    "masking_of",
    "masks_of",
    "may_leave_rows_empty",
    "rows_can_be_told",
]

_LOWEST = float(np.finfo(np.float32).min)
_MOST_ELEMENTS = 1 << 20  # of a constant mask that is looked at
_DEEPEST = 6  # nodes that compute a truth from constants


@dataclasses.dataclass(frozen=True, slots=True)
class Masking:
    """Says what the masks of an attention do.

    Attributes:
        masks: those in which not every score counts.
        is_guarded: rows without any score that counts give 0, and there may be some.
        averages: such rows give an average, since one finite number takes the place of all scores.
    """

    masks: tuple[Mask, ...]
    is_guarded: bool
    averages: bool


def masks_of(attention: Found) -> tuple[Mask, ...]:
    """Return the masks of an attention in which not every score counts."""
    return tuple(mask for mask in attention.masks if not _counts_everything(mask))


def may_leave_rows_empty(masks: Sequence[Mask], *, causal: bool) -> bool:
    """Whether no score of a row may count.

    Args:
        masks: those in which not every score counts.
        causal: of a row only the scores up to its own place may count.
    """
    return not (len(masks) == 1 and _leaves_each_row_some(masks[0], causal=causal))


def masking_of(attention: Found, sizes: Sizes) -> Masking | None:
    """Return what the masks of an attention do; None if rows must be guarded that cannot be told."""
    masks = masks_of(attention)
    may_be_empty = may_leave_rows_empty(masks, causal=attention.causal)
    is_guarded = attention.guarded and any(not mask.allowed or np.isinf(mask.filler) for mask in masks)
    is_guarded = is_guarded and may_be_empty
    can_be_told = rows_can_be_told(masks, sizes)
    if is_guarded and not can_be_told:
        return None
    # As a summand, in a format in which it is small, the number would leave the scores.
    averages = can_be_told and masks[0].replaces and bool(np.isfinite(masks[0].filler))
    return Masking(masks, is_guarded, averages and not is_guarded and may_be_empty)


class MaskWriter:
    """Writes masks, each once for all layers that add the same.

    Args:
        sizes: the sizes of the graph's values.
        operands: writes queries and keys, whose rows are asked for.
        lowest: the least number that is added where a score does not count.
        keeps_infinity: minus infinity is added as it is.
    """

    def __init__(
        self, sizes: Sizes, operands: OperandWriter, *, lowest: float = _LOWEST, keeps_infinity: bool = False
    ) -> None:
        self._sizes, self._operands = sizes, operands
        self._lowest, self._keeps_infinity = lowest, keeps_infinity
        self._masks: dict[tuple[object, ...], ir.Value] = {}

    def full(self, builder: NodeBuilder, masks: Sequence[Mask], attention: Found) -> ir.Value:
        """Return the sum of the masks, in four dimensions of which the last two are full."""
        sides = (attention.query.rows, attention.key.rows)
        key = (*masks, *sides)
        if key not in self._masks:
            total, shape = self._sum(builder, masks)
            if shape is not None and len(shape) in (2, 3) and shape[-2:] == sides:
                total = self._with_axes(builder, "Unsqueeze", total, list(range(4 - len(shape))))
            elif shape is None or len(shape) != 4 or shape[2:] != sides:
                total = builder.node("Expand", [total, self._square(builder, attention)], dtype=ir.DataType.FLOAT)
            self._masks[key] = total
        return self._masks[key]

    def least(self, builder: NodeBuilder, masks: Sequence[Mask]) -> ir.Value:
        """Return the sum of the masks, as small as it is; in four dimensions if how many it has is known."""
        masks = [_without_full_truths(mask, self._sizes) for mask in masks]
        key = ("least", *masks)
        if key not in self._masks:
            total, shape = self._sum(builder, masks)
            if shape is not None and len(shape) < 4:
                total = self._with_axes(builder, "Unsqueeze", total, list(range(4 - len(shape))))
            self._masks[key] = total
        return self._masks[key]

    def rows(self, builder: NodeBuilder, mask: Mask, attention: Found) -> ir.Value:
        """Return [batch, queries, 1]: whether any score of the row counts."""
        if not attention.causal:
            mask = _without_full_truths(mask, self._sizes)
        key = ("rows", mask, attention.query.rows, attention.key.rows, attention.causal)
        if key not in self._masks:
            # Not by the mask's numbers: where its "minus infinity" is read only by attentions, they may be low.
            # They are added up, since ONNX Runtime has a kernel of its own for sums, and none for the largest.
            unit, none = (builder.constant(np.asarray(number, np.float32)) for number in (1.0, 0.0))
            choice = [none, unit] if mask.inverted else [unit, none]
            counts = builder.node("Where", [self._in_place(builder, mask), *choice], dtype=ir.DataType.FLOAT)
            if attention.causal:
                square = builder.node("Expand", [unit, self._square(builder, attention)], dtype=ir.DataType.FLOAT)
                past = builder.node("Trilu", [square], {"upper": 0}, ir.DataType.FLOAT)
                counts = builder.node("Mul", [counts, past], dtype=ir.DataType.FLOAT)
            last = builder.constant(np.asarray([-1], np.int64))
            total = builder.node("ReduceSum", [counts, last], {"keepdims": 1}, ir.DataType.FLOAT)
            some = builder.node("Greater", [total, none], None, ir.DataType.BOOL)
            has_heads = attention.causal or len(shape_of_mask(mask, self._sizes) or ()) == 4
            self._masks[key] = self._with_axes(builder, "Squeeze", some, [1]) if has_heads else some
        return self._masks[key]

    def _sum(self, builder: NodeBuilder, masks: Sequence[Mask]) -> tuple[ir.Value, tuple[object, ...] | None]:
        total = self._summand(builder, masks[0])
        for mask in masks[1:]:
            total = builder.node("Add", [total, self._summand(builder, mask)], dtype=ir.DataType.FLOAT)
        return total, self._sizes.broadcast([shape_of_mask(mask, self._sizes) for mask in masks])

    def _summand(self, builder: NodeBuilder, mask: Mask) -> ir.Value:
        if not mask.allowed:
            return self._in_place(builder, mask)
        if (mask,) not in self._masks:
            keeps_filler = self._keeps_infinity and np.isinf(mask.filler)
            number = mask.filler if keeps_filler else max(mask.filler, self._lowest)
            filler = builder.constant(np.asarray(number, np.float32))
            zero = builder.constant(np.asarray(0.0, np.float32))
            choice = [filler, zero] if mask.inverted else [zero, filler]
            inputs = [self._in_place(builder, mask), *choice]
            self._masks[(mask,)] = builder.node("Where", inputs, dtype=ir.DataType.FLOAT)
        return self._masks[(mask,)]

    def _in_place(self, builder: NodeBuilder, mask: Mask) -> ir.Value:
        """Return the value of a mask with its axes where the scores have them."""
        places = mask.places
        if places is None:
            return mask.value
        key = ("in place", mask.value, places)
        if key not in self._masks:
            value, dtype = mask.value, mask.value.dtype
            dropped = [axis for axis, place in enumerate(places) if place < 0]
            placed = [place for place in places if place >= 0]
            added = [axis for axis in range(4) if axis not in placed]
            if dropped:
                value = self._with_axes(builder, "Squeeze", value, dropped)
            if placed != sorted(placed):
                order = sorted(range(len(placed)), key=placed.__getitem__)
                value = builder.node("Transpose", [value], {"perm": order}, dtype)
            self._masks[key] = self._with_axes(builder, "Unsqueeze", value, added) if added else value
        return self._masks[key]

    def _with_axes(self, builder: NodeBuilder, op_type: str, value: ir.Value, axes: list[int]) -> ir.Value:
        return builder.node(op_type, [value, builder.constant(np.asarray(axes, np.int64))], None, value.dtype)

    def _rows_of(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        """Return how many rows an operand has; of a product its source is asked, since it may not be computed."""
        source = source_of(operand, self._sizes)
        if operand.places or operand.is_flat or source is operand.whole:
            return self._operands.rows_of(builder, operand)
        return self._operands.size_of(builder, source, operand.order[1])

    def _square(self, builder: NodeBuilder, attention: Found) -> ir.Value:
        ones = builder.constant(np.asarray([1, 1], np.int64))
        sides = [self._rows_of(builder, each) for each in (attention.query, attention.key)]
        return builder.node("Concat", [ones, *sides], {"axis": 0}, ir.DataType.INT64)


# ---- what constants say ----


def _counts_everything(mask: Mask) -> bool:
    if not mask.allowed:
        array = _small(mask.value)
        return array is not None and not array.any()
    return _is_everywhere(mask.value, not mask.inverted)


def rows_can_be_told(masks: Sequence[Mask], sizes: Sizes) -> bool:
    """Whether `MaskWriter.rows` can tell which rows have a score that counts: by one mask of truths for all heads."""
    shape = shape_of_mask(masks[0], sizes) if len(masks) == 1 and masks[0].allowed else None
    return shape is not None and 1 < len(shape) <= 4 and shape[-3:-2] in ((), (1,))


def _small(value: ir.Value) -> np.ndarray | None:
    tensor = value.const_value
    return None if tensor is not None and tensor.size > _MOST_ELEMENTS else constant_array(value)


def _leaves_each_row_some(mask: Mask, *, causal: bool) -> bool:
    """Whether at least one score of each row counts, by the constants of a mask.

    Args:
        mask: the mask.
        causal: of a row only the scores up to its own place may count.
    """
    array = _small(mask.value)
    if array is None or not array.ndim or (mask.places is not None and mask.places[-1] != 3):
        return False
    counts = array.astype(bool) != mask.inverted if mask.allowed else array > -np.inf
    if causal and counts.shape[-1] > 1:
        has_rows = counts.ndim > 1 and counts.shape[-2] > 1 and mask.places in (None, (0, 1, 2, 3))
        counts = np.tril(counts) if has_rows else counts[..., :1]  # the first row has the first score alone
    return bool(counts.any(axis=-1).all())


def _is_everywhere(value: ir.Value | None, truth: bool) -> bool:
    """Whether a condition is the same truth everywhere, by its constants."""
    array = None if value is None else _computed(value, _DEEPEST)
    if array is not None:
        return bool((array.astype(bool) == truth).all())
    node = None if value is None else value.producer()
    if node is None or not is_standard(node):
        return False
    if node.op_type in ("Expand", "Reshape", "Unsqueeze", "Identity"):
        return _is_everywhere(node.inputs[0], truth)
    if node.op_type == "And" and truth:
        return all(_is_everywhere(part, truth) for part in node.inputs)
    return False


def _computed(value: ir.Value, depth: int) -> np.ndarray | None:
    """Return what a value always is: a constant, or computed from small ones."""
    node, array = value.producer(), _small(value)
    if array is not None or node is None or not depth or not node.inputs:
        return array
    inputs = [None if each is None else _computed(each, depth - 1) for each in node.inputs]
    return None if any(each is None for each in inputs) else evaluate(node, inputs)


def _without_full_truths(mask: Mask, sizes: Sizes) -> Mask:
    """Leave out of the truths of a mask what they are combined with if it always holds: it only repeats them."""
    while mask.allowed and not mask.inverted and (both := made_by(mask.value, "And")) is not None:
        shape = sizes.shape(mask.value)
        rest = [part for part in both.inputs if part is not None and not _is_everywhere(part, truth=True)]
        other = sizes.shape(rest[0]) if len(rest) == 1 else None
        if shape is None or other is None or len(other) != len(shape):
            break
        mask = dataclasses.replace(mask, value=rest[0])
    return mask
