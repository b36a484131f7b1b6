"""Reductions and what runs along an axis, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

RANDOM = np.random.default_rng(11)
X = RANDOM.normal(size=(3, 4, 5)).astype(np.float32)
TIES = np.array([[2.0, 2.0, 1.0], [0.0, 3.0, 3.0]], np.float32)
ZERO = np.array([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]], np.float32)
HOLES = np.array([[2.0, np.nan, 1.0], [np.nan, 3.0, 0.5]], np.float32)
I = np.array([[0, 1, -2], [3, 4, 1]])  # noqa: E741  # beside X
YES = I > 0

CASES = {}
for _name in ("mean", "sum", "max", "min", "amax", "amin", "prod", "logsumexp", "std", "var"):
    _ours = getattr(paddle, _name)
    _theirs = {"max": torch.amax, "min": torch.amin}.get(_name) or getattr(torch, _name)
    if _name == "logsumexp":
        CASES[_name] = case(_ours, lambda x: torch.logsumexp(x, (0, 1, 2)), X)
    else:
        CASES[_name] = case(_ours, _theirs, X)
    CASES[_name + " axis"] = case(lambda x, f=_ours: f(x, 1), lambda x, f=_theirs: f(x, 1), X)
    CASES[_name + " keepdim"] = case(
        lambda x, f=_ours: f(x, axis=-1, keepdim=True), lambda x, f=_theirs: f(x, dim=-1, keepdim=True), X
    )
    if _name != "prod":
        CASES[_name + " axes"] = case(lambda x, f=_ours: f(x, [0, -1]), lambda x, f=_theirs: f(x, (0, -1)), X)
for _p in (1, 2, 3, 0.5, float("inf"), float("-inf")):
    CASES[f"norm {_p}"] = case(
        lambda x, p=_p: paddle.norm(x, p, 1), lambda x, p=_p: torch.linalg.vector_norm(x, p, 1), X, tolerance=1e-4
    )
    CASES[f"norm {_p} of all"] = case(
        lambda x, p=_p: paddle.norm(x, p), lambda x, p=_p: torch.linalg.vector_norm(x, p), X, tolerance=1e-4
    )
    if _p != 0.5:
        CASES[f"dist {_p}"] = case(
            lambda x, y, p=_p: paddle.dist(x, y, p),
            lambda x, y, p=_p: torch.dist(x, y, p),
            X,
            X[1:2] * 2 + 1,
            tolerance=1e-4,
        )
for _name in ("cumsum", "cumprod", "logcumsumexp"):
    _ours, _theirs = getattr(paddle, _name), getattr(torch, _name)
    for _axis in (0, 1, -1):
        CASES[f"{_name} {_axis}"] = case(
            lambda x, f=_ours, a=_axis: f(x, a), lambda x, f=_theirs, a=_axis: f(x, a), X, fixed=_name != "cumsum"
        )
    CASES[f"{_name} of all"] = case(_ours, lambda x, f=_theirs: f(x.reshape(-1), 0), X, fixed=_name != "cumsum")
for _name in ("cummax", "cummin"):
    _ours, _theirs = getattr(paddle, _name), getattr(torch, _name)
    CASES[_name] = case(lambda x, f=_ours: f(x, 1), lambda x, f=_theirs: f(x, 1), X, fixed=True)
    CASES[_name + " of integers"] = case(lambda x, f=_ours: f(x, 0), lambda x, f=_theirs: f(x, 0), I, fixed=True)
CASES |= {
    "max of equal ones": case(lambda x: paddle.max(x, 1), lambda x: torch.amax(x, 1), TIES),
    "prod of zeros": case(lambda x: paddle.prod(x, 1), lambda x: torch.prod(x, 1), ZERO),
    "sum of integers": case(lambda x: paddle.sum(x, 0), lambda x: torch.sum(x, 0), I),
    "sum of int32": case(paddle.sum, torch.sum, I.astype(np.int32)),
    "sum of truth values": case(lambda x: paddle.sum(x, 1), lambda x: torch.sum(x, 1), YES),
    "sum dtype": case(lambda x: paddle.sum(x, 1, "float64"), lambda x: torch.sum(x, 1, dtype=torch.float64), X),
    "mean dtype": case(lambda x: paddle.mean(x, dtype="float32"), lambda x: torch.mean(x.float()), I),
    "max of integers": case(lambda x: paddle.max(x, 1), lambda x: torch.amax(x, 1), I),
    "prod of integers": case(lambda x: paddle.prod(x, 1), lambda x: torch.prod(x, 1), I),
    "norm": case(paddle.norm, torch.linalg.vector_norm, X),
    "norm fro": case(lambda x: paddle.norm(x, "fro", [1, 2]), torch.linalg.matrix_norm, X),
    "norm 0": case(
        lambda x: paddle.norm(x, 0, 1), lambda x: torch.linalg.vector_norm(x, 0, 1), ZERO, differentiable=False
    ),
    "std biased": case(lambda x: paddle.std(x, 1, False), lambda x: torch.std(x, 1, unbiased=False), X),
    "var biased": case(lambda x: paddle.var(x, 1, False), lambda x: torch.var(x, 1, unbiased=False), X),
    "var correction": case(lambda x: paddle.var(x, 1, correction=2), lambda x: torch.var(x, 1, correction=2), X),
    "count_nonzero": case(
        lambda x: paddle.count_nonzero(x, 1), lambda x: torch.count_nonzero(x, 1), ZERO, differentiable=False
    ),
    "nansum": case(lambda x: paddle.nansum(x, 1), lambda x: torch.nansum(x, 1), HOLES),
    "nanmean": case(lambda x: paddle.nanmean(x, 0), lambda x: torch.nanmean(x, 0), HOLES),
    "cumsum of integers": case(lambda x: paddle.cumsum(x, 1), lambda x: torch.cumsum(x, 1), I),
}

CASES |= {
    "diff": case(lambda x: paddle.diff(x, 2, 1), lambda x: torch.diff(x, 2, 1), X),
    "diff with more": case(
        lambda x, y: paddle.diff(x, prepend=y, append=y), lambda x, y: torch.diff(x, prepend=y, append=y), X, X[..., :2]
    ),
    "trapezoid": case(lambda y: paddle.trapezoid(y, dx=0.5), lambda y: torch.trapezoid(y, dx=0.5), X),
    "trapezoid at places": case(
        lambda y, x: paddle.trapezoid(y, x, axis=1), lambda y, x: torch.trapezoid(y, x, dim=1), X, X[0, :, 0].copy()
    ),
    "cumulative_trapezoid": case(paddle.cumulative_trapezoid, torch.cumulative_trapezoid, X, X + 1),
    "renorm": case(lambda x: paddle.renorm(x, 2.0, 1, 2.5), lambda x: torch.renorm(x, 2.0, 1, 2.5), X, tolerance=1e-4),
    "reduce_as": case(
        paddle.reduce_as, lambda x, y: x.sum((0, 2), keepdim=True)[0] + 0 * y, X, X[0, :, :1], fixed=True
    ),
}


test_value_and_gradient = family_test(CASES)
