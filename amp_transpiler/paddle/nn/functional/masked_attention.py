"""Computes attention that leaves parts out, by ranges of rows, lengths or a list; masks are written out in full."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, builder_of, size_at, wrap
from amp_transpiler.paddle.nn.functional.attention import refuse_weights, scaled_dot_product_attention
from amp_transpiler.paddle.tensor.creation import arange, full_like, zeros
from amp_transpiler.paddle.tensor.elementwise import clip
from amp_transpiler.paddle.tensor.logic import any as any_of, where
from amp_transpiler.paddle.tensor.reduction import sum as sum_of
from amp_transpiler.paddle.tensor.search import searchsorted
from amp_transpiler.paddle.tensor.shaping import concat, reshape, transpose, unsqueeze
from amp_transpiler.program.program import Variable

__all__ = ["flash_attn_varlen_qkvpacked", "flashmask_attention", "sparse_attention"]


def flashmask_attention(
    query: Variable,
    key: Variable,
    value: Variable,
    startend_row_indices: Variable | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    window_size: int | Sequence[int] | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    fixed_seed_offset: Variable | None = None,
    rng_name: str = "",
    training: bool = True,
) -> Variable:
    """Attend with scores whose columns each leave out a range of rows or two.

    Args:
        query: [batch, length, heads, size].
        key: [batch, other length, heads of the key, size]; several heads of the query may share one.
        value: in the shape of `key`.
        startend_row_indices: rows left out, [batch, 1 or heads of the key, other length, bounds], whole numbers. If
            causal, one bound `start` (rows from it on) or two, `start, end`; otherwise two, `start` (rows from it on)
            and `end` (rows before it), or four: `start, end` of two ranges.
        dropout: the probability of each attention weight to be dropped in training.
        causal: whether a position attends only to positions up to its own.
        window_size: how many positions before, and if not causal after, its own each attends to: one number or two.
            Instead of `startend_row_indices`.
        return_softmax_lse: must be False.
        return_seed_offset: must be False.
        fixed_seed_offset: Paddle's, no effect.
        rng_name: Paddle's, no effect.
        training: False to drop nothing.

    Returns:
        [batch, length, heads, size]; zeros for a row of which everything is left out.

    Raises:
        InputError: the number of bounds does not fit.
        OptionError: more than the result is asked for.
    """
    del fixed_seed_offset, rng_name
    if return_softmax_lse or return_seed_offset:
        refuse_weights("flashmask_attention", "return_softmax_lse and return_seed_offset")
    rows, columns = _positions(query, 1), _positions(key, 1)
    rows = unsqueeze(rows, 1)
    allowed = rows >= columns if causal else rows >= 0
    if window_size is not None:
        before, after = (window_size, window_size) if isinstance(window_size, int) else window_size
        allowed = allowed & (rows - columns <= before) & (columns - rows <= after)
    if startend_row_indices is None:
        return _attention(query, key, value, unsqueeze(allowed, [0, 1]), None, dropout, training)
    left_out = _left_out(startend_row_indices, unsqueeze(rows, [0, 1]), causal=causal)
    heads, bound_heads = (
        size_at(query, 2, "flashmask_attention"),
        size_at(startend_row_indices, 1, "flashmask_attention"),
    )
    if bound_heads not in (1, heads):
        left_out = left_out.repeat_interleave(heads // bound_heads, 1)
    return _attention(query, key, value, allowed & ~left_out, None, dropout, training)


def _left_out(bounds: Variable, rows: Variable, *, causal: bool) -> Variable:
    """Return which rows each column leaves out, [batch, heads, length, other length]."""
    count = size_at(bounds, 3, "flashmask_attention")
    if count not in ((1, 2) if causal else (2, 4)):
        raise InputError(
            f"flashmask_attention takes {'1 or 2' if causal else '2 or 4'} bounds a column where causal is {causal}, "
            f"got {bounds!r}"
        )
    starts = [unsqueeze(bounds[:, :, :, place].astype("int64"), 2) for place in range(count)]
    masked: Variable = rows >= starts[0]
    if not causal and count == 2:
        masked = masked | (rows < starts[1])
    elif count > 1:
        masked = masked & (rows < starts[1])
    return masked | ((rows >= starts[2]) & (rows < starts[3])) if count == 4 else masked


def flash_attn_varlen_qkvpacked(
    qkv: Variable,
    cu_seqlens_q: Variable,
    cu_seqlens_k: Variable,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
    dropout: float = 0.0,
    causal: bool = False,
    return_softmax: bool = False,
    fixed_seed_offset: Variable | None = None,
    rng_name: str = "",
    varlen_padded: bool = True,
    training: bool = True,
) -> tuple[Variable, None]:
    """Attend within each of several sequences that lie one behind the other in one tensor.

    The scores of all sequences with all are made, and those of different ones left out: memory grows with the square of
    the whole length.

    Args:
        qkv: [whole length, groups + 2, heads of the key, size]: the query's groups, the key, the value.
        cu_seqlens_q: where the sequences of the query begin, and the end: [sequences + 1], whole numbers.
        cu_seqlens_k: the same of key and value.
        max_seqlen_q: the length that each sequence of the query has room for, if padded.
        max_seqlen_k: the same of key and value.
        scale: factor on the scores.
        dropout: the probability of each attention weight to be dropped in training.
        causal: whether a position attends only to positions up to its own.
        return_softmax: must be False.
        fixed_seed_offset: Paddle's, no effect.
        rng_name: Paddle's, no effect.
        varlen_padded: whether each sequence has the same room, of which it fills the beginning; otherwise they lie
            without gaps.
        training: False to drop nothing.

    Returns:
        [whole length, heads, size], zeros where there is padding, and None.

    Raises:
        InputError: `qkv` does not have four dimensions.
        OptionError: the weights are asked for.
    """
    del fixed_seed_offset, rng_name
    if return_softmax:
        refuse_weights("flash_attn_varlen_qkvpacked", "return_softmax")
    if qkv.ndim != 4:
        raise InputError(f"flash_attn_varlen_qkvpacked takes [length, groups + 2, heads, size], got {qkv!r}")
    groups, heads, size = (size_at(qkv, axis, "flash_attn_varlen_qkvpacked") for axis in (1, 2, 3))
    # As in `flash_attn_qkvpacked`, heads g of all groups share the key's head g: they come one after the other.
    query = reshape(transpose(qkv[:, : groups - 2], [0, 2, 1, 3]), [1, -1, (groups - 2) * heads, size])
    key, value = (unsqueeze(qkv[:, groups - 2 + part], 0) for part in (0, 1))
    numbers = _positions(qkv, 0)
    of_query = _sequence_of(numbers, cu_seqlens_q, max_seqlen_q if varlen_padded else 0)
    of_key = _sequence_of(numbers, cu_seqlens_k, max_seqlen_k if varlen_padded else 0)
    allowed = (unsqueeze(of_query[0], 1) == of_key[0]) & of_key[2]
    if causal:
        allowed = allowed & (unsqueeze(of_query[1], 1) >= of_key[1])
    allowed = allowed & unsqueeze(of_query[2], 1)
    attended = _attention(query, key, value, unsqueeze(allowed, [0, 1]), scale, dropout, training)
    groups_first = transpose(reshape(attended[0], [-1, heads, groups - 2, size]), [0, 2, 1, 3])
    return reshape(groups_first, [-1, (groups - 2) * heads, size]), None


def _sequence_of(numbers: Variable, begins: Variable, room: int) -> tuple[Variable, Variable, Variable]:
    """Return the sequence that each row belongs to, its place in it, and whether it is no padding."""
    begins = begins.astype("int64")
    if not room:
        sequence = searchsorted(begins[1:], numbers, right=True)
        inside = numbers < begins[-1]
        sequence = clip(sequence, max=size_at(begins, 0, "flash_attn_varlen_qkvpacked") - 2)
        return sequence, numbers - begins[sequence], inside
    sequence, place = numbers // room, numbers % room
    return sequence, place, place < (begins[1:] - begins[:-1])[sequence]


def sparse_attention(
    query: Variable,
    key: Variable,
    value: Variable,
    sparse_csr_offset: Variable,
    sparse_csr_columns: Variable,
    key_padding_mask: Variable | None = None,
    attn_mask: Variable | None = None,
) -> Variable:
    """Attend with listed scores only. All scores are computed: the list saves neither time nor memory here.

    Args:
        query: [batch, heads, length, size].
        key: in the shape of `query`.
        value: in the shape of `query`.
        sparse_csr_offset: where the list of each row begins, and the end: [batch, heads, length + 1], whole numbers.
        sparse_csr_columns: the columns that count, row after row: [batch, heads, entries], whole numbers.
        key_padding_mask: [batch, length], 0 for a column that does not count.
        attn_mask: [length, length], 0 for a score that does not count.

    Returns:
        [batch, heads, length, size]; zeros for a row in which no score counts.
    """
    b = builder_of(query, key, value)
    length = size_at(query, 2, "sparse_attention")
    offset, columns = sparse_csr_offset.astype("int64"), sparse_csr_columns.astype("int64")
    entries = _positions(columns, 2)
    row = sum_of((unsqueeze(offset[:, :, 1:], 3) <= entries).astype("int64"), 2)
    place = where(row < length, row * length + columns, full_like(row, length * length))  # what is not listed: behind
    empty = zeros([1], "float32") + zeros([length * length + 1], "float32")
    shape = concat([_shape_of(columns)[:2], arange(length * length + 1, length * length + 2)])
    cleared = wrap(query, b.op("Expand", [empty.value, shape.value]))
    ones = full_like(place, 1.0, "float32")
    listed = wrap(query, b.op("ScatterElements", [cleared.value, place.value, ones.value], {"axis": 2}))
    allowed = reshape(listed[:, :, :-1], [0, 0, length, length]) > 0.5
    if key_padding_mask is not None:
        allowed = allowed & unsqueeze(key_padding_mask != 0, [1, 2])
    if attn_mask is not None:
        allowed = allowed & (attn_mask != 0)
    q, k, v = (transpose(x, [0, 2, 1, 3]) for x in (query, key, value))
    return transpose(_attention(q, k, v, allowed, None, 0.0, training=False), [0, 2, 1, 3])


def _shape_of(x: Variable) -> Variable:
    return wrap(x, builder_of(x).shape(x.value))


def _positions(x: Variable, axis: int) -> Variable:
    """Return 0, 1, ... along an axis, int64."""
    if x.shape[axis] >= 0:
        return arange(x.shape[axis])
    b = builder_of(x)
    size = b.squeeze(b.slice(b.shape(x.value), [axis], [axis + 1], [0]), [0])
    return wrap(x, b.op("Range", [b.constant(0), size, b.constant(1)]))


def _attention(
    query: Variable,
    key: Variable,
    value: Variable,
    allowed: Variable,
    scale: float | None,
    dropout: float,
    training: bool,
) -> Variable:
    """Attend with a mask that may leave a row nothing: such a row attends to all first, and becomes zeros."""
    some = any_of(allowed, 3, keepdim=True)
    attended = scaled_dot_product_attention(
        query, key, value, allowed | ~some, dropout, training=training, scale=scale, enable_gqa=True
    )
    b = builder_of(attended)
    has_key = b.transpose(some.value, [0, 2, 1, 3])
    return wrap(
        attended, b.where(has_key, attended.value, b.cast(b.constant(0.0), attended.value.dtype or ir.DataType.FLOAT))
    )


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
