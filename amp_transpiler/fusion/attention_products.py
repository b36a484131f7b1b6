"""Lets the products of attention read queries, keys and values as they lie, without Transposes in front of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_bias import Masking, MaskWriter, masking_of
from amp_transpiler.fusion.attention_nodes import nodes_of, still_needed
from amp_transpiler.fusion.attention_operands import BATCH_FIRST, End
from amp_transpiler.fusion.attention_output import Output, is_cheaper_turned, output_of
from amp_transpiler.fusion.attention_pattern import Found, find_attentions
from amp_transpiler.fusion.attention_rows import RowWriter
from amp_transpiler.fusion.attention_values import is_standard_op
from amp_transpiler.fusion.attention_writing import OperandWriter, can_end, replace_end, reshaped
from amp_transpiler.fusion.operand_products import source_of
from amp_transpiler.fusion.restrictions import Restrictions
from amp_transpiler.graph.contrib_node import CONTRIB
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["FuseAttentionProducts"]

logger = logging.getLogger(__name__)

_FUSION = "FusedMatMul"
_FIRST_OPSET = 13  # before, a Softmax without an axis was another
_FLOAT = ir.DataType.FLOAT
_COSTLY = ("MatMul", "Softmax")  # what is not to be computed twice


class FuseAttentionProducts(Pass[PassResult]):
    """Writes the products of attention as FusedMatMuls that read rows as they lie; counts attentions.

    A product reads a stack of matrices, one for each sample and head. It takes rows of positions as such a stack where
    the samples and heads of a position lie side by side.

    1. What queries, keys and values are made of is brought into the order of positions instead of each of them; of one
       sample nothing is. The factor of the scores is a product's.
    2. The result is computed in columns where a product with constants reads it and that is cheaper by the price list:
       that product reads columns as they lie, of one sample after the other.
    3. The bias of the keys is left out: it adds one number to all scores of a query, which the softmax takes away. That
       of the values becomes part of the bias behind the product that reads the result, since the weights of a row sum
       to 1; a row without scores takes it away again.
    4. Masks are a summand, worked out once for all layers and only for the axes that it has, which ONNX Runtime takes
       into the softmax. Rows in which no score counts are treated as by `FuseAttention`: they give 0 or an average.

    It looks at float32 in the main graph, whose constants are in one form, and leaves nodes behind that nobody reads.

    Args:
        restrictions: which nodes may become others.
    """

    def __init__(self, restrictions: Restrictions) -> None:
        self._restrictions = restrictions

    def call(self, model: ir.Model) -> PassResult:
        if opset_of(model, "") < _FIRST_OPSET:
            return PassResult(model, modified=False)
        attentions, sizes = find_attentions(model.graph)
        writer = _Writer(model, sizes, self._restrictions)
        written = sum(writer.write(attention) for attention in attentions)
        if written:
            model.graph.opset_imports.setdefault(CONTRIB, 1)
            logger.info("%d of %d attentions read rows as they lie", written, len(attentions))
        return PassResult(model, modified=bool(written), count=written)


class _Writer:
    """Writes attentions, and shares what layers have in common."""

    def __init__(self, model: ir.Model, sizes: Sizes, restrictions: Restrictions) -> None:
        self._sizes, self._restrictions = sizes, restrictions
        self._names = NameAllocator(model)
        operands = OperandWriter()
        self._operands, self._masks = operands, MaskWriter(sizes, operands)
        self._rows = RowWriter(sizes, operands)

    def write(self, attention: Found) -> bool:
        """Write one attention anew; return False if it stays as it is."""
        masking = masking_of(attention, self._sizes)
        if masking is None or len(attention.ends) != 1 or not _has_heads_to_turn(attention):
            return False
        (end,) = attention.ends
        if not can_end(end):
            return False
        output = output_of(end, self._sizes)
        operands = (attention.query, attention.key, attention.value)
        nodes = nodes_of(attention, output, {source_of(each, self._sizes) for each in operands})
        needed = still_needed(nodes, {end.value if output is None else output.last.outputs[0]})
        inner = nodes_of(attention, output, {each.whole for each in operands})
        if any(node.op_type in _COSTLY for node in needed & inner):
            return False
        moves_bias = output is not None and output.bias is not None
        biased = (True, False, not moves_bias)
        plan = self._rows.plan(operands, nodes - needed, biased)
        if not plan.saves_transposes or not self._restrictions.allow(_FUSION, attention.last, nodes):
            return False
        builder = NodeBuilder(attention.last if output is None else output.last, self._names)
        query, key, value = self._rows.write(builder, plan, biased)
        weights = self._weights(builder, attention, masking, query, key)
        offset = plan.bias_of(2) if moves_bias else None
        self._end(builder, attention, masking, end, output, weights, value, offset)
        return True

    def _weights(
        self, builder: NodeBuilder, attention: Found, masking: Masking, query: ir.Value, key: ir.Value
    ) -> ir.Value:
        if masking.averages:  # of equal scores
            rows, zero = self._masks.rows(builder, masking.masks[0], attention), _number(builder, 0.0)
            places = builder.constant(np.asarray([-1], np.int64))
            turned = self._operands.turned(builder, rows, (1, 0, 2))
            chosen = builder.node("Unsqueeze", [turned, places], dtype=ir.DataType.BOOL)
            query = builder.node("Where", [chosen, query, zero], dtype=_FLOAT)
        flags = {"transBatchA": 1, "transBatchB": 1, "transB": 1, "alpha": attention.scale}
        scores = _product(builder, query, key, flags)
        if masking.masks:
            scores = builder.node("Add", [scores, self._masks.least(builder, masking.masks)], dtype=_FLOAT)
        return builder.node("Softmax", [scores], {"axis": -1}, _FLOAT)

    def _end(
        self,
        builder: NodeBuilder,
        attention: Found,
        masking: Masking,
        end: End,
        output: Output | None,
        weights: ir.Value,
        value: ir.Value,
        offset: np.ndarray | None,
    ) -> None:
        if output is None:
            result = self._in_rows(builder, attention, end, weights, value)
            if masking.is_guarded:
                result = self._guarded(builder, attention, masking, end, result, _number(builder, 0.0))
            replace_end(builder, end, result, attention.value.width)
            return
        if is_cheaper_turned(attention, end, output):
            columns = _product(builder, value, weights, {"transBatchA": 1, "transA": 1, "transB": 1})
            columns = reshaped(builder, columns, [0, attention.value.width, attention.query.rows])
            result = _product(builder, columns, output.weight, {"transA": 1})
        else:
            rows = self._in_rows(builder, attention, end, weights, value)
            result = builder.node("MatMul", [rows, output.weight], dtype=_FLOAT)
        lost = None if offset is None else offset @ output.array
        if masking.is_guarded:
            nothing = np.asarray(0.0, np.float32) if lost is None else -lost
            result = self._guarded(builder, attention, masking, end, result, builder.constant(nothing))
        bias = None
        if output.bias is not None:
            bias = builder.constant(output.bias if lost is None else (output.bias + lost).astype(np.float32))
        if is_standard_op(output.last, "Add"):  # its result may be the graph's
            builder.become("Add", [result, bias])
        else:
            result = result if bias is None else builder.node("Add", [result, bias], dtype=_FLOAT)
            output.result.replace_all_uses_with(result)

    def _in_rows(
        self, builder: NodeBuilder, attention: Found, end: End, weights: ir.Value, value: ir.Value
    ) -> ir.Value:
        """Return the result in three axes, in its own order of batch and rows."""
        heads = _product(builder, weights, value, {"transBatchB": 1})
        order = [0, 2, 1, 3] if end.order == BATCH_FIRST else [2, 0, 1, 3]
        turned = builder.node("Transpose", [heads], {"perm": order}, _FLOAT)
        return reshaped(builder, turned, [0, 0, attention.value.width])

    def _guarded(
        self, builder: NodeBuilder, attention: Found, masking: Masking, end: End, result: ir.Value, nothing: ir.Value
    ) -> ir.Value:
        """Return the result, with `nothing` in rows in which no score counts."""
        rows = self._masks.rows(builder, masking.masks[0], attention)
        if end.order != BATCH_FIRST:
            rows = self._operands.turned(builder, rows, (1, 0, 2))
        return builder.node("Where", [rows, result, nothing], dtype=_FLOAT)


def _has_heads_to_turn(attention: Found) -> bool:
    """Whether heads and positions change places in front of the products."""
    operands = (attention.query, attention.key, attention.value)
    has_rows = all(not each.places and each.rows != 1 for each in operands)
    return has_rows and attention.query.heads > 1 and attention.last.op_type == "MatMul"


def _number(builder: NodeBuilder, number: float) -> ir.Value:
    return builder.constant(np.asarray(number, np.float32))


def _product(builder: NodeBuilder, left: ir.Value, right: ir.Value, attributes: Mapping[str, object]) -> ir.Value:
    return builder.node("FusedMatMul", [left, right], attributes, _FLOAT, domain=CONTRIB)
