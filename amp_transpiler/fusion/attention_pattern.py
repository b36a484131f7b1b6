"""Attention as exporters write it: found by what is computed, not by one exporter's order of operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_guards import Guard, guard_behind
from amp_transpiler.fusion.attention_masks import MASKED, Mask, as_truths, masks_in_axes
from amp_transpiler.fusion.attention_operands import End, Operand, ends_of, in_heads, operand
from amp_transpiler.fusion.attention_values import is_standard_op, made_by, number_of, without_scale
from amp_transpiler.graph.regions import region_of
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.names import is_standard

__all__ = ["Found", "Loose", "Mask", "find_attentions", "find_loosely"]

_AS_INFINITE = -3e38


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One attention.

    Attributes:
        query: what becomes the queries.
        key: what becomes the keys.
        value: what becomes the values.
        scale: the factor of the products of queries and keys.
        masks: what is added to them.
        guarded: rows without any score that counts give 0 instead of NaN.
        causal: a query meets the keys only up to its own place.
        last: the node that computes the result.
        ends: where its rows have all heads side by side.
    """

    query: Operand
    key: Operand
    value: Operand
    scale: float
    masks: tuple[Mask, ...]
    guarded: bool
    causal: bool
    last: ir.Node
    ends: tuple[End, ...]


def find_attentions(graph: ir.Graph) -> tuple[list[Found], Sizes]:
    """Return the attentions of a graph in float32, and its sizes."""
    kinds = {"Softmax": _around_softmax, "Attention": _of_operator}
    nodes = [node for node in graph if node.op_type in kinds and is_standard(node)]
    nodes = [node for node in nodes if node.outputs[0].dtype == ir.DataType.FLOAT]
    nodes = [node for node in nodes if node.op_type != "Softmax" or _mix_of(node) is not None]
    if not nodes:
        return [], Sizes(ir.Graph([], [], nodes=[]))
    sizes = Sizes(graph)
    return [attention for node in nodes if (attention := kinds[node.op_type](node, sizes)) is not None], sizes


@dataclasses.dataclass(frozen=True, slots=True)
class Loose:
    """A softmax between two products in four dimensions, whatever is done to its operands before.

    Attributes:
        query: of shape [batch, heads, queries, size].
        key: of shape [batch, heads, size, keys].
        masks: what is added to their products.
        heads: how many.
        width: of all heads together.
    """

    query: ir.Value
    key: ir.Value
    masks: tuple[Mask, ...]
    heads: int
    width: int


def find_loosely(graph: ir.Graph) -> list[Loose]:
    """Return what is attention, but perhaps not of a form that can be fused, such as with rotated queries and keys."""
    softmaxes = [node for node in graph if node.op_type == "Softmax" and is_standard(node)]
    sizes = Sizes(graph) if softmaxes else None
    attentions = []
    for softmax in softmaxes:
        scores = softmax.inputs[0]
        guard = guard_behind(softmax)
        if scores is None or sizes is None or guard is None:
            continue
        product, masks, _ = _scores(scores, sizes, guard)
        if product is None or not any(is_standard_op(use.node, "MatMul") for use in guard.weights.uses()):
            continue
        query, key = product.inputs
        shape = sizes.shape(query)
        if query is not None and key is not None and shape is not None and len(shape) == 4:
            heads, size = shape[1], shape[3]
            if isinstance(heads, int) and isinstance(size, int):
                attentions.append(Loose(query, key, masks, heads, heads * size))
    return attentions


def _around_softmax(softmax: ir.Node, sizes: Sizes) -> Found | None:
    """Return the attention around a Softmax; None if it is none, or of a form that is not known."""
    scores, graph, mix_of = softmax.inputs[0], softmax.graph, _mix_of(softmax)
    if scores is None or graph is None or mix_of is None or not _is_last_axis(softmax, sizes):
        return None
    mix, guard = mix_of
    product, masks, scale = _scores(scores, sizes, guard)
    if product is None or not _is_for_softmax(product.outputs[0], softmax, guard):
        return None
    if any(node.graph is not graph or region_of(node) != region_of(softmax) for node in (softmax, mix, product)):
        return None
    values = (*product.inputs, mix.inputs[1])
    matches = (
        _matched(operands, scale, masks, mix, sizes, guarded=guard.is_there)
        for operands in _operands(values, sizes, keys_turned=True)
    )
    return next((match for match in matches if match is not None), None)


def _operands(
    values: Sequence[ir.Value | None], sizes: Sizes, *, keys_turned: bool
) -> Iterator[Sequence[tuple[Operand | None, float]]]:
    """Yield what queries, keys and values may be, each with a factor on the way; what costs least comes first.

    Args:
        values: what the products of matrices read: [batch, heads, rows, size] or [batch * heads, rows, size].
        sizes: the sizes of the graph's values.
        keys_turned: of the keys, size comes before rows.
    """
    turned = (False, keys_turned, False)
    query, *others = (operand(value, sizes, rows_last=last) for value, last in zip(values, turned, strict=True))
    yield query, *others
    whole, *caches = (in_heads(value, sizes, rows_last=last) for value, last in zip(values, turned, strict=True))
    yield query, *caches
    yield whole, *caches


def _mix_of(softmax: ir.Node) -> tuple[ir.Node, Guard] | None:
    """Return the only reader of a Softmax, a product, and the guard between them."""
    guard = guard_behind(softmax)
    if guard is None or len(guard.weights.uses()) != 1 or guard.weights.is_graph_output():
        return None
    mix = next(iter(guard.weights.uses())).node
    return (mix, guard) if is_standard_op(mix, "MatMul") and mix.inputs[0] is guard.weights else None


def _of_operator(node: ir.Node, sizes: Sizes) -> Found | None:
    """Return the attention that ONNX's own operator computes in four dimensions, without a cache."""
    attributes = node.attributes
    if any(value is not None for value in node.inputs[4:]) or len([v for v in node.outputs if v.uses()]) != 1:
        return None
    if attributes.get_float("softcap", 0.0) or "q_num_heads" in attributes:
        return None
    causal = bool(attributes.get_int("is_causal", 0))
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    masks = () if mask is None else (_read_mask(mask, sizes),)
    for operands in _operands(node.inputs[:3], sizes, keys_turned=False):
        (query, _), (key, _) = operands[:2]
        if query is None or key is None or (causal and query.rows != key.rows):
            continue
        scale = attributes.get_float("scale", query.size**-0.5)
        if match := _matched(operands, scale, masks, node, sizes, guarded=True, causal=causal):
            return match
    return None


def _read_mask(mask: ir.Value, sizes: Sizes) -> Mask:
    """Read the mask of ONNX's operator, for which the lowest number is minus infinity."""
    if mask.dtype == ir.DataType.BOOL:
        return Mask(mask, allowed=True, filler=-np.inf)
    truths = as_truths(mask, sizes)
    return dataclasses.replace(truths, filler=-np.inf) if truths.filler <= _AS_INFINITE else truths


def _matched(
    operands: Sequence[tuple[Operand | None, float]],
    scale: float,
    masks: Sequence[Mask],
    last: ir.Node,
    sizes: Sizes,
    *,
    guarded: bool = False,
    causal: bool = False,
) -> Found | None:
    (query, query_scale), (key, key_scale), (value, value_scale) = operands
    if query is None or key is None or value is None or value_scale != 1.0:
        return None
    if (query.heads, query.size) != (key.heads, key.size) or value.heads != query.heads:
        return None
    if value.rows != key.rows or not query.batch == key.batch == value.batch:
        return None
    if key.places and value.size != key.size:
        return None  # ONNX Runtime asks for it where keys have an axis of heads
    ends = ends_of(last.outputs[0], query, value.size, sizes)
    scores = (query.batch, query.heads, query.rows, key.rows)
    rank = len(sizes.shape(last.outputs[0]) or (0, 0, 0, 0))
    parts = [masks_in_axes(mask, scores, rank, sizes) for mask in masks]
    if not ends or any(region_of(last) != region_of(maker) for end in ends if (maker := end.value.producer())):
        return None
    if any(part is None for part in parts):
        return None
    return Found(
        query=query,
        key=key,
        value=value,
        scale=scale * query_scale * key_scale,
        masks=tuple(mask for part in parts if part is not None for mask in part),
        guarded=guarded,
        causal=causal,
        last=last,
        ends=tuple(ends),
    )


# ---- around the softmax ----


def _is_last_axis(softmax: ir.Node, sizes: Sizes) -> bool:
    axis, shape = softmax.attributes.get_int("axis", -1), sizes.shape(softmax.inputs[0])
    return axis in (-1, 3) if shape is None else len(shape) in (3, 4) and axis in (-1, len(shape) - 1)


# ---- scores ----


def _scores(value: ir.Value, sizes: Sizes, guard: Guard) -> tuple[ir.Node | None, tuple[Mask, ...], float]:
    """Return the product of queries and keys, the masks, and the factor of the product."""
    masks: list[Mask] = []
    current: ir.Value | None = value
    while current is not None and (node := current.producer()) is not None and len(_readers(current, guard)) == 1:
        if is_standard_op(node, "Where"):
            current, mask = _chosen(node)
        elif is_standard_op(node, "Add"):
            current, mask = _summand(node, sizes)
        else:
            break
        if mask is None:
            return None, (), 1.0
        masks.append(mask)
    product, scale = without_scale(current, sizes)
    matmul = made_by(product, "MatMul")
    return (matmul, tuple(masks), scale) if matmul is not None else (None, (), 1.0)


def _readers(value: ir.Value, guard: Guard) -> list[ir.Node]:
    """Return the nodes that read scores; the guard, which goes with the Softmax, does not count."""
    return [use.node for use in value.uses() if use.node is not guard.test]


def _is_for_softmax(value: ir.Value, softmax: ir.Node, guard: Guard) -> bool:
    """Whether scores are read on the way to a Softmax only; those who only ask for a shape do not count."""
    while True:
        readers = [node for node in _readers(value, guard) if not is_standard_op(node, "Shape")]
        if len(readers) != 1 or value.is_graph_output():
            return False
        if readers[0] is softmax:
            return True
        value = readers[0].outputs[0]


def _chosen(node: ir.Node) -> tuple[ir.Value | None, Mask | None]:
    """Read `Where(condition, scores, very small)`, or the other way round."""
    condition, yes, no = node.inputs
    if condition is not None and (filler := number_of(no)) is not None and filler <= MASKED:
        return yes, Mask(condition, allowed=True, filler=filler, replaces=True)
    if condition is not None and (filler := number_of(yes)) is not None and filler <= MASKED:
        return no, Mask(condition, allowed=True, inverted=True, filler=filler, replaces=True)
    return None, None


def _summand(node: ir.Node, sizes: Sizes) -> tuple[ir.Value | None, Mask | None]:
    """Read `Add(scores, mask)`, in either order."""
    left, right = node.inputs
    for scores, other in ((left, right), (right, left)):
        if other is not None and _leads_to_product(scores, sizes):
            return scores, as_truths(other, sizes)
    return None, None


def _leads_to_product(value: ir.Value | None, sizes: Sizes) -> bool:
    for _ in range(4):
        value, _factor = without_scale(value, sizes)
        node = None if value is None else value.producer()
        if node is None or not is_standard(node):
            return False
        if node.op_type == "MatMul":
            return True
        if node.op_type == "Add":
            return any(_leads_to_product(part, sizes) for part in node.inputs)
        if node.op_type != "Where":
            return False
        value = node.inputs[1] if number_of(node.inputs[2]) is not None else node.inputs[2]
    return False
