"""Writing attention as ONNX's own operator, which has a kernel for both 16-bit formats that a device has run."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_bias import MaskWriter, masks_of, may_leave_rows_empty, rows_can_be_told
from amp_transpiler.fusion.attention_masks import Mask
from amp_transpiler.fusion.attention_nodes import nodes_of, still_needed
from amp_transpiler.fusion.attention_operands import BATCH_FIRST, Operand
from amp_transpiler.fusion.attention_output import Output, add_to_bias, output_of
from amp_transpiler.fusion.attention_pattern import Found, find_attentions
from amp_transpiler.fusion.attention_prices import is_cheaper_as_operator
from amp_transpiler.fusion.attention_projection import Projection
from amp_transpiler.fusion.attention_writing import OperandWriter, can_end, replace_end, reshaped
from amp_transpiler.fusion.operand_products import joined, joins_products, products_of, source_of, written_product
from amp_transpiler.fusion.restrictions import Restrictions
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["FIRST_OPSET", "FuseStandardAttention", "count_for_operator", "lengths_to_name"]

logger = logging.getLogger(__name__)

FIRST_OPSET = 23  # of ONNX's Attention
_FUSION = "ai.onnx::Attention"
_FLOAT = ir.DataType.FLOAT
_HEAD_UNIT, _LARGEST_HEAD = 8, 256  # of the heads that ONNX Runtime's fused kernels take
_KEY_UNIT = 4  # of the keys that they take with a mask
_LIKELY_KEYS = 128
_LOWEST = -3e4  # no score reaches it; more than what ONNX Runtime takes for minus infinity in float16


class FuseStandardAttention(Pass[PassResult]):
    """Turns attention into ONNX's Attention where ONNX Runtime has a fused kernel for it; counts them.

    1. Heads stay side by side as projections leave them. Projections of one value become one product, which is split,
       where that is cheaper by the price list. Rows by positions of several samples stay in pieces, whose products read
       them as they lie.
    2. The bias of the keys is left out: it adds one number to all scores of a query, which the softmax takes away. That
       of the values becomes part of the bias behind the product that reads the result, since the weights of a row sum
       to 1; where rows may be without a score, it stays.
    3. A mask is a summand of the scores, worked out once for all layers that add the same. Where the source adds minus
       infinity, a row without any score that counts is NaN there, or 0 behind a guard; the operator gives 0, and the
       guard needs no node. Where one finite number takes the place of all scores, the row is an average, and its query
       becomes 0. A mask of which it is not known which scores count leaves attention in pieces.
    4. The operator itself is written by rows where its source has it with an axis of heads.

    It looks at float32 in the main graph, whose constants are in one form, and leaves nodes behind that nobody reads.

    Args:
        restrictions: which nodes may become one.
        dims: name of an open dimension -> its size in the runs that count.
    """

    def __init__(self, restrictions: Restrictions, dims: Mapping[str, int] | None = None) -> None:
        self._restrictions, self._dims = restrictions, dict(dims or {})

    def call(self, model: ir.Model) -> PassResult:
        if opset_of(model, "") < FIRST_OPSET:
            return PassResult(model, modified=False)
        attentions, sizes = find_attentions(model.graph)
        writer = _Writer(model, sizes, self._restrictions)
        maskings = [(each, _masking_in_kernel(each, sizes, self._dims)) for each in attentions]
        written = sum(masking is not None and writer.write(each, masking) for each, masking in maskings)
        if written:
            logger.info("%d of %d attentions are ONNX's operator", written, len(attentions))
        return PassResult(model, modified=bool(written), count=written)


def count_for_operator(graph: ir.Graph, restrictions: Restrictions, dims: Mapping[str, int]) -> int:
    """Return how many attentions may become ONNX's operator, and are faster for it by the price list.

    Args:
        graph: a typed graph in float32.
        restrictions: which nodes may become one.
        dims: name of an open dimension -> its size in the runs that count.
    """
    attentions, sizes = find_attentions(graph)
    faster = [each for each in attentions if _masking_in_kernel(each, sizes, dims) is not None]
    return sum(restrictions.fit(_nodes_from_sources(each, sizes)) for each in faster)


def lengths_to_name(graph: ir.Graph) -> tuple[str, ...]:
    """Return the open dimensions of which attentions would be ONNX's operator if a multiple of 4 were named for them.

    Args:
        graph: a typed graph in float32.
    """
    attentions, sizes = find_attentions(graph)
    names: set[str] = set()
    for attention in attentions:
        length = attention.key.rows
        if isinstance(length, str) and _masking_in_kernel(attention, sizes, {}) is None:
            masking = _masking_in_kernel(attention, sizes, {length: _LIKELY_KEYS})
            names.update([length] if masking is not None else [])
    return tuple(sorted(names))


def _masking_in_kernel(attention: Found, sizes: Sizes, dims: Mapping[str, int]) -> _Masking | None:
    """Return what masks do in a fused kernel; None unless it computes the same as the source, and is faster."""
    query, key, value = attention.query, attention.key, attention.value
    if any(each.places or (each.order != BATCH_FIRST and each.batch != 1) for each in (query, key, value)):
        return None  # products read rows by positions as they lie
    if query.size != value.size or query.size % _HEAD_UNIT or query.size > _LARGEST_HEAD or attention.scale <= 0:
        return None
    masking = _masking(attention, sizes)
    keys = dims.get(str(key.rows), key.rows)
    if masking is None or (masking.masks and not (isinstance(keys, int) and keys % _KEY_UNIT == 0)):
        return None
    sides = (dims.get(str(query.batch), query.batch), query.heads, dims.get(str(query.rows), query.rows), keys)
    known = [side for side in sides if isinstance(side, int)]
    if _is_operator(attention) or len(known) < len(sides):
        return masking  # the operator by rows needs no heads turned before it, behind it and within
    chosen = masking.averages and not masking.masks[0].replaces  # pieces choose, too, where a number takes the place
    is_cheaper = is_cheaper_as_operator(*known, query.size, masked=bool(masking.masks), chosen=chosen)
    return masking if is_cheaper else None


def _nodes_from_sources(attention: Found, sizes: Sizes) -> set[ir.Node]:
    """Return the nodes of an attention, with the products that its operands are."""
    operands = (attention.query, attention.key, attention.value)
    return nodes_of(attention, None, {source_of(each, sizes) for each in operands})


def _is_operator(attention: Found) -> bool:
    return attention.last.op_type == "Attention"


@dataclasses.dataclass(frozen=True, slots=True)
class _Masking:
    """Says what the masks of an attention do to rows.

    Attributes:
        masks: those in which not every score counts.
        zeroes: a row may have no score that counts, and is 0 then.
        averages: such a row is an average.
    """

    masks: tuple[Mask, ...]
    zeroes: bool = False
    averages: bool = False


def _masking(attention: Found, sizes: Sizes) -> _Masking | None:
    """Return what the masks of an attention do; None if the operator does something else to rows without a score."""
    masks = masks_of(attention)
    if not masks or not may_leave_rows_empty(masks, causal=attention.causal):
        return _Masking(masks)
    if _is_operator(attention):
        return _Masking(masks, zeroes=True)
    if not all(mask.allowed for mask in masks):
        return None
    if all(math.isinf(mask.filler) for mask in masks):
        return _Masking(masks, zeroes=True)
    if not rows_can_be_told(masks, sizes):
        return None
    (mask,) = masks
    return _Masking(masks, averages=mask.replaces or mask.filler < _LOWEST)


class _Writer:
    """Writes the operators, and shares what layers have in common."""

    def __init__(self, model: ir.Model, sizes: Sizes, restrictions: Restrictions) -> None:
        self._sizes, self._restrictions = sizes, restrictions
        self._names = NameAllocator(model)
        self._operands = OperandWriter()
        self._masks = MaskWriter(sizes, self._operands, lowest=_LOWEST, keeps_infinity=True)

    def write(self, attention: Found, masking: _Masking) -> bool:
        """Replace one attention; return False if it cannot be."""
        if not all(map(can_end, attention.ends)):
            return False
        operands = (attention.query, attention.key, attention.value)
        output = output_of(attention.ends[0], self._sizes) if len(attention.ends) == 1 else None
        nodes = _nodes_from_sources(attention, self._sizes)
        if not self._restrictions.allow(_FUSION, attention.last, nodes):
            return False
        gone = nodes - still_needed(nodes, {end.value for end in attention.ends})
        products = products_of(operands, gone, self._sizes)
        offset = None if masking.zeroes else _movable_bias(products[2], output)
        biased = (True, False, offset is None)
        builder = NodeBuilder(attention.last, self._names)
        inputs = self._inputs(builder, operands, products, biased)
        if masking.averages:
            rows = self._masks.rows(builder, masking.masks[0], attention)
            zero = builder.constant(np.asarray(0.0, np.float32))
            inputs[0] = builder.node("Where", [rows, inputs[0], zero], dtype=_FLOAT)
        if masking.masks:
            inputs.append(self._masks.full(builder, masking.masks, attention))
        result = builder.node("Attention", inputs, _attributes(attention), _FLOAT)
        result.shape = ir.Shape([attention.query.batch, attention.query.rows, attention.value.width])
        for end in attention.ends:
            ordered = result if end.order == BATCH_FIRST else self._operands.turned(builder, result, (1, 0, 2))
            replace_end(builder, end, ordered, attention.value.width)
        if offset is not None and output is not None:
            add_to_bias(builder, output, offset)
        return True

    def _inputs(
        self,
        builder: NodeBuilder,
        operands: Sequence[Operand],
        products: Sequence[Projection | None],
        biased: Sequence[bool],
    ) -> list[ir.Value]:
        """Return queries, keys and values of shape [batch, rows, width]."""
        if joins_products(operands, products, biased, self._sizes):
            whole = joined(builder, products, biased)
            rows = written_product(builder, whole.source, whole, keeps_bias=True)
            widths = builder.constant(np.full(len(operands), operands[0].width, np.int64))
            values = builder.nodes("Split", [rows, widths], len(operands), {"axis": -1}, _FLOAT)
        else:
            values = [
                written_product(builder, product.source, product, keeps_bias=False)
                if product is not None and product.bias is not None and not keeps
                else self._operands.alone(builder, operand)
                for operand, product, keeps in zip(operands, products, biased, strict=True)
            ]
        return [_by_samples(builder, value, operand) for operand, value in zip(operands, values, strict=True)]


def _by_samples(builder: NodeBuilder, value: ir.Value, operand: Operand) -> ir.Value:
    """Return an operand of shape [batch, rows, width]; by positions, it has one sample, which moves no number.

    Its width is said: ONNX infers a result of no columns from values whose width it does not know.
    """
    if operand.order != BATCH_FIRST:
        value = reshaped(builder, value, [1, -1, operand.width])
    if value.shape is None or not isinstance(value.shape[-1], int):
        value.shape = ir.Shape([operand.batch, operand.rows, operand.width])
    return value


def _movable_bias(product: Projection | None, output: Output | None) -> np.ndarray | None:
    """Return what the bias of the values adds to the product that reads the result, if it can be added there."""
    bias = None if product is None else constant_array(product.bias)
    return None if bias is None or output is None or output.bias is None else bias @ output.array


def _attributes(attention: Found) -> dict[str, object]:
    heads = attention.query.heads
    attributes: dict[str, object] = {"q_num_heads": heads, "kv_num_heads": heads, "scale": attention.scale}
    if attention.causal:
        attributes["is_causal"] = 1
    return attributes
