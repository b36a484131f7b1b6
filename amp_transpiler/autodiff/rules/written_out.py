"""Gradients of ONNX Runtime's fused operators, by their definitions in plain operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable, SizesUnknown
from amp_transpiler.autodiff.definitions import Results, defined
from amp_transpiler.autodiff.expression import Expr, concat
from amp_transpiler.autodiff.rules.placing import positions

_LOWEST = -1e30  # of a score that is hidden


def _defined(*op_types: str) -> Callable[..., Callable[..., Results]]:
    return defined(*op_types, domain="com.microsoft")


def _width(x: Expr, axis: int = -1) -> int:
    size = x.size(axis)
    if size is None:
        raise SizesUnknown(f"dimension {axis} of '{x.name}' must be known, got {x.shape}")
    return size


# ---- normalisations ----


def _standardized(x: Expr, gamma: Expr, beta: Expr | None, epsilon: float, *, centred: bool) -> Expr:
    low, x = x.dtype, x.wide()
    if centred:
        x = x - x.mean([-1])
    y = x / ((x * x).mean([-1]) + epsilon).sqrt() * gamma.wide()
    return (y if beta is None else y + beta.wide()).cast(low)


@defined("SimplifiedLayerNormalization", domain="")
def simplified_layer_normalization(node: NodeGradient, x: Expr, scale: Expr) -> Expr:
    if node.attribute("axis", -1) not in (-1, x.rank - 1):
        raise NotDifferentiable("only its last axis may be normalised; use RMSNormalization")
    return _standardized(x, scale, None, node.attribute("epsilon", 1e-5), centred=False)


@_defined("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_normalization(node: NodeGradient, x: Expr, skip: Expr, gamma: Expr, *rest: Expr | None) -> Results:
    """The normalised sum of `x`, `skip` and a bias; the sum itself is output 3."""
    centred = node.op_type == "SkipLayerNormalization"
    beta, bias = (*rest, None, None)[:2] if centred else (None, (*rest, None)[0])
    total = x + skip
    total = total if bias is None else total + bias
    return _standardized(total, gamma, beta, node.attribute("epsilon", 1e-5), centred=centred), None, None, total


@_defined("EmbedLayerNormalization")
def embed_layer_normalization(node: NodeGradient, *_: Expr | None) -> Results:
    """The normalised sum of the rows of a token, its place and its segment; the sum itself is output 2."""
    ids, words, positions, gamma, beta = (node.input(index) for index in (0, 2, 3, 5, 6))
    segments, segment_table, position_ids = (node.optional(index) for index in (1, 4, 8))
    total = words.op("Gather", ids)
    if position_ids is None:
        length = ids.shape_tensor().slice([1], [2], [0])
        total = total + positions.op("Slice", ids.constant(np.array([0])), length, ids.constant(np.array([0])))
    else:
        total = total + positions.op("Gather", position_ids)
    if segments is not None and segment_table is not None:
        total = total + segment_table.op("Gather", segments)
    return _standardized(total, gamma, beta, node.attribute("epsilon", 1e-12), centred=True), None, total


@_defined("GroupNorm", "SkipGroupNorm")
def group_norm(node: NodeGradient, x: Expr, gamma: Expr, beta: Expr, *rest: Expr | None) -> Results:
    """By groups of channels, which come last unless `channels_last` is 0; a swish may follow."""
    skip, bias = (*rest, None, None)[:2]
    last = bool(node.attribute("channels_last", 1))
    total = x
    if skip is not None:
        if skip.rank != x.rank:
            skip = skip.unsqueeze(1, 2) if last else skip.unsqueeze(2, 3)
        total = total + skip
    if bias is not None:
        total = total + (bias if last else bias.unsqueeze(1, 2))
    low, groups = x.dtype, node.attribute("groups")
    wide = total.wide().transpose([0, 3, 1, 2]) if last else total.wide()
    grouped = wide.reshape([0, groups, -1])
    grouped = grouped - grouped.mean([2])
    y = (grouped / ((grouped * grouped).mean([2]) + node.attribute("epsilon", 1e-5)).sqrt()).reshape_like(wide)
    y = y * gamma.wide().unsqueeze(1, 2) + beta.wide().unsqueeze(1, 2)
    y = y * y.sigmoid() if node.attribute("activation") else y
    return (y.transpose([0, 2, 3, 1]) if last else y).cast(low), total


# ---- activations and sums ----


@_defined("BiasAdd")
def bias_add(_: NodeGradient, x: Expr, bias: Expr, skip: Expr) -> Expr:
    return x + bias + skip


@_defined("BiasSoftmax")
def bias_softmax(node: NodeGradient, x: Expr, bias: Expr) -> Expr:
    """Over its axis and all behind it, as one."""
    if node.attribute("is_inner_broadcast") and bias.rank != x.rank:
        raise NotDifferentiable(f"its bias has {bias.rank} axes, {x.rank} are needed; give it axes of size 1")
    total, axis = x + bias, int(node.attribute("axis", 1)) % x.rank
    if axis == x.rank - 1:
        return total.op("Softmax", axis=-1)
    return total.reshape([0] * axis + [-1]).op("Softmax", axis=-1).reshape_like(total)


@_defined("BiasSplitGelu")
def bias_split_gelu(_: NodeGradient, x: Expr, bias: Expr) -> Expr:
    """The first half of the last axis times the GELU of the second."""
    total = x + bias
    half = _width(total) // 2
    first, second = total.slice([0], [half], [-1]), total.slice([half], [2 * half], [-1])
    return first * second * (((second * math.sqrt(0.5)).erf() + 1) * 0.5)


@_defined("GemmFastGelu")
def gemm_fast_gelu(_: NodeGradient, x: Expr, w: Expr, bias: Expr | None = None) -> Expr:
    y = x @ w
    y = y if bias is None else y + bias
    low, y = y.dtype, y.wide()
    return (y * 0.5 * (1 + ((y + y * y * y * 0.044715) * math.sqrt(2 / math.pi)).tanh())).cast(low)


@_defined("Trilu")
def trilu(node: NodeGradient, x: Expr, k: Expr | None = None) -> Expr:
    return x.op("Trilu", k, upper=node.attribute("upper", 1))


@_defined("ExpandDims")
def expand_dims(_: NodeGradient, x: Expr, axis: Expr) -> Expr:
    return x.op("Unsqueeze", axis.cast(ir.DataType.INT64).reshape([1]))


@_defined("FusedConv", "NhwcFusedConv")
def fused_conv(node: NodeGradient, x: Expr, w: Expr, b: Expr | None = None, z: Expr | None = None) -> Expr:
    """An activation of a convolution, to which `z` may be added first."""
    last = node.op_type.startswith("Nhwc")
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attributes = {name: node.attribute(name) for name in names if node.attribute(name) is not None}
    x = x.transpose([0, x.rank - 1, *range(1, x.rank - 1)]) if last else x
    y = x.op("Conv", w, b, **attributes)
    y = y.transpose([0, *range(2, y.rank), 1]) if last else y
    return _activated(node, y if z is None else y + z, node.attribute("activation_params") or ())


@_defined("FusedGemm")
def fused_gemm(node: NodeGradient, a: Expr, b: Expr, c: Expr | None = None) -> Expr:
    names = ("alpha", "beta", "transA", "transB")
    attributes = {name: node.attribute(name) for name in names if node.attribute(name) is not None}
    parameters = [node.attribute(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return _activated(node, a.op("Gemm", b, c, **attributes), [value for value in parameters if value is not None])


def _activated(node: NodeGradient, y: Expr, parameters: Sequence[float]) -> Expr:
    name = str(node.attribute("activation", "") or "")
    if not name:
        return y
    known = {"Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
    if name == "Clip":
        low, high = (*parameters, math.inf)[:2] if parameters else (-math.inf, math.inf)
        return y.maximum(float(low)).minimum(float(high))
    if name not in known:
        raise NotDifferentiable(f"its activation '{name}' is not supported; known are Clip, {', '.join(known)}")
    return y.op(name, **dict(zip(known[name], map(float, parameters), strict=False)))


# ---- attention ----


@_defined("Attention")
def attention(
    node: NodeGradient,
    x: Expr,
    weights: Expr,
    bias: Expr | None = None,
    mask: Expr | None = None,
    past: Expr | None = None,
    scores_bias: Expr | None = None,
    *_: Expr | None,
) -> Expr:
    """Self-attention whose queries, keys and values are one product of `x`."""
    _refuse_cache(node, past)
    if node.attribute("do_rotary", 0):
        raise NotDifferentiable("do_rotary is not supported; write a RotaryEmbedding before it")
    width = _width(weights, 1)
    sizes = [int(size) for size in node.attribute("qkv_hidden_sizes") or [width // 3] * 3]
    packed = x @ weights
    packed = packed if bias is None else packed + bias
    q, k, v = packed.outputs("Split", x.constant(np.array(sizes)), count=3, axis=2)
    return _attended(node, q, k, v, _additive(node, mask, x), scores_bias)


@_defined("MultiHeadAttention")
def multi_head_attention(
    node: NodeGradient,
    query: Expr,
    key: Expr | None = None,
    value: Expr | None = None,
    bias: Expr | None = None,
    mask: Expr | None = None,
    scores_bias: Expr | None = None,
    past: Expr | None = None,
    *_: Expr | None,
) -> Expr:
    """Attention of projected queries, keys and values, each [batch, length, width]; keys may have heads already."""
    _refuse_cache(node, past)
    if key is None or value is None or query.rank != 3:
        raise NotDifferentiable("queries, keys and values packed in one tensor are not supported; split them before")
    if bias is not None:
        sizes = [_width(query), _width(query), 0]
        sizes[2] = _width(bias) - sum(sizes)
        parts = bias.outputs("Split", bias.constant(np.array(sizes)), count=3, axis=0)
        query = query + parts[0]
        if key.rank == 3 and value.rank == 3:
            key, value = key + parts[1], value + parts[2]
    return _attended(node, query, key, value, _additive(node, mask, key), scores_bias)


def _refuse_cache(node: NodeGradient, past: Expr | None) -> None:
    if past is not None and past.size(-2) != 0:
        raise NotDifferentiable("its cache of earlier keys and values has no gradient; train without one")
    if any(grad is not None for grad in node.grads[1:]):
        raise NotDifferentiable("only its first output is differentiable, and another one is used")


def _additive(node: NodeGradient, mask: Expr | None, keys: Expr) -> Expr | None:
    """Return what a mask adds to the scores, [batch, 1, 1 or queries, keys]: 0, or `mask_filter_value`."""
    if mask is None:
        return None
    lowest = float(node.attribute("mask_filter_value", -10000.0))
    if mask.rank == 1:  # lengths
        inside = positions(keys, 1).unsqueeze(0) < mask.cast(ir.DataType.INT64).unsqueeze(1)
    else:
        inside = mask.cast(ir.DataType.BOOL)
    zero = keys.constant(0.0)
    added = inside.where(zero, lowest)
    if inside.rank == 2:
        return added.unsqueeze(1, 2)
    return added.unsqueeze(1) if inside.rank == 3 else added


def _attended(
    node: NodeGradient, q: Expr, k: Expr, v: Expr, masked: Expr | None, scores_bias: Expr | None, shared: int = 0
) -> Expr:
    """Return the attention of heads in [batch, length, heads * size], in the same form.

    Args:
        node: the node; it says how many heads there are, and the scale.
        q: queries.
        k: keys, which may be [batch, heads, length, size].
        v: values, which may be that too.
        masked: what masks add to the scores, in float32.
        scores_bias: what else is added.
        shared: heads of the keys and values, where several heads of the queries share one; 0: all have their own.
    """
    heads = int(node.attribute("num_heads"))
    size = _width(q) // heads
    scale = float(node.attribute("scale", 0.0) or 0.0) or 1.0 / math.sqrt(size)
    low = q.dtype
    q, k, v = _split(q, heads), _split(k, shared or heads), _split(v, shared or heads)
    if shared and shared != heads:
        k, v = _repeated(k, heads // shared), _repeated(v, heads // shared)
    scores = (q * scale @ k.T).wide()
    if (cap := float(node.attribute("softcap", 0.0) or 0.0)) > 0:
        scores = (scores / cap).tanh() * cap
    for added in (masked, scores_bias):
        scores = scores if added is None else scores + added.wide()
    if node.attribute("unidirectional", 0) or shared:
        scores = _causal(node, scores)
    y = scores.op("Softmax", axis=-1).cast(low) @ v
    y = y.transpose([0, 2, 1, 3])
    return y.reshape([0, 0, heads * _width(v)])


def _split(x: Expr, heads: int) -> Expr:
    return x if x.rank == 4 else x.reshape([0, 0, heads, _width(x) // heads]).transpose([0, 2, 1, 3])


def _repeated(x: Expr, times: int) -> Expr:
    """Give every one of `times` heads of the queries in a row the same keys or values."""
    heads = _width(x, 1)
    wide = x.unsqueeze(2).op("Expand", x.constant(np.array([1, 1, times, 1, 1])))
    length = x.size(2)
    return wide.reshape([0, heads * times, -1 if length is None else length, _width(x)])


def _causal(node: NodeGradient, scores: Expr) -> Expr:
    """Hide the keys after each query, and with a window those long before; the last query sees all keys."""
    queries, keys = positions(scores, 2), positions(scores, 3)
    offset = (keys.op("Size") - queries.op("Size")) if scores.size(2) is None or scores.size(3) is None else None
    if offset is None:
        offset = scores.constant(np.int64(_width(scores, 3) - _width(scores, 2)))
    place, other = (queries + offset).unsqueeze(1), keys.unsqueeze(0)
    seen = place >= other
    if (window := int(node.attribute("local_window_size", -1))) > 0:
        seen = seen & (place - other < window)
    return seen.where(scores, _LOWEST)


@_defined("GroupQueryAttention")
def group_query_attention(node: NodeGradient, query: Expr, *_: Expr | None) -> Expr:
    """Causal attention of a whole prompt, in which several heads of the queries share one of the keys."""
    _refuse_cache(node, node.optional(3))
    key, value, cosine, sine, rows, scores_bias = (node.optional(index) for index in (1, 2, 7, 8, 9, 10))
    if any(extra is not None for extra in node.inputs[11:]) or node.attribute("smooth_softmax", 0):
        raise NotDifferentiable("head_sink, scales, norms of queries and smooth_softmax are not supported")
    heads, shared = int(node.attribute("num_heads")), int(node.attribute("kv_num_heads"))
    if key is None or value is None:
        size = _width(query) // (heads + 2 * shared)
        sizes = query.constant(np.array([heads * size, shared * size, shared * size]))
        query, key, value = query.outputs("Split", sizes, count=3, axis=2)
    if node.attribute("do_rotary", 0) and cosine is not None and sine is not None:
        interleaved = bool(node.attribute("rotary_interleaved", 0))
        query = _rotated(query, rows, cosine, sine, heads, interleaved=interleaved)
        key = _rotated(key, rows, cosine, sine, shared, interleaved=interleaved)
    return _attended(node, query, key, value, None, scores_bias, shared)


@_defined("RotaryEmbedding")
def rotary_embedding(node: NodeGradient, x: Expr, rows: Expr, cosine: Expr, sine: Expr) -> Expr:
    if node.attribute("is_packed_batching", 0):
        raise NotDifferentiable("is_packed_batching is not supported; give each sequence a row")
    heads = int(node.attribute("num_heads", 0))
    if x.rank == 3 and not heads:
        part = int(node.attribute("rotary_embedding_dim", 0)) or 2 * _width(cosine)
        heads = _width(x) // part
    interleaved = bool(node.attribute("interleaved", 0))
    return _rotated(x, rows, cosine, sine, heads, interleaved=interleaved)


def _rotated(x: Expr, rows: Expr | None, cosine: Expr, sine: Expr, heads: int, *, interleaved: bool) -> Expr:
    """Rotate pairs of features by angles of their positions, those behind the angles excepted.

    Args:
        x: [batch, length, heads * size] or [batch, heads, length, size].
        rows: positions of each row, or of the first; None: they begin at 0.
        cosine: of the angles, [positions, half of the rotated size].
        sine: of the angles.
        heads: their number.
        interleaved: whether pairs are neighbours, rather than halves apart.
    """
    by_heads = x.rank == 4
    y = x if by_heads else _split(x, heads)
    places = positions(y, 2).unsqueeze(0)
    if rows is not None:
        places = rows if rows.rank == 2 else rows.reshape([-1, 1]) + places
    half, size = _width(cosine), _width(y)
    c, s = (table.op("Gather", places).unsqueeze(1) for table in (cosine, sine))
    rotated, rest = y.slice([0], [2 * half], [3]), y.slice([2 * half], [size], [3])
    if interleaved:
        pairs = rotated.reshape([0, 0, 0, half, 2])
        a, b = (pairs.slice([i], [i + 1], [4]).squeeze(4) for i in (0, 1))
        turned = concat([(a * c - b * s).unsqueeze(4), (b * c + a * s).unsqueeze(4)], 4).reshape([0, 0, 0, 2 * half])
    else:
        a, b = rotated.slice([0], [half], [3]), rotated.slice([half], [2 * half], [3])
        turned = concat([a * c - b * s, b * c + a * s], 3)
    y = turned if size == 2 * half else concat([turned, rest], 3)
    return y if by_heads else y.transpose([0, 2, 1, 3]).reshape([0, 0, heads * size])
