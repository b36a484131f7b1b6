"""Comparisons, truth values and bits, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

X = np.array([[-2.0, 0.0, 1.0], [3.0, 0.5, 1.0]], np.float32)
Y = np.array([[-2.0, 1.0, 0.0], [3.0, 0.25, 2.0]], np.float32)
ROW = np.array([1.0, 0.5, -2.0], np.float32)
I = np.array([[0, 1, -9], [3, 4, 6]])  # noqa: E741  # beside X
J = np.array([[0, 2, 3], [1, 4, 2]])
YES = np.array([[True, False, True], [False, False, True]])
ODD = np.array([np.nan, 1.0, np.inf, -np.inf, 0.0], np.float32)

CASES = {}
for _name in ("equal", "not_equal", "greater_equal", "greater_than", "less_equal", "less_than"):
    _theirs = getattr(torch, {"equal": "eq"}.get(_name, _name.removesuffix("_than")))
    for _kind, _sides in {"": (X, Y), " row": (X, ROW), " of integers": (I, J), " mixed": (I, Y)}.items():
        CASES[_name + _kind] = case(getattr(paddle, _name), _theirs, *_sides)
for _name in ("eq", "ne", "ge", "gt", "le", "lt", "greater", "less"):
    CASES[_name] = case(getattr(paddle, _name), getattr(torch, _name), X, Y)
for _name in ("logical_and", "logical_or", "logical_xor"):
    CASES[_name] = case(getattr(paddle, _name), getattr(torch, _name), YES, I > 0)
    CASES[_name + " of floats"] = case(getattr(paddle, _name), getattr(torch, _name), X, Y)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"):
    CASES[_name] = case(getattr(paddle, _name), getattr(torch, _name), I, J)
for _name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "isreal", "signbit"):
    CASES[_name] = case(getattr(paddle, _name), getattr(torch, _name), ODD, differentiable=False)
for _name in ("isnan", "isinf", "isfinite"):
    CASES[_name + " of integers"] = case(getattr(paddle, _name), getattr(torch, _name), I)
for _name in ("all", "any"):
    _ours, _theirs = getattr(paddle, _name), getattr(torch, _name)
    CASES[_name] = case(_ours, _theirs, YES)
    CASES[_name + " axis"] = case(lambda x, f=_ours: f(x, 1), lambda x, f=_theirs: f(x, 1), YES)
    CASES[_name + " keepdim"] = case(lambda x, f=_ours: f(x, 0, True), lambda x, f=_theirs: f(x, 0, True), YES)
CASES |= {
    "logical_not": case(paddle.logical_not, torch.logical_not, YES),
    "bitwise_not": case(paddle.bitwise_not, torch.bitwise_not, I),
    "bitwise_invert of truth values": case(paddle.bitwise_invert, torch.bitwise_not, YES),
    "bitwise_and of truth values": case(paddle.bitwise_and, torch.bitwise_and, YES, I > 0),
    "where": case(paddle.where, torch.where, YES, X, Y),
    "where of a number": case(lambda c, x: paddle.where(c, x, 2.0), lambda c, x: torch.where(c, x, 2.0), YES, X),
    "where of numbers": case(
        lambda c: paddle.where(c, 1.0, 2.0), lambda c: torch.where(c, torch.tensor(1.0), torch.tensor(2.0)), YES
    ),
    "where of two types": case(paddle.where, torch.where, YES, X, I),
    "where alone": case(paddle.where, torch.where, YES),
    "masked_fill": case(
        lambda x, m: paddle.masked_fill(x, m, -3.0), lambda x, m: torch.masked_fill(x, m, -3.0), X, YES
    ),
    "masked_fill row": case(paddle.masked_fill, lambda x, m, v: torch.where(m, v, x), X, YES, ROW),
    "isclose": case(paddle.isclose, torch.isclose, X, X + np.float32(1e-6), differentiable=False),
    "isclose of others": case(
        lambda x, y: paddle.isclose(x, y, 0.1, 0.1),
        lambda x, y: torch.isclose(x, y, 0.1, 0.1),
        X,
        Y,
        differentiable=False,
    ),
    "isclose of odd ones": case(paddle.isclose, torch.isclose, ODD, ODD, differentiable=False),
    "isclose equal_nan": case(
        lambda x, y: paddle.isclose(x, y, equal_nan=True),
        lambda x, y: torch.isclose(x, y, equal_nan=True),
        ODD,
        ODD,
        differentiable=False,
    ),
    "allclose": case(paddle.allclose, torch.allclose, X, X + np.float32(1e-6), differentiable=False),
    "equal_all": case(paddle.equal_all, torch.equal, X, X, differentiable=False),
    "equal_all of others": case(paddle.equal_all, torch.equal, X, Y, differentiable=False),
    "equal_all of other shapes": case(paddle.equal_all, torch.equal, X, ROW[:2], differentiable=False),
    "isin": case(paddle.isin, torch.isin, I, J),
    "isin invert": case(lambda x, y: paddle.isin(x, y, invert=True), lambda x, y: torch.isin(x, y, invert=True), I, J),
    "is_empty": case(paddle.is_empty, lambda x: torch.tensor(x.numel() == 0), X, differentiable=False),
}


test_value_and_gradient = family_test(CASES)
