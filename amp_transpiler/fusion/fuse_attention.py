"""Writing attention as one operator of ONNX Runtime, which computes the softmax inside in float32."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_bias import MaskWriter, masking_of
from amp_transpiler.fusion.attention_masks import Mask
from amp_transpiler.fusion.attention_nodes import nodes_of
from amp_transpiler.fusion.attention_operands import BATCH_FIRST, Operand
from amp_transpiler.fusion.attention_pattern import Found, find_attentions
from amp_transpiler.fusion.attention_projection import Projection, projection, weight_array
from amp_transpiler.fusion.attention_writing import OperandWriter, can_end, replace_end
from amp_transpiler.fusion.restrictions import Restrictions
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["FuseAttention"]

logger = logging.getLogger(__name__)

_DOMAIN = "com.microsoft"
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
        self._names = NameAllocator(model)
        self._operands = OperandWriter()
        self._masks = MaskWriter(sizes, self._operands)

    def write(self, attention: Found) -> bool:
        """Replace one attention; return False if it cannot be."""
        masking = masking_of(attention, self._sizes)
        if masking is None or not all(map(can_end, attention.ends)):
            return False
        parts = None if masking.averages else self._projections(attention)
        if not self._allow(attention, parts):
            return False
        builder = NodeBuilder(attention.last, self._names)
        masks = masking.masks
        bias = self._masks.full(builder, masks, attention) if masks else None
        if parts is not None:
            result = self._packed(builder, attention, parts, bias)
        else:
            result = self._unpacked(builder, attention, bias, masks[0] if masking.averages else None)
        if masking.is_guarded:
            zero = builder.constant(np.asarray(0.0, np.float32))
            rows = self._masks.rows(builder, masks[0], attention)
            result = builder.node("Where", [rows, result, zero], dtype=ir.DataType.FLOAT)
        for end in attention.ends:
            ordered = result if end.order == BATCH_FIRST else self._operands.turned(builder, result, (1, 0, 2))
            replace_end(builder, end, ordered, attention.value.width)
        return True

    def _allow(self, attention: Found, parts: list[Projection] | None) -> bool:
        if self._restrictions is None:
            return True
        operands = (attention.query.whole, attention.key.whole, attention.value.whole)
        nodes = nodes_of(attention, None, operands if parts is None else (parts[0].source,))
        return self._restrictions.allow("Attention", attention.last, nodes)

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
        weight, offset = self._side_by_side(builder, parts)
        attributes = _attributes(attention)
        widths = [part.stop - part.start for part in parts]
        if len(set(widths)) > 1:
            attributes["qkv_hidden_sizes"] = widths
        source = self._operands.batch_first(builder, parts[0].source, attention.query.order)
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
            rows, zero = self._masks.rows(builder, averaging, attention), builder.constant(np.asarray(0.0, np.float32))
            query = builder.node("Where", [rows, query, zero], dtype=ir.DataType.FLOAT)
        key, value = (
            (self._in_heads if each.places else self._operand)(builder, each)
            for each in (attention.key, attention.value)
        )
        inputs = [query, key, value, None, None, bias]
        return self._fused(builder, "MultiHeadAttention", inputs, _attributes(attention))

    def _operand(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        """Return an operand of shape [batch, rows, width]."""
        return self._operands.batch_first(builder, self._operands.alone(builder, operand), operand.order)

    def _in_heads(self, builder: NodeBuilder, operand: Operand) -> ir.Value:
        """Return an operand of shape [batch, heads, rows, size]."""
        return self._operands.turned(builder, operand.whole, operand.places)

    def _fused(
        self, builder: NodeBuilder, op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, object]
    ) -> ir.Value:
        inputs = list(inputs)
        while inputs[-1] is None:
            inputs.pop()
        return builder.node(op_type, inputs, attributes, ir.DataType.FLOAT, domain=_DOMAIN)

    def _side_by_side(self, builder: NodeBuilder, parts: Sequence[Projection]) -> tuple[ir.Value, ir.Value]:
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
        weight = builder.weight("qkv_weight", np.concatenate(weights, axis=1))
        return weight, builder.weight("qkv_bias", np.concatenate(biases))


def _attributes(attention: Found) -> dict[str, object]:
    attributes: dict[str, object] = {"num_heads": attention.query.heads, "scale": attention.scale}
    if attention.causal:
        attributes["unidirectional"] = 1
    return attributes


def _columns(constant: ir.Value, part: Projection) -> np.ndarray:
    array = weight_array(constant)
    assert array is not None, "a projection has constants"
    return array[..., part.start : part.stop]
