"""Reading and writing by position, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7 - 1
M = np.arange(12, dtype=np.float32).reshape(4, 3) / 5
ROWS = np.array([2, 0, 2])
ONCE = np.array([2, 0])
NEW = np.array([[9.0, 8.0, 7.0], [6.0, 5.0, 4.0]], np.float32)
PLACES = np.array([[0, 2, 1], [1, 1, 0]])
PAIRS = np.array([[0, 1], [3, 2], [0, 1]])
MASK = np.array([[True, False, True], [False, False, True], [True, True, False], [False, True, False]])


def scattered(x, i, new):
    """Paddle's scatter that does not overwrite."""
    return x.index_fill(0, i, 0.0).index_add(0, i, new)


CASES = {
    "slice": case(lambda x: paddle.slice(x, [0, 2], [1, -3], [2, 3]), lambda x: x[1:2, :, -3:3], X),
    "slice by variables": case(lambda x: paddle.slice(x, [2], [1], [paddle.shape(x)[1]]), lambda x: x[:, :, 1:3], X),
    "strided_slice": case(
        lambda x: paddle.strided_slice(x, [1, 2], [2, 0], [-4, 4], [-1, 2]), lambda x: x.flip([1])[:, :, 0:4:2], X
    ),
    "narrow": case(lambda x: paddle.narrow(x, 2, 1, 2), lambda x: x.narrow(2, 1, 2), X),
    "crop": case(lambda x: paddle.crop(x, [1, 2, -1], [1, 0, 1]), lambda x: x[1:2, 0:2, 1:], X),
    "gather": case(paddle.gather, lambda x, i: x[i], M, ROWS),
    "gather axis": case(lambda x, i: paddle.gather(x, i, 1), lambda x, i: x[:, i], M, ROWS),
    "index_select": case(lambda x, i: paddle.index_select(x, i, 1), lambda x, i: x.index_select(1, i), M, ROWS),
    "gather_nd": case(paddle.gather_nd, lambda x, i: x[i[:, 0], i[:, 1]], M, PAIRS, fixed=True),
    "index_sample": case(paddle.index_sample, lambda x, i: x.gather(1, i), M[:2], PLACES),
    "take": case(paddle.take, torch.take, M, PLACES),
    "take wrap": case(
        lambda x, i: paddle.take(x, i + 11, "wrap"), lambda x, i: torch.take(x, (i + 11) % 12), M, PLACES
    ),
    "take clip": case(
        lambda x, i: paddle.take(x, i + 11, "clip"), lambda x, i: torch.take(x, (i + 11).clamp(0, 11)), M, PLACES
    ),
    "take_along_axis": case(
        lambda x, i: paddle.take_along_axis(x, i, 0, False), lambda x, i: torch.take_along_dim(x, i, 0), M, PLACES
    ),
    "take_along_axis broadcast": case(
        lambda x, i: paddle.take_along_axis(x, i, 1), lambda x, i: torch.take_along_dim(x, i, 1), M, PLACES[:1]
    ),
    "masked_select": case(paddle.masked_select, torch.masked_select, M, MASK),
    "masked_select row": case(paddle.masked_select, torch.masked_select, M, MASK[0]),
    "nonzero": case(paddle.nonzero, torch.nonzero, M, differentiable=False),
    "nonzero as_tuple": case(lambda x: paddle.nonzero(x, True), lambda x: torch.nonzero(x, as_tuple=True), MASK),
    "scatter": case(paddle.scatter, lambda x, i, new: x.index_copy(0, i, new), M, ONCE, NEW),
    "scatter of a column": case(paddle.scatter, lambda x, i, new: x.index_copy(0, i[:, 0], new), M, ONCE[:, None], NEW),
    "scatter add": case(lambda x, i, n: paddle.scatter(x, i, n, False), scattered, M, np.array([2, 2]), NEW),
    "scatter_nd_add": case(
        paddle.scatter_nd_add, lambda x, i, n: x.index_put((i[:, 0], i[:, 1]), n, True), M, PAIRS, NEW[0]
    ),
    "scatter_nd": case(
        lambda i, n: paddle.scatter_nd(i, n, [4, 3]),
        lambda i, n: torch.zeros(4, 3).index_put((i[:, 0], i[:, 1]), n, True),
        PAIRS,
        NEW[0],
    ),
    "put_along_axis": case(
        lambda x, i, n: paddle.put_along_axis(x, i, n, 0, broadcast=False),
        lambda x, i, n: x.scatter(0, i, n),
        M,
        np.array([[0, 2, 1], [1, 1, 0]]),
        NEW,
    ),
    "put_along_axis of a number": case(
        lambda x, i: paddle.put_along_axis(x, i, 2.0, 1),
        lambda x, i: x.scatter(1, i.expand(4, -1), 2.0),
        M,
        PLACES[:1, :2],
    ),
    "put_along_axis add": case(
        lambda x, i, n: paddle.put_along_axis(x, i, n, 0, "add", broadcast=False),
        lambda x, i, n: x.scatter_add(0, i, n),
        M,
        PLACES * 0,
        NEW,
    ),
    "put_along_axis mul": case(
        lambda x, i, n: paddle.put_along_axis(x, i, n, 0, "mul", broadcast=False),
        lambda x, i, n: x.scatter_reduce(0, i, n, "prod"),
        M,
        PLACES,
        NEW,
        differentiable=False,
    ),
    "put_along_axis amax without self": case(
        lambda x, i, n: paddle.put_along_axis(x, i, n, 0, "amax", False, False),
        lambda x, i, n: x.scatter_reduce(0, i, n, "amax", include_self=False),
        M,
        PLACES,
        -NEW,
        differentiable=False,
    ),
    "scatter_add": case(
        lambda x, i, n: paddle.scatter_add(x, 0, i, n), lambda x, i, n: x.scatter_add(0, i, n), M, PLACES, NEW
    ),
    "index_add": case(
        lambda x, i, n: paddle.index_add(x, i, 0, n), lambda x, i, n: x.index_add(0, i, n), M, ONCE * 0, NEW
    ),
    "index_add axis": case(
        lambda x, i, n: paddle.index_add(x, i, 1, n), lambda x, i, n: x.index_add(1, i, n), M, ONCE, M[:, :2] * 2
    ),
    "index_fill": case(lambda x, i: paddle.index_fill(x, i, 1, -1.0), lambda x, i: x.index_fill(1, i, -1.0), M, ONCE),
    "index_put": case(
        lambda x, i, j, n: paddle.index_put(x, (i, j), n),
        lambda x, i, j, n: x.index_put((i, j), n),
        M,
        np.array([0, 3]),
        np.array([2, 1]),
        NEW[0, :2],
    ),
    "index_put add": case(
        lambda x, i, n: paddle.index_put(x, (i,), n, True), lambda x, i, n: x.index_put((i,), n, True), M, ONCE * 0, NEW
    ),
    "index_put mask": case(lambda x, m: paddle.index_put(x, (m,), 4.0), lambda x, m: x.masked_fill(m, 4.0), M, MASK),
    "masked_scatter": case(
        paddle.masked_scatter, lambda x, m, v: x.masked_scatter(m, v), M, MASK, np.arange(8, dtype=np.float32)
    ),
    "select_scatter": case(
        lambda x, v: paddle.select_scatter(x, v, 0, -1),
        lambda x, v: torch.select_scatter(x, v, 0, -1),
        M,
        NEW[0],
        fixed=True,
    ),
    "slice_scatter": case(
        lambda x, v: paddle.slice_scatter(x, v, [0], [0], [4], [2]),
        lambda x, v: torch.slice_scatter(x, v, 0, 0, 4, 2),
        M,
        NEW,
        fixed=True,
    ),
    "shard_index": case(
        lambda i: paddle.shard_index(i, 4, 2, 1),
        lambda i: torch.where(i >= 2, i - 2, -1),
        ROWS,
    ),
}

CASES |= {
    "argwhere": case(paddle.argwhere, torch.argwhere, MASK),
    "scatter_reduce": case(
        lambda x, i, n: paddle.scatter_reduce(x, 0, i, n, "sum"),
        lambda x, i, n: x.scatter_reduce(0, i, n, "sum"),
        M,
        PLACES,
        NEW,
    ),
    "scatter_reduce without self": case(
        lambda x, i, n: paddle.scatter_reduce(x, 0, i, n, "prod", include_self=False),
        lambda x, i, n: x.scatter_reduce(0, i, n, "prod", include_self=False),
        M,
        PLACES,
        NEW,
        differentiable=False,
    ),
    "diagonal_scatter": case(
        lambda x, y: paddle.diagonal_scatter(x, y, -1),
        lambda x, y: torch.diagonal_scatter(x, y, -1),
        M,
        NEW[0],
        fixed=True,
    ),
}


test_value_and_gradient = family_test(CASES)
