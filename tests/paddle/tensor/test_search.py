"""Order and counting, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

RANDOM = np.random.default_rng(5)
X = RANDOM.permutation(24).astype(np.float32).reshape(2, 3, 4) / 7
TIES = np.array([[2.0, 1.0, 2.0, 1.0], [3.0, 3.0, 0.0, 3.0]], np.float32)
I = np.array([[0, 5, -2], [3, 4, 1]])  # noqa: E741  # beside X
SORTED = np.array([0.5, 1.0, 2.0], np.float32)
COUNTED = np.array([1, 4, 1, 0])
UNIQUE = np.array([[2, 1], [1, 5]])

CASES = {
    "argmax": case(paddle.argmax, torch.argmax, X, differentiable=False),
    "argmax axis": case(
        lambda x: paddle.argmax(x, 1, True), lambda x: torch.argmax(x, 1, True), X, differentiable=False
    ),
    "argmin": case(lambda x: paddle.argmin(x, -1), lambda x: torch.argmin(x, -1), X, differentiable=False),
    "argmin dtype": case(
        lambda x: paddle.argmin(x, dtype="int32"), lambda x: torch.argmin(x).int(), X, differentiable=False
    ),
    "topk": case(lambda x: paddle.topk(x, 2), lambda x: torch.topk(x, 2), X),
    "topk axis": case(lambda x: paddle.topk(x, 2, 1, False), lambda x: torch.topk(x, 2, 1, False), X),
    "sort": case(paddle.sort, lambda x: torch.sort(x)[0], X),
    "sort down": case(lambda x: paddle.sort(x, 1, True), lambda x: torch.sort(x, 1, True)[0], X),
    "sort of integers": case(paddle.sort, lambda x: torch.sort(x)[0], I),
    "msort": case(paddle.msort, torch.msort, X),
    "argsort": case(paddle.argsort, lambda x: torch.argsort(x, stable=True), TIES, differentiable=False),
    "argsort down": case(
        lambda x: paddle.argsort(x, -1, True),
        lambda x: torch.argsort(x, dim=-1, descending=True, stable=True),
        TIES,
        differentiable=False,
    ),
    "kthvalue": case(lambda x: paddle.kthvalue(x, 2), lambda x: torch.kthvalue(x, 2), X),
    "kthvalue axis": case(lambda x: paddle.kthvalue(x, 2, 1, True), lambda x: torch.kthvalue(x, 2, 1, True), X),
    "median": case(paddle.median, lambda x: torch.quantile(x, 0.5), X, fixed=True),
    "median axis": case(lambda x: paddle.median(x, 1), lambda x: torch.median(x, 1)[0], X, fixed=True),
    "median of an even number": case(
        lambda x: paddle.median(x, -1, True), lambda x: torch.quantile(x, 0.5, -1, True), X, fixed=True
    ),
    "median min": case(lambda x: paddle.median(x, -1, mode="min"), lambda x: torch.median(x, -1), X, fixed=True),
    "median of all, min": case(lambda x: paddle.median(x, mode="min"), torch.median, X, fixed=True),
    "quantile": case(lambda x: paddle.quantile(x, 0.3), lambda x: torch.quantile(x, 0.3), X, fixed=True),
    "quantile of several": case(
        lambda x: paddle.quantile(x, [0.25, 0.5], 1),
        lambda x: torch.quantile(x, torch.tensor([0.25, 0.5]), 1),
        X,
        fixed=True,
    ),
    "searchsorted": case(paddle.searchsorted, torch.searchsorted, SORTED, TIES, differentiable=False),
    "searchsorted right": case(
        lambda s, x: paddle.searchsorted(s, x, right=True),
        lambda s, x: torch.searchsorted(s, x, right=True),
        np.sort(TIES),
        TIES[:, :2],
        differentiable=False,
    ),
    "bucketize": case(
        lambda x, s: paddle.bucketize(x, s, True),
        lambda x, s: torch.bucketize(x, s).int(),
        TIES,
        SORTED,
        differentiable=False,
    ),
    "bincount": case(paddle.bincount, torch.bincount, COUNTED),
    "bincount minlength": case(lambda x: paddle.bincount(x, None, 7), lambda x: torch.bincount(x, None, 7), COUNTED),
    "bincount weights": case(
        paddle.bincount, torch.bincount, COUNTED, np.array([0.5, 1.0, 2.0, 3.0], np.float32), differentiable=False
    ),
    "histogram": case(lambda x: paddle.histogram(x, 5), lambda x: torch.histc(x, 5).long(), X, differentiable=False),
    "histogram bounds": case(
        lambda x: paddle.histogram(x, 4, 0.5, 2.5),
        lambda x: torch.histc(x, 4, 0.5, 2.5).long(),
        X,
        differentiable=False,
    ),
    "unique": case(paddle.unique, torch.unique, UNIQUE),
    "unique with the rest": case(
        lambda x: paddle.unique(x, False, True, True),
        lambda x: torch.unique(x, True, True, True),
        UNIQUE[0],
        fixed=True,
    ),
}
for _kind in ("lower", "higher", "midpoint", "nearest"):
    CASES[f"quantile {_kind}"] = case(
        lambda x, k=_kind: paddle.quantile(x, 0.4, 2, True, k),
        lambda x, k=_kind: torch.quantile(x, 0.4, 2, True, interpolation=k),
        X,
        fixed=True,
    )


test_value_and_gradient = family_test(CASES)
