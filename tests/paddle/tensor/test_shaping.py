"""Shapes, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7
M = np.arange(6, dtype=np.float32).reshape(2, 3)
V = np.array([1.0, 2.0, 3.0], np.float32)
I = np.array([[0, 1, -2], [3, 4, 1]])  # noqa: E741  # beside X

CASES = {
    "reshape": case(lambda x: paddle.reshape(x, [0, -1]), lambda x: x.reshape(2, -1), X),
    "reshape by variables": case(
        lambda x: paddle.reshape(x, [paddle.shape(x)[0], 2, -1]), lambda x: x.reshape(2, 2, -1), X
    ),
    "reshape by a vector": case(
        lambda x, y: paddle.reshape(x, paddle.shape(y)), lambda x, y: x.reshape(3, 2), M, M.T.copy(), fixed=True
    ),
    "view": case(lambda x: paddle.view(x, [-1, 4]), lambda x: x.reshape(-1, 4), X),
    "view_as": case(paddle.view_as, lambda x, y: x.reshape(y.shape), M, M.T.copy()),
    "ravel": case(paddle.ravel, torch.ravel, X),
    "squeeze": case(paddle.squeeze, torch.squeeze, X[:, None, :, None], fixed=True),
    "squeeze axis": case(lambda x: paddle.squeeze(x, 1), lambda x: x.squeeze(1), X[:, None], fixed=True),
    "unsqueeze": case(lambda x: paddle.unsqueeze(x, [0, 2]), lambda x: x[None, :, None], X),
    "flatten": case(lambda x: paddle.flatten(x, 1), lambda x: x.flatten(1), X),
    "flatten first": case(lambda x: paddle.flatten(x, 0, 1), lambda x: x.flatten(0, 1), X),
    "unflatten": case(lambda x: paddle.unflatten(x, 2, [2, -1]), lambda x: x.unflatten(2, [2, -1]), X),
    "unflatten first": case(lambda x: paddle.unflatten(x, 0, [1, -1]), lambda x: x.unflatten(0, [1, -1]), X),
    "atleast_1d": case(paddle.atleast_1d, torch.atleast_1d, np.float32(3).reshape(())),
    "atleast_2d": case(paddle.atleast_2d, torch.atleast_2d, V),
    "atleast_3d": case(paddle.atleast_3d, torch.atleast_3d, V, M),
    "shape": case(paddle.shape, lambda x: torch.tensor(x.shape), X),
    "numel": case(paddle.numel, lambda x: torch.tensor(x.numel()), X),
    "rank": case(paddle.rank, lambda x: torch.tensor(x.ndim, dtype=torch.int32), X),
    "transpose": case(lambda x: paddle.transpose(x, [2, 0, -2]), lambda x: x.permute(2, 0, 1), X),
    "permute": case(lambda x: paddle.permute(x, 2, 0, 1), lambda x: x.permute(2, 0, 1), X),
    "matrix_transpose": case(paddle.matrix_transpose, lambda x: x.mT, X),
    "t": case(paddle.t, torch.t, M),
    "t of a vector": case(paddle.t, torch.t, V),
    "swapaxes": case(lambda x: paddle.swapaxes(x, 0, -1), lambda x: x.swapaxes(0, -1), X),
    "moveaxis": case(lambda x: paddle.moveaxis(x, 0, -1), lambda x: x.moveaxis(0, -1), X),
    "moveaxis of two": case(lambda x: paddle.moveaxis(x, [0, 1], [2, 0]), lambda x: x.moveaxis((0, 1), (2, 0)), X),
    "flip": case(lambda x: paddle.flip(x, [0, -1]), lambda x: x.flip([0, -1]), X),
    "reverse": case(lambda x: paddle.reverse(x, 1), lambda x: x.flip([1]), X),
    "rot90": case(paddle.rot90, torch.rot90, M),
    "rot90 twice": case(lambda x: paddle.rot90(x, 2), lambda x: torch.rot90(x, 2), M),
    "rot90 back": case(lambda x: paddle.rot90(x, -1, [1, 2]), lambda x: torch.rot90(x, -1, [1, 2]), X),
    "roll": case(lambda x: paddle.roll(x, 1), lambda x: torch.roll(x, 1), X),
    "roll axis": case(lambda x: paddle.roll(x, 5, 2), lambda x: torch.roll(x, 5, 2), X, fixed=True),
    "roll axes": case(lambda x: paddle.roll(x, [1, -2], [0, 2]), lambda x: torch.roll(x, [1, -2], [0, 2]), X),
    "concat": case(lambda x, y: paddle.concat([x, y], 1), lambda x, y: torch.cat([x, y], 1), X, X[:, :2]),
    "cat": case(lambda x, y: paddle.cat([x, y], -1), lambda x, y: torch.cat([x, y], -1), X, X),
    "concat of two types": case(lambda x, i: paddle.concat([x, i]), lambda x, i: torch.cat([x, i]), M, I),
    "stack": case(lambda x, y: paddle.stack([x, y], 1), lambda x, y: torch.stack([x, y], 1), M, M + 1),
    "stack last": case(lambda x, y: paddle.stack([x, y], -1), lambda x, y: torch.stack([x, y], -1), M, M + 1),
    "hstack": case(lambda x, y: paddle.hstack([x, y]), lambda x, y: torch.hstack([x, y]), M, M + 1),
    "hstack of vectors": case(lambda x, y: paddle.hstack([x, y]), lambda x, y: torch.hstack([x, y]), V, V + 1),
    "vstack": case(lambda x, y: paddle.vstack([x, y]), lambda x, y: torch.vstack([x, y]), V, V + 1),
    "row_stack": case(lambda x, y: paddle.row_stack([x, y]), lambda x, y: torch.vstack([x, y]), M, M),
    "dstack": case(lambda x, y: paddle.dstack([x, y]), lambda x, y: torch.dstack([x, y]), M, M + 1),
    "column_stack": case(lambda x, y: paddle.column_stack([x, y]), lambda x, y: torch.column_stack([x, y]), V, V + 1),
    "split": case(lambda x: paddle.split(x, 2, 2), lambda x: torch.split(x, 2, 2), X),
    "split sizes": case(lambda x: paddle.split(x, [1, 2], 1), lambda x: torch.split(x, [1, 2], 1), X),
    "split rest": case(lambda x: paddle.split(x, [1, -1], 1), lambda x: torch.split(x, [1, 2], 1), X, fixed=True),
    "chunk": case(lambda x: paddle.chunk(x, 2, 1), lambda x: torch.chunk(x, 2, 1), X),
    "tensor_split": case(lambda x: paddle.tensor_split(x, 3, 2), lambda x: torch.tensor_split(x, 3, 2), X, fixed=True),
    "tensor_split places": case(
        lambda x: paddle.tensor_split(x, [1, 3], 2), lambda x: torch.tensor_split(x, [1, 3], 2), X, fixed=True
    ),
    "hsplit": case(lambda x: paddle.hsplit(x, 3), lambda x: torch.hsplit(x, 3), M, fixed=True),
    "vsplit": case(lambda x: paddle.vsplit(x, 2), lambda x: torch.vsplit(x, 2), M, fixed=True),
    "dsplit": case(lambda x: paddle.dsplit(x, 2), lambda x: torch.dsplit(x, 2), X, fixed=True),
    "unbind": case(lambda x: paddle.unbind(x, 1), lambda x: torch.unbind(x, 1), X, fixed=True),
    "unstack": case(lambda x: paddle.unstack(x, 0, 2), lambda x: torch.unbind(x, 0), X),
    "expand": case(lambda x: paddle.expand(x, [2, -1, 3]), lambda x: x.expand(2, -1, 3), M[:, :1]),
    "expand by variables": case(
        lambda x, y: paddle.expand(x, [paddle.shape(y)[0], -1]), lambda x, y: x.expand(2, -1), V, M
    ),
    "broadcast_to": case(lambda x: paddle.broadcast_to(x, [4, 3]), lambda x: torch.broadcast_to(x, [4, 3]), V),
    "expand_as": case(paddle.expand_as, lambda x, y: x.expand_as(y), V, M),
    "broadcast_tensors": case(lambda x, y: paddle.broadcast_tensors([x, y]), torch.broadcast_tensors, V, M[:, :1]),
    "tile": case(lambda x: paddle.tile(x, [2, 1, 3]), lambda x: x.tile(2, 1, 3), X),
    "tile fewer": case(lambda x: paddle.tile(x, [2]), lambda x: x.tile(2), M),
    "tile more": case(lambda x: paddle.tile(x, [2, 2, 1]), lambda x: x.tile(2, 2, 1), M),
    "repeat_interleave": case(
        lambda x: paddle.repeat_interleave(x, 2, 1), lambda x: torch.repeat_interleave(x, 2, 1), X
    ),
    "repeat_interleave of all": case(
        lambda x: paddle.repeat_interleave(x, 2), lambda x: torch.repeat_interleave(x, 2), M
    ),
    "repeat_interleave each": case(
        lambda x: paddle.repeat_interleave(x, [1, 0, 2], 1),
        lambda x: torch.repeat_interleave(x, torch.tensor([1, 0, 2]), 1),
        M,
    ),
    "as_strided": case(
        lambda x: paddle.as_strided(x, [2, 2], [4, 1], 1), lambda x: torch.as_strided(x, [2, 2], [4, 1], 1), X
    ),
}

CASES |= {
    "concatenate": case(lambda x, y: paddle.concatenate([x, y]), lambda x, y: torch.cat([x, y]), M, M),
    "swapdims": case(lambda x: paddle.swapdims(x, 0, 2), lambda x: x.swapdims(0, 2), X),
    "unfold": case(lambda x: paddle.unfold(x, 1, 2, 1), lambda x: x.unfold(1, 2, 1), X, fixed=True),
    "block_diag": case(lambda x, y, v: paddle.block_diag([x, y, v]), torch.block_diag, M, M.T.copy(), V, fixed=True),
    "combinations": case(paddle.combinations, torch.combinations, V, fixed=True),
    "combinations with replacement": case(
        lambda x: paddle.combinations(x, 3, True), lambda x: torch.combinations(x, 3, True), V, fixed=True
    ),
    "cartesian_prod": case(lambda x, y: paddle.cartesian_prod([x, y]), torch.cartesian_prod, V, V[:2] * 3, fixed=True),
}


test_value_and_gradient = family_test(CASES)
