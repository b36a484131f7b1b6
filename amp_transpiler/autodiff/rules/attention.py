"""Gradient of Attention, with the weights computed again; sums, exponentials and masks in float32."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable, SizesUnknown
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.autodiff.rules.placing import positions

_LOWEST = -3.0e38  # below any score that is not masked; -inf itself would make NaN of rows that are masked throughout


@gradient("Attention")
def attention(
    g: Expr,
    query: Expr,
    key: Expr,
    value: Expr,
    mask: Expr | None = None,
    *,
    node: NodeGradient,
    scale: float | None = None,
    softcap: float = 0.0,
) -> Gradients:
    """With `P = softmax(S)`: `dV = P'g`, `dS = P (gV' - sum(P gV'))`, `dQ = dS K`, `dK = dS' Q` (arXiv:2205.14135)."""
    _refuse(node)
    heads = _Heads.of(node, query, key)
    q = heads.split(query, heads.queries)
    # Half of the scale on each side, as ONNX defines it: the scores of float16 stay in range.
    root = math.sqrt(scale if scale is not None else 1.0 / math.sqrt(_size(q, 3)))
    q = q * root
    k = heads.repeat(heads.split(key, heads.shared)) * root
    v = heads.repeat(heads.split(value, heads.shared))
    grad = heads.split(g, heads.queries)

    scores, slope = _capped((q @ k.T).wide(), softcap)
    p = _softmax(_masked(node, scores, mask), mask)
    dp = (grad @ v.T).wide()
    to_scores = p * (dp - (p * dp).sum([-1]))
    ds = (to_scores if slope is None else to_scores * slope).cast(q.dtype)

    return (
        lambda: heads.join(ds @ k * root, query),
        lambda: heads.join(heads.unrepeat(ds.T @ q * root), key),
        lambda: heads.join(heads.unrepeat(p.cast(v.dtype).T @ grad), value),
        to_scores,
    )


def _refuse(node: NodeGradient) -> None:
    for index, name in ((4, "past_key"), (5, "past_value"), (6, "nonpad_kv_seqlen")):
        if node.optional(index) is not None:
            raise NotDifferentiable(f"its input '{name}', of a cache, has no gradient; train without a cache")
    for name in ("left_window_size", "right_window_size"):
        if node.attribute(name, -1) >= 0:
            raise NotDifferentiable(f"its attribute '{name}' is not supported; write the window as an attn_mask")
    if any(grad is not None for grad in node.grads[1:]):
        raise NotDifferentiable("only its first output is differentiable, and another one is used")


def _size(x: Expr, axis: int) -> int:
    size = x.size(axis)
    if size is None:
        raise SizesUnknown(f"dimension {axis} of '{x.name}' must be known, got {x.shape}")
    return size


@dataclasses.dataclass(frozen=True, slots=True)
class _Heads:
    """The heads of an Attention.

    Attributes:
        queries: number of heads of the queries.
        shared: number of heads of the keys and values; each serves `queries / shared` query heads in a row.
        packed: whether tensors are [batch, length, heads * size] instead of [batch, heads, length, size].
    """

    queries: int
    shared: int
    packed: bool

    @staticmethod
    def of(node: NodeGradient, query: Expr, key: Expr) -> _Heads:
        packed = query.rank != 4
        if query.rank == 3:
            queries, shared = node.attribute("q_num_heads"), node.attribute("kv_num_heads")
            if not queries or not shared:
                raise NotDifferentiable("inputs of 3 dimensions need the attributes q_num_heads and kv_num_heads")
        else:
            queries, shared = _size(query, 1), _size(key, 1)
        if queries % shared:
            raise NotDifferentiable(
                f"the {queries} heads of the queries must be a multiple of the {shared} of the keys and values"
            )
        return _Heads(queries, shared, packed)

    def split(self, x: Expr, heads: int) -> Expr:
        """Return `x` as [batch, heads, length, size]."""
        return x.reshape([0, 0, heads, _size(x, 2) // heads]).transpose([0, 2, 1, 3]) if self.packed else x

    def join(self, x: Expr, like: Expr) -> Expr:
        """Undo `split`, to the shape of `like`."""
        return x.transpose([0, 2, 1, 3]).reshape_like(like) if self.packed else x

    def repeat(self, x: Expr) -> Expr:
        """Give every query head its own copy of the keys or values."""
        if self.queries == self.shared:
            return x
        times = x.constant(np.array([1, 1, self.queries // self.shared, 1, 1]))
        return x.unsqueeze(2).op("Expand", times).reshape([0, self.queries, *_lengths(x)])

    def unrepeat(self, x: Expr) -> Expr:
        """Undo `repeat`: sum over the copies."""
        if self.queries == self.shared:
            return x
        return x.reshape([0, self.shared, self.queries // self.shared, *_lengths(x)]).sum([2], keepdims=False)


def _lengths(x: Expr) -> tuple[int, int]:
    """The last two dimensions for a Reshape, -1 for a length that is not known."""
    length, size = x.size(2), x.size(3)
    return -1 if length is None else length, 0 if size is None else size


def _capped(scores: Expr, cap: float) -> tuple[Expr, Expr | None]:
    """Return `cap tanh(scores / cap)` and its slope `1 - tanh^2`; without a cap the scores and None."""
    if cap <= 0:
        return scores, None
    bent = (scores / cap).tanh()
    return bent * cap, (1 + bent) * (1 - bent)


def _masked(node: NodeGradient, scores: Expr, mask: Expr | None) -> Expr:
    """Return the scores plus the mask, -inf where nothing is attended to."""
    if mask is not None:
        have, want = mask.size(-1), scores.size(-1)
        if have is not None and want is not None and have not in (1, want):
            raise NotDifferentiable(f"its mask, for {have} of {want} keys, must be for all of them: pad it")
        if mask.dtype == ir.DataType.BOOL:
            scores = mask.where(scores, -math.inf)
        else:
            scores += mask.cast(scores.dtype)
    if node.attribute("is_causal", 0):
        query, key = positions(scores, 2).unsqueeze(1), positions(scores, 3).unsqueeze(0)
        scores = (query >= key).where(scores, -math.inf)
    return scores


def _softmax(scores: Expr, mask: Expr | None) -> Expr:
    """The attention weights; all zero for a query that attends to nothing."""
    if mask is None:  # a causal mask by itself leaves every query its own position or an earlier one
        return scores.op("Softmax", axis=-1)
    masked = scores < _LOWEST
    return masked.where(0, masked.where(_LOWEST, scores).op("Softmax", axis=-1))
