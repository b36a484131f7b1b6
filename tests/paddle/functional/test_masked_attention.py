"""Attention of which parts are left out, against torch's with the same mask written out."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import static
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
TF = torch.nn.functional

RANDOM = np.random.default_rng(41)
LENGTH = 5
Q, K, V = (RANDOM.normal(size=(2, LENGTH, 4, 3)).astype(np.float32) for _ in range(3))
SHARED = [RANDOM.normal(size=(2, LENGTH, 2, 3)).astype(np.float32) for _ in range(2)]
ROWS, COLUMNS = np.ogrid[:LENGTH, :LENGTH]


def masked(q, k, v, allowed, scale=None):
    """Attention of [batch, length, heads, size], zeros for rows without a score."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (scale or q.shape[3] ** -0.5)
    shares = torch.where(allowed, scores, -torch.inf).softmax(3)
    return (torch.where(allowed.any(3, keepdim=True), shares, 0.0) @ v).transpose(1, 2)


def dense(bounds, causal):
    """The mask that ranges of rows stand for, column by column."""
    batch, heads, length, count = bounds.shape
    out = np.ones((batch, heads, LENGTH, length), bool)
    for place in np.ndindex(batch, heads, length):
        column, bound = out[place[0], place[1], :, place[2]], bounds[place]
        column[bound[0] : bound[1] if count == (2 if causal else 4) else None] = False
        if causal:
            column[: place[2]] = False
        elif count == 4:
            column[bound[2] : bound[3]] = False
        else:
            column[: bound[1]] = False
    return torch.from_numpy(out)


def flashmask(bounds, causal):
    heads = bounds.shape[1]
    return case(
        lambda q, k, v, n: F.flashmask_attention(q, k, v, n, causal=causal),
        lambda q, k, v, n: masked(q, k, v, dense(n.numpy(), causal).repeat_interleave(4 // heads, 1)),
        Q,
        *SHARED,
        bounds,
        fixed=True,
    )


def bounds(heads, *columns):
    return np.broadcast_to(np.stack(columns, 1), (2, heads, LENGTH, len(columns))).astype(np.int32)


LATE, EARLY, ENDS = np.array([3, 4, 5, 5, 5]), np.array([0, 0, 1, 2, 3]), np.array([4, 5, 5, 5, 5])
LENGTHS = np.array([0, 2, 5], np.int32)
PACKED = RANDOM.normal(size=(6, 4, 2, 3)).astype(np.float32)


def packed(x, sequence, place, causal):
    """Two groups of the query, a key and a value of two heads, in one sequence."""
    query = x[:, :2].transpose(1, 2).reshape(1, len(x), 4, 3)
    sequence, place = torch.tensor(sequence), torch.tensor(place)
    allowed = (sequence[:, None] == sequence) & (sequence >= 0)
    allowed = allowed & (place[:, None] >= place) if causal else allowed
    attended = masked(query, x[None, :, 2], x[None, :, 3], allowed[None, None], 0.7)
    return attended.reshape(len(x), 2, 2, 3).transpose(1, 2).reshape(len(x), 4, 3)


LISTED = [[0, 2, 4, 4, 7, 9], [0, 1, 2, 3, 8, 9]]
PICKED = RANDOM.permuted(np.tile(np.arange(LENGTH), (2, 4, 2)).reshape(2, 4, 2, LENGTH), axis=3).reshape(2, 4, -1)[
    ..., :9
]
OFFSETS = np.stack([np.array([LISTED[0]] * 4), np.array([LISTED[1]] * 4)]).astype(np.int32)


def listed(offset, columns):
    out = np.zeros((2, 4, LENGTH, LENGTH), bool)
    for place in np.ndindex(2, 4):
        for row in range(LENGTH):
            out[place][row, columns[place][offset[place][row] : offset[place][row + 1]]] = True
    return torch.from_numpy(out)


PADDING = np.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 1]], np.int64)
BAND = (abs(ROWS - COLUMNS) < 3).astype(np.int64)

CASES = {
    "flashmask_attention": case(
        F.flashmask_attention,
        lambda q, k, v: masked(q, k, v, torch.ones(5, 5, dtype=torch.bool)[None, None]),
        Q,
        K,
        V,
        fixed=True,
    ),
    "flashmask_attention window": case(
        lambda q, k, v: F.flashmask_attention(q, k, v, window_size=(2, 1)),
        lambda q, k, v: masked(q, k, v, torch.from_numpy((ROWS - COLUMNS <= 2) & (COLUMNS - ROWS <= 1))[None, None]),
        Q,
        K,
        V,
        fixed=True,
    ),
    "flashmask_attention causal window": case(
        lambda q, k, v: F.flashmask_attention(q, k, v, causal=True, window_size=1),
        lambda q, k, v: masked(q, k, v, torch.from_numpy((ROWS - COLUMNS <= 1) & (COLUMNS <= ROWS))[None, None]),
        Q,
        K,
        V,
        fixed=True,
    ),
    "flashmask_attention causal from": flashmask(bounds(1, LATE), True),
    "flashmask_attention causal from to": flashmask(bounds(2, LATE, ENDS), True),
    "flashmask_attention from and before": flashmask(bounds(1, LATE, EARLY), False),
    "flashmask_attention two ranges": flashmask(bounds(4, LATE, ENDS, EARLY * 0, EARLY), False),
    "flashmask_attention without a row": flashmask(bounds(1, LATE * 0 + 2), True),
    "flash_attn_varlen_qkvpacked": case(
        lambda x, n: F.flash_attn_varlen_qkvpacked(x, n, n, 3, 3, 0.7, varlen_padded=False)[0],
        lambda x, n: packed(x, [0, 0, 1, 1, 1, -1], [0, 1, 0, 1, 2, 0], False),
        PACKED,
        LENGTHS,
        fixed=True,
    ),
    "flash_attn_varlen_qkvpacked padded and causal": case(
        lambda x, n: F.flash_attn_varlen_qkvpacked(x, n, n, 3, 3, 0.7, 0.0, True)[0],
        lambda x, n: packed(x, [0, 0, -1, 1, 1, 1], [0, 1, 2, 0, 1, 2], True),
        PACKED,
        LENGTHS,
        fixed=True,
    ),
    "sparse_attention": case(
        F.sparse_attention,
        lambda q, k, v, o, c: masked(*(x.transpose(1, 2) for x in (q, k, v)), listed(o.numpy(), c.numpy())).transpose(
            1, 2
        ),
        *(x.transpose(0, 2, 1, 3).copy() for x in (Q, K, V)),
        OFFSETS,
        PICKED.astype(np.int32),
        fixed=True,
    ),
    "sparse_attention with masks": case(
        F.sparse_attention,
        lambda q, k, v, o, c, p, m: masked(
            *(x.transpose(1, 2) for x in (q, k, v)),
            listed(o.numpy(), c.numpy()) & (p != 0)[:, None, None] & (m != 0),
        ).transpose(1, 2),
        *(x.transpose(0, 2, 1, 3).copy() for x in (Q, K, V)),
        OFFSETS,
        PICKED.astype(np.int32),
        PADDING,
        BAND,
        fixed=True,
    ),
}
test_beside_torch = family_test(CASES)


def test_what_is_refused():
    with static.program_guard(static.Program(), static.Program()):
        q, n = static.data("q", [2, 5, 4, 3]), static.data("n", [2, 1, 5, 4], "int32")
        with pytest.raises(OptionError, match="return_softmax_lse and return_seed_offset must be False"):
            F.flashmask_attention(q, q, q, return_softmax_lse=True)
        with pytest.raises(InputError, match="1 or 2 bounds a column where causal is True"):
            F.flashmask_attention(q, q, q, n, causal=True)
        with pytest.raises(InputError, match="2 or 4 bounds a column where causal is False"):
            F.flashmask_attention(q, q, q, static.data("m", [2, 1, 5, 1], "int32"))
        with pytest.raises(OptionError, match="return_softmax must be False"):
            F.flash_attn_varlen_qkvpacked(q, n, n, 5, 5, 1.0, return_softmax=True)
        with pytest.raises(InputError, match=r"takes \[length, groups \+ 2, heads, size\]"):
            F.flash_attn_varlen_qkvpacked(static.data("p", [2, 5, 4]), n, n, 5, 5, 1.0)
