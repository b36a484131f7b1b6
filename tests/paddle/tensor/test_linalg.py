"""Products of vectors and matrices, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

RANDOM = np.random.default_rng(7)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


A, B, C = normal(3, 4), normal(4, 5), normal(3, 5)
BATCH, OTHER = normal(2, 3, 4), normal(2, 4, 5)
V, W = normal(4), normal(4)
I = np.array([[1, 2], [3, 4]])  # noqa: E741  # beside A

CASES = {
    "matmul": case(paddle.matmul, torch.matmul, A, B),
    "matmul batch": case(paddle.matmul, torch.matmul, BATCH, B),
    "matmul transposed": case(lambda x, y: paddle.matmul(x, y, True, True), lambda x, y: x.mT @ y.mT, A, normal(5, 3)),
    "matmul batch transposed": case(
        lambda x, y: paddle.matmul(x, y, transpose_y=True), lambda x, y: x @ y.mT, BATCH, normal(2, 5, 4)
    ),
    "matmul of vectors": case(paddle.matmul, torch.matmul, V, W),
    "mm": case(paddle.mm, torch.mm, A, B),
    "bmm": case(paddle.bmm, torch.bmm, BATCH, OTHER),
    "mv": case(paddle.mv, torch.mv, A, V),
    "dot": case(paddle.dot, torch.dot, V, W),
    "vecdot": case(lambda x, y: paddle.vecdot(x, y, 0), lambda x, y: torch.linalg.vecdot(x, y, dim=0), A, A + 1),
    "inner": case(paddle.inner, torch.inner, A, normal(5, 4)),
    "inner batch": case(paddle.inner, torch.inner, BATCH, A),
    "inner of vectors": case(paddle.inner, torch.inner, V, W),
    "outer": case(paddle.outer, torch.outer, V, W[:3]),
    "addmm": case(
        lambda c, a, b: paddle.addmm(c, a, b, 0.5, 2.0),
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
        C,
        A,
        B,
    ),
    "baddbmm": case(paddle.baddbmm, torch.baddbmm, normal(2, 3, 5), BATCH, OTHER),
    "einsum": case(lambda x, y: paddle.einsum("bij, bjk -> bik", x, y), lambda x, y: x @ y, BATCH, OTHER),
    "einsum of one": case(lambda x: paddle.einsum("ij->j", x), lambda x: x.sum(0), A),
    "einsum of three": case(
        lambda a, b, c: paddle.einsum("ij,jk,ik->i", a, b, c),
        lambda a, b, c: torch.einsum("ij,jk,ik->i", a, b, c),
        A,
        B,
        C,
    ),
    "tensordot": case(lambda x, y: paddle.tensordot(x, y, 1), lambda x, y: torch.tensordot(x, y, 1), BATCH, B),
    "tensordot axes": case(
        lambda x, y: paddle.tensordot(x, y, [[0, 2], [0, 1]]),
        lambda x, y: torch.tensordot(x, y, [[0, 2], [0, 1]]),
        BATCH,
        OTHER,
    ),
    "multi_dot": case(
        lambda a, b, c: paddle.linalg.multi_dot([a, b, c]), lambda a, b, c: a @ b @ c, A, B, normal(5, 2)
    ),
    "matrix_power": case(
        lambda x: paddle.linalg.matrix_power(x, 3), lambda x: torch.matrix_power(x, 3), normal(2, 3, 3), tolerance=1e-4
    ),
    "matrix_power 0": case(
        lambda x: paddle.linalg.matrix_power(x, 0),
        lambda x: torch.matrix_power(x, 0),
        normal(3, 3),
        fixed=True,
        differentiable=False,
    ),
    "trace": case(paddle.trace, torch.trace, normal(3, 3), fixed=True),
    "trace offset": case(
        lambda x: paddle.trace(x, 1, 1, 2), lambda x: torch.diagonal(x, 1, 1, 2).sum(-1), BATCH, fixed=True
    ),
    "cross": case(paddle.cross, lambda x, y: torch.linalg.cross(x, y, dim=0), A, A[::-1].copy(), fixed=True),
    "cross axis": case(lambda x, y: paddle.cross(x, y, -1), torch.linalg.cross, A[:, :3], C[:, :3]),
    "kron": case(paddle.kron, torch.kron, A, normal(2, 2)),
    "kron of other ranks": case(paddle.kron, torch.kron, BATCH, normal(2, 2)),
    "cdist": case(paddle.cdist, torch.cdist, A, normal(2, 4), tolerance=1e-4),
    "cdist 1": case(lambda x, y: paddle.cdist(x, y, 1.0), lambda x, y: torch.cdist(x, y, 1.0), BATCH, normal(2, 2, 4)),
    "pdist": case(paddle.pdist, torch.pdist, A, fixed=True, tolerance=1e-4),
    "matmul of two types": case(paddle.matmul, lambda x, y: x @ y.float(), A[:, :2], I),
}

CASES |= {
    "cov": case(paddle.linalg.cov, torch.cov, A, fixed=True),
    "cov of columns": case(
        lambda x: paddle.linalg.cov(x, False, False), lambda x: torch.cov(x.T, correction=0), A, fixed=True
    ),
    "corrcoef": case(paddle.linalg.corrcoef, torch.corrcoef, A, fixed=True, tolerance=1e-4),
    "vector_norm": case(
        lambda x: paddle.linalg.vector_norm(x, 3.0, 1), lambda x: torch.linalg.vector_norm(x, 3.0, 1), A
    ),
    "vector_norm of all": case(paddle.linalg.vector_norm, torch.linalg.vector_norm, A),
}


test_value_and_gradient = family_test(CASES)
