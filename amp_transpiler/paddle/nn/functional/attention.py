"""Writes attention as separate operators, so that each gets its own precision and gradient."""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, builder_of, size_at, wrap
from amp_transpiler.paddle.nn.functional.stochastic import dropout
from amp_transpiler.program.program import Variable

__all__ = ["flash_attn_qkvpacked", "scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Variable,
    key: Variable,
    value: Variable,
    attn_mask: Variable | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    training: bool = True,
    backend: str | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Variable:
    """Return `softmax(query @ key * scale + mask) @ value`, for each head.

    Args:
        query: [batch, length, heads, size].
        key: [batch, other length, heads, size]; with `enable_gqa` fewer heads, each for several of the query's.
        value: in the shape of `key`.
        attn_mask: broadcasts to [batch, heads, length, other length]. A bool mask says which scores count, any other is
            added to the scores.
        dropout_p: the probability of each attention weight to be dropped in training.
        is_causal: whether a position attends only to positions up to its own.
        training: False to drop nothing.
        backend: Paddle's, no effect.
        scale: factor on the scores; 1 over the root of `size` unless given.
        enable_gqa: whether several heads of the query may share one of the key.

    Returns:
        [batch, length, heads, size].

    Raises:
        InputError: an operand does not have four dimensions, or the size is not known.
    """
    del backend
    b = builder_of(query, key, value, attn_mask)
    for operand in (query, key, value):
        if operand.ndim != 4:
            raise InputError(f"attention takes [batch, length, heads, size], got {operand!r}")
    if scale is None:
        scale = 1.0 / math.sqrt(size_at(query, 3, "attention without scale"))
    if enable_gqa:
        key, value = (_for_all_heads(query, operand) for operand in (key, value))
    q, v = (b.transpose(operand.value, [0, 2, 1, 3]) for operand in (query, value))
    k = b.transpose(key.value, [0, 2, 3, 1])
    # The query is scaled, not the scores: scores overflow float16 sooner, and there are more of them.
    scores = b.matmul(b.mul(q, float(scale)), k)
    if attn_mask is not None and attn_mask.value.dtype == ir.DataType.BOOL:
        scores = b.where(attn_mask.value, scores, -math.inf)
    elif attn_mask is not None:
        scores = b.add(scores, attn_mask.value)
    if is_causal:
        scores = b.where(_past(query, key), scores, -math.inf)
    shares = wrap(query, b.op("Softmax", [scores], {"axis": 3}))
    shares = dropout(shares, dropout_p, training=training)
    return wrap(query, b.transpose(b.matmul(shares.value, v), [0, 2, 1, 3]))


def _for_all_heads(query: Variable, x: Variable) -> Variable:
    """Return `x` with each head as often as there are heads of the query for it."""
    heads, shared_heads = size_at(query, 2, "attention with enable_gqa"), size_at(x, 2, "attention with enable_gqa")
    if heads % shared_heads:
        raise InputError(f"attention: {heads} heads of the query cannot share {shared_heads} of {x!r} evenly")
    b = builder_of(x)
    places = b.constant(np.repeat(np.arange(shared_heads), heads // shared_heads))
    return x if heads == shared_heads else wrap(x, b.op("Gather", [x.value, places], {"axis": 2}))


def flash_attn_qkvpacked(
    qkv: Variable,
    dropout: float = 0.0,
    causal: bool = False,
    return_softmax: bool = False,
    *,
    fixed_seed_offset: Variable | None = None,
    rng_name: str = "",
    training: bool = True,
) -> tuple[Variable, None]:
    """Attend with query, key and value in one tensor, computed as `scaled_dot_product_attention` does.

    Args:
        qkv: [batch, length, groups + 2, heads of the key, size]: the query's groups, the key, the value.
        dropout: the probability of each attention weight to be dropped in training.
        causal: whether a position attends only to positions up to its own.
        return_softmax: must be False, as in Paddle outside of its tests.
        fixed_seed_offset: Paddle's, no effect.
        rng_name: Paddle's, no effect.
        training: False to drop nothing.

    Returns:
        [batch, length, heads, size], and None.

    Raises:
        InputError: `qkv` does not have five dimensions.
        OptionError: the weights are asked for.
    """
    del fixed_seed_offset, rng_name
    if return_softmax:
        refuse_weights("flash_attn_qkvpacked", "return_softmax")
    if qkv.ndim != 5:
        raise InputError(f"flash_attn_qkvpacked takes [batch, length, groups + 2, heads, size], got {qkv!r}")
    b = builder_of(qkv)
    groups, heads, size = (size_at(qkv, axis, "flash_attn_qkvpacked") for axis in (2, 3, 4))
    parts = b.nodes("Split", [qkv.value, b.constant(np.array([groups - 2, 1, 1]))], {"axis": 2}, outputs=3)
    # As in Paddle, heads g of all groups share the key's head g: they come one after the other.
    query = b.reshape(b.transpose(parts[0], [0, 1, 3, 2, 4]), [0, 0, (groups - 2) * heads, size])
    key, value = (wrap(qkv, b.squeeze(part, [2])) for part in parts[1:])
    attended = scaled_dot_product_attention(
        wrap(qkv, query), key, value, None, dropout, causal, training, enable_gqa=True
    )
    groups_first = b.transpose(b.reshape(attended.value, [0, 0, heads, groups - 2, size]), [0, 1, 3, 2, 4])
    return wrap(qkv, b.reshape(groups_first, [0, 0, (groups - 2) * heads, size])), None


def refuse_weights(function: str, option: str) -> NoReturn:
    """Refuse to return more than the result of an attention.

    Raises:
        OptionError: always.
    """
    raise OptionError(f"{function}: {option} must be False: compute softmax(q @ k) to see weights")


def _past(query: Variable, key: Variable) -> ir.Value:
    """Whether position i of the query attends to position j of the key: j <= i."""
    rows, columns = query.shape[1], key.shape[1]
    b = builder_of(query)
    if rows > 0 and columns > 0:
        return b.constant(np.tri(rows, columns, dtype=bool))
    numbers = [
        b.op("Range", [b.constant(0), b.squeeze(b.slice(b.shape(x.value), [1], [2], [0]), [0]), b.constant(1)])
        for x in (query, key)
    ]
    return b.compare("GreaterOrEqual", b.unsqueeze(numbers[0], [1]), b.unsqueeze(numbers[1], [0]))


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
