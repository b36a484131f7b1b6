"""LAPACK's packed forms, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
L, TL = paddle.linalg, torch.linalg

RANDOM = np.random.default_rng(41)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


SQUARE, TALL, WIDE = normal(2, 4, 4), normal(2, 5, 3), normal(2, 3, 5)
SINGULAR = np.array([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [4.0, 8.0, 1.0]], np.float32)  # whose pivot divides exactly
VECTORS, FACTORS = (part.numpy() for part in torch.geqrf(torch.from_numpy(TALL)))
LU, PIVOTS = (part.numpy() for part in TL.lu_factor(torch.from_numpy(SQUARE)))
RIGHT = normal(2, 4, 2)


def factors(x):
    return torch.lu_unpack(*TL.lu_factor(x), unpack_pivots=False)[1:]


def packed(x):
    """Both factors in one matrix, which torch gives no gradient of for all shapes."""
    return TL.lu_factor(x)[0]


CASES = {
    "householder_product": case(
        L.householder_product, TL.householder_product, VECTORS, FACTORS, tolerance=1e-4, fixed=True
    ),
    "ormqr": case(L.ormqr, torch.ormqr, VECTORS, FACTORS, normal(2, 5, 2), tolerance=1e-4, fixed=True),
    "ormqr transposed": case(
        lambda x, tau, y: L.ormqr(x, tau, y, transpose=True),
        lambda x, tau, y: torch.ormqr(x, tau, y, transpose=True),
        VECTORS,
        FACTORS,
        normal(2, 5, 2),
        tolerance=1e-4,
        fixed=True,
    ),
    "ormqr from the right": case(
        lambda x, tau, y: L.ormqr(x, tau, y, left=False),
        lambda x, tau, y: torch.ormqr(x, tau, y, left=False),
        VECTORS,
        FACTORS,
        normal(2, 2, 5),
        tolerance=1e-4,
        fixed=True,
    ),
    "lu": case(lambda x: L.lu(x)[0], packed, SQUARE, tolerance=1e-4, fixed=True),
    "lu of tall ones": case(lambda x: L.lu(x)[0], packed, TALL, tolerance=1e-4, fixed=True),
    "lu of wide ones": case(lambda x: L.lu(x)[0], packed, WIDE, tolerance=1e-4, fixed=True),
    "lu, the pivots": case(lambda x: L.lu(x)[1], lambda x: TL.lu_factor(x)[1], TALL, differentiable=False, fixed=True),
    "lu without pivots": case(
        lambda x: L.lu_unpack(*L.lu(x, pivot=False))[1] @ L.lu_unpack(*L.lu(x, pivot=False))[2],
        lambda x: x * 1,
        SQUARE,
        tolerance=1e-3,
        fixed=True,
    ),
    "lu of a singular one": case(
        lambda x: L.lu(x, get_infos=True)[2],
        lambda x: TL.lu_factor_ex(x)[2],
        SINGULAR,
        differentiable=False,
        fixed=True,
    ),
    "lu_unpack": case(L.lu_unpack, torch.lu_unpack, LU, PIVOTS, tolerance=1e-4, fixed=True),
    "lu_unpack of lu": case(lambda x: L.lu_unpack(*L.lu(x))[1:], factors, SQUARE, tolerance=1e-4, fixed=True),
    "lu_unpack, the permutation": case(
        lambda x: L.lu_unpack(*L.lu(x), unpack_ludata=False)[0],
        lambda x: torch.lu_unpack(*TL.lu_factor(x))[0],
        TALL,
        differentiable=False,
        fixed=True,
    ),
    "lu_solve": case(
        L.lu_solve, lambda b, lu, pivots: TL.lu_solve(lu, pivots, b), RIGHT, LU, PIVOTS, tolerance=1e-3, fixed=True
    ),
    "lu_solve transposed": case(
        lambda b, lu, pivots: L.lu_solve(b, lu, pivots, "T"),
        lambda b, lu, pivots: TL.lu_solve(lu, pivots, b, adjoint=True),
        RIGHT,
        LU,
        PIVOTS,
        tolerance=1e-3,
        fixed=True,
    ),
}

test_value_and_gradient = family_test(CASES)


def test_sizes_must_be_known_and_words_be_words():
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        x = paddle.static.data("x", [None, 3, 3])
        with pytest.raises(InputError, match="lu: axis -1 of 'Cast_out0' must be of a known size"):
            L.lu(paddle.static.data("y", [3, None]))
        with pytest.raises(InputError, match="more pivots than there are rows"):
            L.lu_unpack(x, paddle.static.data("p", [None, 4], "int32"))
        with pytest.raises(OptionError, match="lu_solve: trans must be one of"):
            L.lu_solve(x, x, paddle.static.data("q", [None, 3], "int32"), "H")
