"""Attention as exporters write it: found by what is computed, not by one exporter's order of operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.regions import region_of
from amp_transpiler.graph.sizes import Dim, Sizes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.attention_values import (
    behind_nothing,
    is_standard_op,
    made_by,
    number_of,
    only_reader,
    turns,
    without_scale,
)

__all__ = ["Found", "Loose", "Mask", "find_attentions", "find_loosely"]

_HEADS_FIRST = (0, 2, 1, 3)
_KEYS_TURNED = (0, 2, 3, 1)
_THREE_FIRST = (2, 0, 3, 1, 4)
_LAST_TWO = (0, 1, 3, 2)
_AS_INFINITE = -3e38
_MASKED = -1e3  # a constant at or below takes the place of a score that does not count


@dataclasses.dataclass(frozen=True, slots=True)
class Mask:
    """A summand of the scores.

    Attributes:
        value: what is added; where `allowed` is set, the condition of which it is made.
        allowed: whether `value` holds truths: True where a score counts (or False, where `inverted`).
        inverted: truths mean the opposite.
        filler: with truths, what is added where a score does not count.
    """

    value: ir.Value
    allowed: bool = False
    inverted: bool = False
    filler: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One attention.

    Attributes:
        query: of shape [batch, queries, heads * size].
        key: of shape [batch, keys, heads * size].
        value: of shape [batch, keys, heads * size of a value].
        packed: the three are one value, of shape [batch, queries, 3 * heads * size].
        heads: how many.
        width: of all heads of the query together.
        scale: the factor of the products of queries and keys.
        masks: what is added to them.
        guarded: rows without any score that counts give 0 instead of NaN.
        causal: a query meets the keys only up to its own place.
        result: the Transpose whose output is [batch, queries, heads, size of a value].
        queries: the size of the query's axis 1.
        keys: the size of the key's axis 1.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    packed: bool
    heads: int
    width: int
    scale: float
    masks: tuple[Mask, ...]
    guarded: bool
    causal: bool
    result: ir.Node
    queries: Dim
    keys: Dim


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
        product, masks, _ = _scores(scores) if scores is not None else (None, (), 1.0)
        weights = behind_nothing(softmax.outputs[0])
        if product is None or sizes is None or not any(is_standard_op(use.node, "MatMul") for use in weights.uses()):
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
    mix, guarded = mix_of
    result = _turned_result(mix.outputs[0], sizes)
    product, masks, scale = _scores(scores)
    if result is None or product is None:
        return None
    nodes = (softmax, mix, result, product)
    if any(node.graph is not graph or region_of(node) != region_of(softmax) for node in nodes):
        return None
    operands = (
        _split_heads(product.inputs[0], sizes),
        _split_keys(product.inputs[1], sizes),
        _split_heads(mix.inputs[1], sizes),
    )
    return _matched(operands, scale, masks, result, guarded=guarded)


def _mix_of(softmax: ir.Node) -> tuple[ir.Node, bool] | None:
    """Return the only reader of a Softmax, a product, and whether full rows are guarded between them."""
    weights, guarded = _guarded(behind_nothing(softmax.outputs[0]))
    weights = None if weights is None else behind_nothing(weights)
    if weights is None or len(weights.uses()) != 1 or weights.is_graph_output():
        return None
    mix = next(iter(weights.uses())).node
    return (mix, guarded) if is_standard_op(mix, "MatMul") and mix.inputs[0] is weights else None


def _of_operator(node: ir.Node, sizes: Sizes) -> Found | None:
    """Return the attention that ONNX's own operator computes in four dimensions, without a cache."""
    attributes = node.attributes
    if any(value is not None for value in node.inputs[4:]) or len([v for v in node.outputs if v.uses()]) != 1:
        return None
    if attributes.get_float("softcap", 0.0) or "q_num_heads" in attributes:
        return None
    result = _turned_result(node.outputs[0], sizes)
    operands = tuple(_split_heads(value, sizes) for value in node.inputs[:3])
    query, key, _ = (heads for heads, _ in operands)
    causal = bool(attributes.get_int("is_causal", 0))
    if result is None or query is None or key is None or (causal and query.rows != key.rows):
        return None
    if result.graph is not node.graph or region_of(result) != region_of(node):
        return None
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    masks = () if mask is None else (_read_mask(mask),)
    scale = attributes.get_float("scale", query.size**-0.5)
    return _matched(operands, scale, masks, result, guarded=True, causal=causal)


def _read_mask(mask: ir.Value) -> Mask:
    """Read the mask of ONNX's operator, for which the lowest number is minus infinity."""
    if mask.dtype == ir.DataType.BOOL:
        return Mask(mask, allowed=True, filler=-np.inf)
    truths = _as_truths(mask)
    return dataclasses.replace(truths, filler=-np.inf) if truths.filler <= _AS_INFINITE else truths


def _matched(
    operands: Sequence[tuple[_Heads | None, float]],
    scale: float,
    masks: tuple[Mask, ...],
    result: ir.Node,
    *,
    guarded: bool = False,
    causal: bool = False,
) -> Found | None:
    (query, query_scale), (key, key_scale), (value, value_scale) = operands
    if query is None or key is None or value is None or value_scale != 1.0:
        return None
    if (query.heads, query.size) != (key.heads, key.size) or value.heads != query.heads or value.rows != key.rows:
        return None
    packed = [heads.part for heads in (query, key, value)]
    if packed != [None] * 3 and (packed != [0, 1, 2] or len({query.whole, key.whole, value.whole}) > 1):
        return None
    return Found(
        query=query.whole,
        key=key.whole,
        value=value.whole,
        packed=packed == [0, 1, 2],
        heads=query.heads,
        width=query.heads * query.size,
        scale=scale * query_scale * key_scale,
        masks=masks,
        guarded=guarded,
        causal=causal,
        result=result,
        queries=query.rows,
        keys=key.rows,
    )


# ---- around the softmax ----


def _is_last_axis(softmax: ir.Node, sizes: Sizes) -> bool:
    axis, shape = softmax.attributes.get_int("axis", -1), sizes.shape(softmax.inputs[0])
    return axis in (-1, 3) and (shape is None or len(shape) == 4)


def _guarded(weights: ir.Value) -> tuple[ir.Value | None, bool]:
    """Return the attention weights behind `Where(IsNaN(w), 0, w)`, and whether that is there."""
    readers = [use.node for use in weights.uses()]
    test = next((node for node in readers if is_standard_op(node, "IsNaN")), None)
    if test is None:
        return weights, False
    choice = only_reader(test.outputs[0])
    if choice is None or not is_standard_op(choice, "Where") or len(readers) != 2 or weights.is_graph_output():
        return None, False
    fits = choice.inputs[0] is test.outputs[0] and choice.inputs[2] is weights and number_of(choice.inputs[1]) == 0.0
    return (choice.outputs[0], True) if fits and choice in readers else (None, False)


def _turned_result(value: ir.Value, sizes: Sizes) -> ir.Node | None:
    """Return the Transpose [batch, rows, heads, size] of a value; those who only ask for its shape do not count."""
    readers = [use.node for use in value.uses() if use.node.op_type != "Shape"]
    if len(readers) != 1 or value.is_graph_output():
        return None
    if _keeps_shape(readers[0], sizes):
        return _turned_result(readers[0].outputs[0], sizes)
    return readers[0] if turns(readers[0], _HEADS_FIRST) else None


def _keeps_shape(node: ir.Node | None, sizes: Sizes) -> bool:
    """Whether a Reshape or Expand gives what it takes."""
    if node is None or not is_standard(node) or node.op_type not in ("Reshape", "Expand"):
        return False
    before = sizes.shape(node.inputs[0])
    return before is not None and before == sizes.shape(node.outputs[0])


def _plain(value: ir.Value | None, sizes: Sizes) -> tuple[ir.Value | None, float]:
    """Look through products with one number and Reshapes that change nothing; return what is scaled, and the factor."""
    value, factor = without_scale(value)
    while value is not None and _keeps_shape(node := value.producer(), sizes):
        assert node is not None, "it keeps a shape"
        value, further = without_scale(node.inputs[0])
        factor *= further
    return value, factor


# ---- scores ----


def _scores(value: ir.Value) -> tuple[ir.Node | None, tuple[Mask, ...], float]:
    """Return the product of queries and keys, the masks, and the factor of the product."""
    masks: list[Mask] = []
    current: ir.Value | None = value
    while current is not None and (node := current.producer()) is not None and len(current.uses()) == 1:
        if is_standard_op(node, "Where"):
            current, mask = _chosen(node)
        elif is_standard_op(node, "Add"):
            current, mask = _summand(node)
        else:
            break
        if mask is None:
            return None, (), 1.0
        masks.append(mask)
    product, scale = without_scale(current)
    matmul = made_by(product, "MatMul")
    return (matmul, tuple(masks), scale) if matmul is not None else (None, (), 1.0)


def _chosen(node: ir.Node) -> tuple[ir.Value | None, Mask | None]:
    """Read `Where(condition, scores, very small)`, or the other way round."""
    condition, yes, no = node.inputs
    if condition is not None and (filler := number_of(no)) is not None and filler <= _MASKED:
        return yes, Mask(condition, allowed=True, filler=filler)
    if condition is not None and (filler := number_of(yes)) is not None and filler <= _MASKED:
        return no, Mask(condition, allowed=True, inverted=True, filler=filler)
    return None, None


def _summand(node: ir.Node) -> tuple[ir.Value | None, Mask | None]:
    """Read `Add(scores, mask)`, in either order."""
    left, right = node.inputs
    for scores, other in ((left, right), (right, left)):
        if other is not None and _leads_to_product(scores):
            return scores, _as_truths(other)
    return None, None


def _leads_to_product(value: ir.Value | None) -> bool:
    for _ in range(4):
        value, _factor = without_scale(value)
        node = None if value is None else value.producer()
        if node is None or not is_standard(node):
            return False
        if node.op_type == "MatMul":
            return True
        if node.op_type == "Add":
            return any(_leads_to_product(part) for part in node.inputs)
        if node.op_type != "Where":
            return False
        value = node.inputs[1] if number_of(node.inputs[2]) is not None else node.inputs[2]
    return False


def _as_truths(value: ir.Value) -> Mask:
    """Read `Where(condition, 0, very small)` as a condition; anything else as a summand."""
    node = made_by(value, "Where")
    condition = None if node is None else node.inputs[0]
    if node is None or condition is None:
        return Mask(value)
    yes, no = number_of(node.inputs[1]), number_of(node.inputs[2])
    if yes == 0.0 and no is not None and no <= _MASKED:
        return Mask(condition, allowed=True, filler=no)
    if no == 0.0 and yes is not None and yes <= _MASKED:
        return Mask(condition, allowed=True, inverted=True, filler=yes)
    return Mask(value)


# ---- heads ----


@dataclasses.dataclass(frozen=True, slots=True)
class _Heads:
    """A value [batch, rows, heads * size] that is split into heads.

    `part` is not None for one of three such values side by side: 0, 1 or 2.
    """

    whole: ir.Value
    heads: int
    size: int
    rows: Dim
    part: int | None = None


def _split_heads(value: ir.Value | None, sizes: Sizes) -> tuple[_Heads | None, float]:
    """Return what becomes [batch, heads, rows, size], and a factor on the way."""
    value, outer = _plain(value, sizes)
    turned = made_by(value, "Transpose")
    if turned is None or not turns(turned, _HEADS_FIRST):
        return _one_of_three(value, sizes), outer
    return _heads_of(turned.inputs[0], sizes, outer)


def _one_of_three(value: ir.Value | None, sizes: Sizes) -> _Heads | None:
    """Read one of the three parts of [3, batch, heads, rows, size]."""
    packed, part = _picked(value, sizes)
    turned = made_by(packed, "Transpose")
    split = None if turned is None or not turns(turned, _THREE_FIRST) else made_by(turned.inputs[0], "Reshape")
    whole = None if split is None else split.inputs[0]
    old, new = sizes.shape(whole), sizes.shape(None if split is None else split.outputs[0])
    if whole is None or part is None or old is None or new is None or len(old) != 3 or len(new) != 5:
        return None
    three, heads, size = new[2:]
    if three != 3 or not isinstance(heads, int) or not isinstance(size, int) or 3 * heads * size != old[2]:
        return None
    return _Heads(whole, heads, size, old[1], part) if new[0] == old[0] or new[1] == old[1] else None


def _picked(value: ir.Value | None, sizes: Sizes) -> tuple[ir.Value | None, int | None]:
    """Return what one element of the first axis is taken from, and its index."""
    if (gather := made_by(value, "Gather")) is not None:
        index = sizes.content(gather.inputs[1])
        fits = gather.attributes.get_int("axis", 0) == 0 and index is not None and sizes.shape(gather.inputs[1]) == ()
        return (gather.inputs[0], _index(index)) if fits else (None, None)
    squeeze = made_by(value, "Squeeze")
    if squeeze is None or sizes.content(squeeze.inputs[1] if len(squeeze.inputs) > 1 else None) != (0,):
        return None, None
    if (part := made_by(squeeze.inputs[0], "Slice")) is not None:
        start, end, axes, *step = (sizes.content(bound) for bound in part.inputs[1:5])
        first = _index(start)
        fits = axes == (0,) and first is not None and end == (first + 1,) and step in ([], [(1,)])
        return (part.inputs[0], first) if fits else (None, None)
    split = made_by(squeeze.inputs[0], "Split")
    if split is None or squeeze.inputs[0] is None or split.attributes.get_int("axis", 0) != 0:
        return None, None
    return (split.inputs[0], split.outputs.index(squeeze.inputs[0])) if len(split.outputs) == 3 else (None, None)


def _index(content: tuple[Dim, ...] | None) -> int | None:
    index = content[0] if content is not None and len(content) == 1 else None
    return index if isinstance(index, int) and 0 <= index < 3 else None


def _split_keys(value: ir.Value | None, sizes: Sizes) -> tuple[_Heads | None, float]:
    """Return what becomes [batch, heads, size, rows], and a factor on the way."""
    value, outer = _plain(value, sizes)
    turned = made_by(value, "Transpose")
    if turned is not None and turns(turned, _KEYS_TURNED):
        return _heads_of(turned.inputs[0], sizes, outer)
    if turned is not None and turns(turned, _LAST_TWO):
        heads, inner = _split_heads(turned.inputs[0], sizes)
    else:
        heads, inner = _split_heads(_behind_flat_transpose(value, sizes), sizes)
    return heads, outer * inner


def _behind_flat_transpose(value: ir.Value | None, sizes: Sizes) -> ir.Value | None:
    """Look through a Transpose of the last two axes that is done in three dimensions."""
    back = made_by(value, "Reshape")
    turned = None if back is None else made_by(back.inputs[0], "Transpose")
    flat = None if turned is None or not turns(turned, (0, 2, 1)) else made_by(turned.inputs[0], "Reshape")
    if back is None or flat is None:
        return None
    first, inside, last = sizes.shape(flat.inputs[0]), sizes.shape(flat.outputs[0]), sizes.shape(back.outputs[0])
    if first is None or inside is None or last is None or (len(first), len(inside), len(last)) != (4, 3, 4):
        return None
    straight = inside[1:] == first[2:] and last == (first[0], first[1], first[3], first[2])
    return flat.inputs[0] if straight else None


def _heads_of(value: ir.Value | None, sizes: Sizes, factor: float) -> tuple[_Heads | None, float]:
    value, inner = _plain(value, sizes)
    split = made_by(value, "Reshape")
    whole = None if split is None else split.inputs[0]
    whole, before = _plain(whole, sizes)
    old, new = sizes.shape(whole), sizes.shape(value)
    if whole is None or old is None or new is None or len(old) != 3 or len(new) != 4:
        return None, 1.0
    heads, size = new[2:]
    if not isinstance(heads, int) or not isinstance(size, int) or heads * size != old[2]:
        return None, 1.0
    if new[0] != old[0] and new[1] != old[1]:  # one of the two tells, by the number of elements
        return None, 1.0
    return _Heads(whole, heads, size, old[1]), factor * inner * before
