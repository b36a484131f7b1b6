"""Gradient of Attention, with the weights computed again; sums, exponentials and masks in float32."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.graph.builder import rank_of

_LOWEST = -3.0e38  # below any score that is not masked; -inf itself would make NaN of rows that are masked throughout


@gradient("Attention")
def attention(n: NodeGradient) -> list[ir.Value | None]:
    """With `P = softmax(S)`: `dV = P'g`, `dS = P (gV' - sum(P gV'))`, `dQ = dS K`, `dK = dS' Q`."""
    _refuse(n)
    b = n.b
    heads, shared = _head_counts(n)
    scale = n.attribute("scale")
    q = _split_heads(n, n.input(0), heads)
    root = math.sqrt(scale if scale is not None else 1.0 / math.sqrt(_size(n, q, 3)))
    q = b.mul(q, root)
    k = b.mul(_repeat(n, _split_heads(n, n.input(1), shared), heads, shared), root)
    v = _repeat(n, _split_heads(n, n.input(2), shared), heads, shared)
    g = _split_heads(n, n.g, heads)

    capped, slope = _scores(n, q, k)
    p = _softmax(n, _masked(n, capped))
    dp = b.high(b.matmul(g, b.swap_last(v)))
    ds = b.mul(p, b.sub(dp, b.sum(b.mul(p, dp), [-1])))
    dmask = ds if n.wants(3) else None
    ds = b.cast(ds if slope is None else b.mul(ds, slope), q.dtype)

    dq = b.mul(b.matmul(ds, k), root) if n.wants(0) else None
    dk = b.mul(b.matmul(b.swap_last(ds), q), root) if n.wants(1) else None
    dv = b.matmul(b.swap_last(b.cast(p, v.dtype)), g) if n.wants(2) else None
    return [
        _join_heads(n, dq, 0),
        _join_heads(n, _unrepeat(n, dk, heads, shared), 1),
        _join_heads(n, _unrepeat(n, dv, heads, shared), 2),
        dmask,
    ]


def _refuse(n: NodeGradient) -> None:
    for index, name in ((4, "past_key"), (5, "past_value"), (6, "nonpad_kv_seqlen")):
        if n.optional(index) is not None:
            raise n.error(f"its input '{name}', of a cache, has no gradient; train without a cache")
    for name in ("left_window_size", "right_window_size"):
        if n.attribute(name, -1) >= 0:
            raise n.error(f"its attribute '{name}' is not supported; write the window as an attn_mask")
    if any(grad is not None for grad in n.grads[1:]):
        raise n.error("only its first output is differentiable, and another one is used")


def _size(n: NodeGradient, value: ir.Value, axis: int) -> int:
    size = value.shape[axis] if value.shape is not None else None
    if not isinstance(size, int):
        raise n.error(f"dimension {axis} of '{value.name}' must be known, got {value.shape}")
    return size


def _head_counts(n: NodeGradient) -> tuple[int, int]:
    """How many heads the queries have, and the keys and values."""
    if rank_of(n.input(0)) == 3:
        heads, shared = n.attribute("q_num_heads"), n.attribute("kv_num_heads")
        if not heads or not shared:
            raise n.error("inputs of 3 dimensions need the attributes q_num_heads and kv_num_heads")
    else:
        heads, shared = _size(n, n.input(0), 1), _size(n, n.input(1), 1)
    if heads % shared:
        raise n.error(f"the {heads} heads of the queries must be a multiple of the {shared} of the keys and values")
    return heads, shared


def _split_heads(n: NodeGradient, x: ir.Value, heads: int) -> ir.Value:
    """[batch, length, heads * size] as [batch, heads, length, size]; that form as it is."""
    if rank_of(n.input(0)) == 4:
        return x
    return n.b.transpose(n.b.reshape(x, [0, 0, heads, _size(n, x, 2) // heads]), [0, 2, 1, 3])


def _join_heads(n: NodeGradient, x: ir.Value | None, index: int) -> ir.Value | None:
    """Undo `_split_heads`, to the shape of input `index`."""
    if x is None or rank_of(n.input(0)) == 4:
        return x
    return n.b.reshape_like(n.b.transpose(x, [0, 2, 1, 3]), n.input(index))


def _repeat(n: NodeGradient, x: ir.Value, heads: int, shared: int) -> ir.Value:
    """Give every query head its own copy of the keys or values: each of theirs several times in a row."""
    if heads == shared:
        return x
    times = n.b.constant(np.array([1, 1, heads // shared, 1, 1]))
    copies = n.b.op("Expand", [n.b.unsqueeze(x, [2]), times])
    length, size = _lengths(x)
    return n.b.reshape(copies, [0, heads, length, size])


def _unrepeat(n: NodeGradient, x: ir.Value | None, heads: int, shared: int) -> ir.Value | None:
    """Undo `_repeat`: the sum over the copies."""
    if x is None or heads == shared:
        return x
    length, size = _lengths(x)
    return n.b.sum(n.b.reshape(x, [0, shared, heads // shared, length, size]), [2], keepdims=False)


def _lengths(x: ir.Value) -> tuple[int, int]:
    """The last two dimensions, -1 for a length that is not known."""
    assert x.shape is not None  # made by _split_heads
    length, size = x.shape[2], x.shape[3]
    return length if isinstance(length, int) else -1, size if isinstance(size, int) else 0


def _scores(n: NodeGradient, q: ir.Value, k: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """The scores before masking, and the slope of their cap if there is one."""
    b = n.b
    scores = b.high(b.matmul(q, b.swap_last(k)))
    cap = n.attribute("softcap", 0.0)
    if cap <= 0:
        return scores, None
    bent = b.op("Tanh", [b.div(scores, cap)])
    return b.mul(bent, cap), b.mul(b.add(bent, 1.0), b.sub(1.0, bent))


def _masked(n: NodeGradient, scores: ir.Value) -> ir.Value:
    """The scores with the mask added and what is not attended to at -inf."""
    b, mask = n.b, n.optional(3)
    if mask is not None:
        have, want = (value.shape[-1] if value.shape is not None else None for value in (mask, scores))
        if isinstance(have, int) and isinstance(want, int) and have not in (1, want):
            raise n.error(f"its mask, for {have} of {want} keys, must be for all of them: pad it")
        if mask.dtype == ir.DataType.BOOL:
            scores = b.where(mask, scores, -math.inf)
        else:
            scores = b.add(scores, b.cast(mask, scores.dtype))
    if n.attribute("is_causal", 0):
        query, key = b.unsqueeze(_positions(n, scores, 2), [1]), b.unsqueeze(_positions(n, scores, 3), [0])
        scores = b.where(b.compare("GreaterOrEqual", query, key), scores, -math.inf)
    return scores


def _positions(n: NodeGradient, scores: ir.Value, axis: int) -> ir.Value:
    """0, 1, ... up to the size of an axis."""
    size = scores.shape[axis] if scores.shape is not None else None
    if isinstance(size, int):
        return n.b.constant(np.arange(size))
    sizes = n.b.slice(n.b.op("Shape", [scores]), [axis], [axis + 1], [0])
    return n.b.op("Range", [n.b.constant(0), n.b.squeeze(sizes, [0]), n.b.constant(1)])


def _softmax(n: NodeGradient, scores: ir.Value) -> ir.Value:
    """The attention weights; all zero for a query that attends to nothing."""
    b = n.b
    if n.optional(3) is None:  # a causal mask alone leaves every query its own position or an earlier one
        return b.op("Softmax", [scores], {"axis": -1})
    masked = b.compare("Less", scores, _LOWEST)
    return b.where(masked, 0.0, b.op("Softmax", [b.where(masked, _LOWEST, scores)], {"axis": -1}))
