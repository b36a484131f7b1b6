"""Attention, written as separate operators, so that each gets its own precision and gradient."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.building import accept_name, builder_of, wrap
from amp_transpiler.paddle.nn.functional.stochastic import dropout

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Variable,
    key: Variable,
    value: Variable,
    attn_mask: Variable | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    training: bool = True,
) -> Variable:
    """`softmax(query @ key / sqrt(size) + mask) @ value`, for each head.

    Args:
        query: [batch, length, heads, size].
        key: [batch, other length, heads, size].
        value: in the shape of `key`.
        attn_mask: broadcasts to [batch, heads, length, other length]. A bool mask says which scores count, any other is
            added to the scores.
        dropout_p: the probability of each attention weight to be dropped in training.
        is_causal: whether a position attends only to positions up to its own.
        training: False to drop nothing.

    Returns:
        [batch, length, heads, size].

    Raises:
        InputError: an operand does not have four dimensions, or the size is not known.
    """
    b = builder_of(query, key, value, attn_mask)
    for operand in (query, key, value):
        if operand.ndim != 4:
            raise InputError(f"attention takes [batch, length, heads, size], got {operand!r}")
    size = query.shape[3]
    if size < 1:
        raise InputError(f"attention: the size of a head, axis 3, must be known, got {query!r}")
    q, v = (b.transpose(operand.value, [0, 2, 1, 3]) for operand in (query, value))
    k = b.transpose(key.value, [0, 2, 3, 1])
    # The query is scaled, not the scores: scores overflow float16 sooner, and there are more of them.
    scores = b.matmul(b.mul(q, 1.0 / math.sqrt(size)), k)
    if attn_mask is not None and attn_mask.value.dtype == ir.DataType.BOOL:
        scores = b.where(attn_mask.value, scores, -math.inf)
    elif attn_mask is not None:
        scores = b.add(scores, attn_mask.value)
    if is_causal:
        scores = b.where(_past(query, key), scores, -math.inf)
    shares = wrap(query, b.op("Softmax", [scores], {"axis": 3}))
    shares = dropout(shares, dropout_p, training=training)
    return wrap(query, b.transpose(b.matmul(shares.value, v), [0, 2, 1, 3]))


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
