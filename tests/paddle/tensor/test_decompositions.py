"""Inverses, solutions, decompositions and singular values, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
L, TL = paddle.linalg, torch.linalg

RANDOM = np.random.default_rng(31)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


M, RIGHT, TALL = normal(2, 4, 4), normal(2, 4, 3), normal(2, 5, 3)
SYMMETRIC = (M @ M.transpose(0, 2, 1) + np.eye(4)).astype(np.float32)
FACTOR = np.linalg.cholesky(SYMMETRIC).astype(np.float32)
SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]], np.float32)
LOW = (normal(5, 2) @ normal(2, 4)).astype(np.float32)
SHIFT = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], np.float32)  # every pivot is in another row


def sizes(parts):
    return [part.abs() for part in parts]


CASES = {
    "inv": case(L.inv, TL.inv, M, tolerance=1e-4),
    "inv of a permutation": case(L.inv, TL.inv, SHIFT),
    "inverse": case(paddle.inverse, TL.inv, M, tolerance=1e-4),
    "matrix_power": case(lambda x: L.matrix_power(x, -2), lambda x: TL.matrix_power(x, -2), M, tolerance=1e-3),
    "solve": case(L.solve, TL.solve, M, RIGHT, tolerance=1e-4),
    "solve of a vector": case(L.solve, TL.solve, M[0], RIGHT[0, :, 0].copy(), tolerance=1e-4),
    "solve from the right": case(
        lambda x, y: L.solve(x, y, left=False),
        lambda x, y: TL.solve(x, y, left=False),
        M,
        RIGHT.transpose(0, 2, 1).copy(),
        tolerance=1e-4,
    ),
    "triangular_solve": case(
        L.triangular_solve, lambda x, y: TL.solve_triangular(x, y, upper=True), SYMMETRIC, RIGHT, tolerance=1e-4
    ),
    "triangular_solve transposed": case(
        lambda x, y: L.triangular_solve(x, y, upper=False, transpose=True, unitriangular=True),
        lambda x, y: TL.solve_triangular(x.tril().mT, y, upper=True, unitriangular=True),
        M,
        RIGHT,
        tolerance=1e-4,
    ),
    "det": case(L.det, TL.det, M, tolerance=1e-4),
    "det of a permutation": case(L.det, TL.det, SHIFT),
    "det of a singular matrix": case(L.det, TL.det, SINGULAR, differentiable=False),
    "slogdet": case(L.slogdet, lambda x: torch.stack(tuple(TL.slogdet(x))), M, tolerance=1e-4),
    "cholesky": case(L.cholesky, TL.cholesky, SYMMETRIC, tolerance=1e-4),
    "cholesky upper": case(lambda x: L.cholesky(x, True), lambda x: TL.cholesky(x).mT, SYMMETRIC, tolerance=1e-4),
    "cholesky_solve": case(L.cholesky_solve, torch.cholesky_solve, RIGHT, FACTOR, tolerance=1e-4),
    "cholesky_inverse": case(L.cholesky_inverse, torch.cholesky_inverse, FACTOR, tolerance=1e-4),
    "qr, the product": case(lambda x: L.qr(x)[0] @ L.qr(x)[1], lambda x: x * 1, TALL, tolerance=1e-4),
    "qr, the triangle": case(lambda x: L.qr(x, "r").abs(), lambda x: TL.qr(x)[1].abs(), TALL, tolerance=1e-4),
    "eigvalsh": case(L.eigvalsh, TL.eigvalsh, SYMMETRIC, fixed=True, tolerance=1e-4),
    "eigvalsh upper": case(
        lambda x: L.eigvalsh(x, "U"), lambda x: TL.eigvalsh(x, "U"), M, fixed=True, differentiable=False, tolerance=1e-4
    ),
    "eigh": case(lambda x: sizes(L.eigh(x)), lambda x: sizes(TL.eigh(x)), SYMMETRIC, fixed=True, tolerance=1e-4),
    "svdvals": case(L.svdvals, TL.svdvals, TALL, fixed=True, tolerance=1e-4),
    "svd": case(
        lambda x: sizes(L.svd(x)), lambda x: sizes(TL.svd(x, full_matrices=False)), TALL, fixed=True, tolerance=1e-4
    ),
    "svd_lowrank": case(
        lambda x: sizes(L.svd_lowrank(x, 2)),
        lambda x: sizes([TL.svd(x)[0][..., :2], TL.svdvals(x)[..., :2], TL.svd(x)[2].mT[..., :2]]),
        TALL,
        fixed=True,
        tolerance=1e-4,
    ),
    "pca_lowrank": case(
        lambda x: L.pca_lowrank(x, 2)[1],
        lambda x: TL.svdvals(x - x.mean(-2, keepdim=True))[..., :2],
        TALL,
        fixed=True,
        tolerance=1e-4,
    ),
    "pinv": case(L.pinv, TL.pinv, TALL, fixed=True, tolerance=1e-4),
    "pinv of low rank": case(
        lambda x: L.pinv(x, 1e-5),
        lambda x: TL.pinv(x, rtol=1e-5),
        LOW,
        fixed=True,
        differentiable=False,
        tolerance=1e-4,
    ),
    "matrix_rank": case(L.matrix_rank, TL.matrix_rank, LOW, fixed=True, differentiable=False),
    "matrix_rank above": case(
        lambda x: L.matrix_rank(x, 1.0), lambda x: (TL.svdvals(x) > 1).sum(-1), M, fixed=True, differentiable=False
    ),
    "lstsq": case(
        lambda x, y: L.lstsq(x, y)[0], lambda x, y: TL.pinv(x) @ y, TALL, normal(2, 5, 2), fixed=True, tolerance=1e-4
    ),
    "cond": case(L.cond, TL.cond, M, fixed=True, tolerance=1e-3),
    "cond fro": case(
        lambda x: L.cond(x, "fro"), lambda x: TL.matrix_norm(x) * TL.matrix_norm(TL.inv(x)), M, tolerance=1e-3
    ),
    "matrix_exp": case(L.matrix_exp, TL.matrix_exp, M, tolerance=1e-4),
}
for _p in ("fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf")):
    CASES[f"matrix_norm {_p}"] = case(
        lambda x, p=_p: L.matrix_norm(x, p, (0, 2), True),
        lambda x, p=_p: TL.matrix_norm(x, p, (0, 2), True),
        TALL,
        fixed=_p in ("nuc", 2, -2),
        tolerance=1e-4,
    )


test_value_and_gradient = family_test(CASES)


def test_what_has_no_matrices_is_refused():
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        x, free = paddle.static.data("x", [3]), paddle.static.data("free", [None, None])
        with pytest.raises(InputError, match="inv: expected matrices of floats"):
            L.inv(x)
        with pytest.raises(InputError, match="size of the matrices must be known"):
            L.eigvalsh(free)
        with pytest.raises(OptionError, match="mode"):
            L.qr(free, "complete")
        with pytest.raises(OptionError, match="matrix_norm: p must be"):
            L.matrix_norm(free, 3)
