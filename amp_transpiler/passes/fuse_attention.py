"""Writing attention as one operator of ONNX Runtime, which computes the softmax inside in float32."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.attention_masks import Mask, shape_of_mask
from amp_transpiler.passes.attention_operands import BATCH_FIRST, LENGTH_FIRST, End, Operand
from amp_transpiler.passes.attention_pattern import Found, find_attentions
from amp_transpiler.passes.attention_projection import Projection, projection, weight_array
from amp_transpiler.passes.attention_values import turns
from amp_transpiler.passes.fusion_restrictions import Restrictions, nodes_within
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["FuseAttention"]

logger = logging.getLogger(__name__)

_DOMAIN = "com.microsoft"
_LOWEST = float(np.finfo(np.float32).min)
_FIRST_OPSET = 13  # before, a Softmax without an axis was another


class FuseAttention(Pass[PassResult]):
    """Turns attention into com.microsoft::Attention, or MultiHeadAttention; counts them.

    1. Queries, keys and values that are products of one value with constants become one product: Attention, with the
       three weights side by side. All else becomes MultiHeadAttention.
    2. A mask becomes the operator's summand of scores, in four dimensions. It is worked out once for all layers that
       add the same. A mask in which every score counts is left out.
    3. Minus infinity in a mask becomes the lowest finite number: the weights stay exactly 0. Where the source gives 0
       for a row in which no score counts (`Where(IsNaN(p), 0, p)`, or asked of the scores as torch's exporter does), so
       does a Where behind the operator. A constant mask that leaves each row a score needs none. Where it gives an
       average, since one finite number takes the place of all scores, the query of the row becomes 0, for which it
       has to be an operand: MultiHeadAttention.
    4. Nothing is assumed about a mask: the forms that only hold for padding on the right, or for causal masks, are not
       used.

    It looks at float32 in the main graph, whose constants are in one form, and leaves nodes behind that nobody reads.

    Args:
        restrictions: which nodes may become one; None for all.
    """

    def __init__(self, restrictions: Restrictions | None = None) -> None:
        self._restrictions = restrictions

    def call(self, model: ir.Model) -> PassResult:
        graph = model.graph
        if opset_of(model, "") < _FIRST_OPSET:
            return PassResult(model, modified=False)
        attentions, sizes = find_attentions(graph)
        if not attentions:
            return PassResult(model, modified=False)
        writer = _Writer(model, sizes, self._restrictions)
        fused = sum(writer.write(attention) for attention in attentions)
        if fused:
            graph.opset_imports.setdefault(_DOMAIN, 1)
        logger.info("%d of %d attentions fused", fused, len(attentions))
        return PassResult(model, modified=bool(fused), count=fused)


class _Writer:
    """Writes the operators, and shares what layers have in common."""

    def __init__(self, model: ir.Model, sizes: Sizes, restrictions: Restrictions | None) -> None:
        self._restrictions = restrictions
        self._sizes = sizes
        self._graph = model.graph
        self._names = NameAllocator(model)
        self._masks: dict[tuple[object, ...], ir.Value] = {}
        self._rearranged: dict[tuple[object, ...], ir.Value] = {}

    def write(self, attention: Found) -> bool:
        """Replace one attention; return False if it cannot be."""
        masks = [mask for mask in attention.masks if not self._counts_everything(mask)]
        may_be_empty = not (len(masks) == 1 and _leaves_each_row_some(masks[0], causal=attention.causal))
        guarded = attention.guarded and any(not mask.allowed or np.isinf(mask.filler) for mask in masks)
        guarded = guarded and may_be_empty
        if (guarded and not self._rows_can_be_told(masks)) or not all(map(self._can_end, attention.ends)):
            return False
        averages = not guarded and may_be_empty and self._averages(masks)
        parts = None if averages else self._projections(attention)
        if not self._allow(attention, parts):
            return False
        builder = NodeBuilder(attention.last, self._names)
        bias = self._bias(builder, masks, attention) if masks else None
        if parts is not None:
            result = self._packed(builder, attention, parts, bias)
        else:
            result = self._unpacked(builder, attention, bias, masks[0] if averages else None)
        if guarded:
            zero = builder.constant(np.asarray(0.0, np.float32))
            rows = self._rows(builder, masks[0], attention)
            result = builder.node("Where", [rows, result, zero], dtype=ir.DataType.FLOAT)
        for end in attention.ends:
            self._replace(builder, end, result, attention.value.width)
        return True

    def _allow(self, attention: Found, parts: list[Projection] | None) -> bool:
        if self._restrictions is None:
            return True
        operands = (attention.query.whole, attention.key.whole, attention.value.whole)
        inputs = {*(operands if parts is None else (parts[0].source,)), *(mask.value for mask in attention.masks)}
        lasts = {attention.last, *(node for end in attention.ends if (node := end.value.producer()) is not None)}
        nodes = {node for last in lasts for node in nodes_within(inputs, last)}
        return self._restrictions.allow("Attention", attention.last, nodes)

    # ---- the result ----

    def _can_end(self, end: End) -> bool:
        """Whether a value can be replaced: by a new one, or by that of its Reshape of a new one."""
        reshape = end.value.producer()
        is_reshape = reshape is not None and reshape.op_type == "Reshape"
        return is_reshape or not (end.is_flat or end.value.is_graph_output())

    def _replace(self, builder: NodeBuilder, end: End, result: ir.Value, width: int) -> None:
        if end.order == LENGTH_FIRST:
            result = builder.node("Transpose", [result], {"perm": [1, 0, 2]}, ir.DataType.FLOAT)
        if end.is_flat or end.value.is_graph_output():
            reshape = end.value.producer()
            assert reshape is not None, "attention makes it"
            reshape.replace_input_with(0, result)
            wanted = [-1, width] if end.is_flat else [0, 0, width]
            reshape.replace_input_with(1, builder.constant(np.asarray(wanted, np.int64)))
            reshape.attributes.pop("allowzero", None)  # it asks for sizes of 0
            return
        for use in list(end.value.uses()):
            use.node.replace_input_with(use.idx, result)

    # ---- the operator ----

    def _projections(self, attention: Found) -> list[Projection] | None:
        """Return how queries, keys and values are products of one value with constants; None if they are not."""
        operands = (attention.query, attention.key, attention.value)
        parts = [part for each in operands if (part := projection(each.whole, self._sizes)) is not None]
        if len(parts) < 3 or len({part.source for part in parts}) > 1 or len({each.order for each in operands}) > 1:
            return None
        if any(part.stop - part.start != each.width * each.parts for part, each in zip(parts, operands, strict=True)):
            return None
        starts = [part.start + each.part * each.width for part, each in zip(parts, operands, strict=True)]
        return [
            dataclasses.replace(part, start=start, stop=start + each.width)
            for part, each, start in zip(parts, operands, starts, strict=True)
        ]

    def _packed(
        self, builder: NodeBuilder, attention: Found, parts: list[Projection], bias: ir.Value | None
    ) -> ir.Value:
        weight, offset = self._side_by_side(parts)
        attributes = _attributes(attention)
        widths = [part.stop - part.start for part in parts]
        if len(set(widths)) > 1:
            attributes["qkv_hidden_sizes"] = widths
        source = self._batch_first(builder, parts[0].source, attention.query.order)
        return self._fused(builder, "Attention", [source, weight, offset, None, None, bias], attributes)

    def _unpacked(
        self, builder: NodeBuilder, attention: Found, bias: ir.Value | None, averaging: Mask | None
    ) -> ir.Value:
        """Return the operator of queries, keys and values.

        Args:
            builder: where it is put.
            attention: what it computes.
            bias: the summand of the scores.
            averaging: a mask of which a row without any score that counts makes an average, as equal scores do.
        """
        query = self._operand(builder, attention.query)
        if averaging is not None:
            rows, zero = self._rows(builder, averaging, attention), builder.constant(np.asarray(0.0, np.float32))
            query = builder.node("Where", [rows, query, zero], dtype=ir.DataType.FLOAT)
        key, value = (
            (self._in_heads if each.places else self._operand)(builder, each)
            for each in (attention.key, attention.value)
        )
        inputs = [query, key, value, None, None, bias]
        return self._fused(builder, "MultiHeadAttention", inputs, _attributes(attention))

    def _operand(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        """Return an operand of shape [batch, rows, width]."""
        value = self._in_three_axes(builder, operand)
        if operand.parts > 1:
            if (value, operand.part) not in self._rearranged:
                self._split(builder, value, operand)
            value = self._rearranged[(value, operand.part)]
        return self._batch_first(builder, value, operand.order)

    def _split(self, builder: NodeBuilder, whole: ir.Value, operand: Operand) -> None:
        widths = builder.constant(np.full(operand.parts, operand.width, np.int64))
        values = builder.nodes("Split", [whole, widths], operand.parts, {"axis": 2}, ir.DataType.FLOAT)
        for part, value in enumerate(values):
            self._rearranged[(whole, part)] = value

    def _in_three_axes(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        """Return the whole of an operand with its axes of batch and rows, and one for all else."""
        whole, places = operand.whole, operand.places
        if not places and not operand.is_flat:
            return whole
        key = (whole, places, operand.order, operand.batch)
        if key not in self._rearranged:
            value, wanted = whole, [0, 0, operand.width]
            if places:
                batch, heads, rows, size = places
                value = self._turned(builder, value, (batch, rows, heads, size))
            else:
                outer = [operand.batch, operand.rows] if operand.order == BATCH_FIRST else [operand.rows, operand.batch]
                wanted = [dim if isinstance(dim, int) else -1 for dim in (*outer, operand.width * operand.parts)]
            shape = builder.constant(np.asarray(wanted, np.int64))
            self._rearranged[key] = builder.node("Reshape", [value, shape], dtype=ir.DataType.FLOAT)
        return self._rearranged[key]

    def _in_heads(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        """Return an operand of shape [batch, heads, rows, size]."""
        return self._turned(builder, operand.whole, operand.places)

    def _turned(self, builder: NodeBuilder, value: ir.Value, order: tuple[int, ...]) -> ir.Value:
        if order == tuple(range(len(order))):
            return value
        if (value, "turned", order) not in self._rearranged:
            turned = builder.node("Transpose", [value], {"perm": list(order)}, ir.DataType.FLOAT)
            self._rearranged[(value, "turned", order)] = turned
        return self._rearranged[(value, "turned", order)]

    def _batch_first(self, builder: NodeBuilder, value: ir.Value, order: tuple[int, int]) -> ir.Value:
        if order == BATCH_FIRST:
            return value
        maker = value.producer()
        if maker is not None and turns(maker, (1, 0, 2)) and maker.inputs[0] is not None:
            return maker.inputs[0]
        return self._turned(builder, value, (1, 0, 2))

    def _fused(
        self, builder: NodeBuilder, op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, object]
    ) -> ir.Value:
        inputs = list(inputs)
        while inputs[-1] is None:
            inputs.pop()
        result = builder.node(op_type, inputs, attributes, ir.DataType.FLOAT)
        node = result.producer()
        assert node is not None, "it was made above"
        node.domain = _DOMAIN
        return result

    def _side_by_side(self, parts: Sequence[Projection]) -> tuple[ir.Value, ir.Value]:
        """Return the weights and the biases of three projections, each as one constant."""
        width = parts[-1].stop
        together = [part.start for part in parts] == [0, parts[0].stop, parts[1].stop]
        shape = parts[0].weight.const_value
        shared = len({part.weight for part in parts}) == 1
        if together and shared and shape is not None and shape.shape[1] == width and parts[0].bias is not None:
            return parts[0].weight, parts[0].bias
        weights = [_columns(part.weight, part) for part in parts]
        biases = [
            np.zeros(part.stop - part.start, np.float32) if part.bias is None else _columns(part.bias, part)
            for part in parts
        ]
        weight = self._constant("qkv_weight", np.concatenate(weights, axis=1))
        return weight, self._constant("qkv_bias", np.concatenate(biases))

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        value = ir.Value(name=self._names.fresh(name))
        value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)
        value.dtype, value.shape = value.const_value.dtype, ir.Shape(array.shape)
        self._graph.register_initializer(value)
        return value

    # ---- masks ----

    def _counts_everything(self, mask: Mask) -> bool:
        if not mask.allowed:
            array = _small(mask.value)
            return array is not None and not array.any()
        return _is_everywhere(mask.value, not mask.inverted)

    def _bias(self, builder: NodeBuilder, masks: Sequence[Mask], attention: Found) -> ir.Value:
        """Return the sum of the masks, in four dimensions of which the last two are full."""
        sides = (attention.query.rows, attention.key.rows)
        key = (*masks, *sides)
        if key not in self._masks:
            total = self._summand(builder, masks[0])
            for mask in masks[1:]:
                total = builder.node("Add", [total, self._summand(builder, mask)], dtype=ir.DataType.FLOAT)
            shape = self._sizes.broadcast([shape_of_mask(mask, self._sizes) for mask in masks])
            if shape is not None and len(shape) in (2, 3) and shape[-2:] == sides:
                total = self._with_axes(builder, "Unsqueeze", total, list(range(4 - len(shape))))
            elif shape is None or len(shape) != 4 or shape[2:] != sides:
                total = builder.node("Expand", [total, self._square(builder, attention)], dtype=ir.DataType.FLOAT)
            self._masks[key] = total
        return self._masks[key]

    def _summand(self, builder: NodeBuilder, mask: Mask) -> ir.Value:
        if not mask.allowed:
            return self._in_place(builder, mask)
        if (mask,) not in self._masks:
            filler = builder.constant(np.asarray(max(mask.filler, _LOWEST), np.float32))
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

    def _square(self, builder: NodeBuilder, attention: Found) -> ir.Value:
        ones = builder.constant(np.asarray([1, 1], np.int64))
        sides = [self._rows_of(builder, each) for each in (attention.query, attention.key)]
        return builder.node("Concat", [ones, *sides], {"axis": 0}, ir.DataType.INT64)

    def _rows_of(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        if operand.places:
            value, axis = operand.whole, operand.places[2]
        else:
            value, axis = self._in_three_axes(builder, operand), operand.order[1]
        shape = builder.node("Shape", [value], None, ir.DataType.INT64)
        return builder.node("Gather", [shape, builder.constant(np.asarray([axis], np.int64))], None, ir.DataType.INT64)

    def _averages(self, masks: Sequence[Mask]) -> bool:
        """Whether rows without any score that counts are averages: their scores are replaced by one number.

        As a summand, in a format in which it is small, it would leave them.
        """
        return self._rows_can_be_told(masks) and masks[0].replaces and bool(np.isfinite(masks[0].filler))

    def _rows_can_be_told(self, masks: Sequence[Mask]) -> bool:
        shape = shape_of_mask(masks[0], self._sizes) if len(masks) == 1 and masks[0].allowed else None
        return shape is not None and 1 < len(shape) <= 4 and shape[-3:-2] in ((), (1,))

    def _rows(self, builder: NodeBuilder, mask: Mask, attention: Found) -> ir.Value:
        """Return [batch, queries, 1]: whether any score of the row counts."""
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


def _attributes(attention: Found) -> dict[str, object]:
    attributes: dict[str, object] = {"num_heads": attention.query.heads, "scale": attention.scale}
    if attention.causal:
        attributes["unidirectional"] = 1
    return attributes


def _columns(constant: ir.Value, part: Projection) -> np.ndarray:
    array = weight_array(constant)
    assert array is not None, "a projection has constants"
    return array[..., part.start : part.stop]


def _small(value: ir.Value) -> np.ndarray | None:
    tensor = value.const_value
    return None if tensor is not None and tensor.size > 1 << 20 else constant_array(value)


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
    array = None if value is None else _small(value)
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
