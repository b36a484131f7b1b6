"""New tensors and triangles and diagonals, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 5 - 1
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7
V = np.array([1.0, -2.0, 3.0], np.float32)
I = np.array([[0, 1, -2], [3, 4, 1]])  # noqa: E741  # beside X


def of_nothing(ours, theirs):
    """A function of numbers, in a case that has an input only for torch's sake."""
    return case(lambda _: ours(), lambda _: theirs(), V, differentiable=False)


CASES = {
    "zeros": of_nothing(lambda: paddle.zeros([2, 3]), lambda: torch.zeros(2, 3)),
    "ones": of_nothing(lambda: paddle.ones([2], "int64"), lambda: torch.ones(2, dtype=torch.int64)),
    "full": of_nothing(lambda: paddle.full([2, 1], 2.5), lambda: torch.full([2, 1], 2.5)),
    "full of an integer": of_nothing(lambda: paddle.full([2], 2), lambda: torch.full([2], 2.0)),
    "full of a truth value": of_nothing(lambda: paddle.full([2], True), lambda: torch.full([2], True)),
    "full by variables": case(
        lambda x: paddle.full([paddle.shape(x)[0], 2], 1.5), lambda x: torch.full([3, 2], 1.5), V, differentiable=False
    ),
    "full of a variable": case(lambda x: paddle.full([2, 3], paddle.sum(x)), lambda x: x.sum().expand(2, 3), V),
    "fill_constant": of_nothing(
        lambda: paddle.tensor.fill_constant([2], "int32", 3), lambda: torch.full([2], 3, dtype=torch.int32)
    ),
    "empty": of_nothing(lambda: paddle.empty([2]), lambda: torch.zeros(2)),
    "eye": of_nothing(lambda: paddle.eye(2, 3), lambda: torch.eye(2, 3)),
    "arange": of_nothing(lambda: paddle.arange(5), lambda: torch.arange(5)),
    "arange of floats": of_nothing(lambda: paddle.arange(1.0, 2.0, 0.25), lambda: torch.arange(1.0, 2.0, 0.25)),
    "arange dtype": of_nothing(
        lambda: paddle.arange(5, 1, -2, "float32"), lambda: torch.arange(5, 1, -2, dtype=torch.float32)
    ),
    "arange by a variable": case(
        lambda x: paddle.arange(0, paddle.shape(x)[1], 2), lambda x: torch.arange(0, 4, 2), X, differentiable=False
    ),
    "linspace": of_nothing(lambda: paddle.linspace(0, 3, 7), lambda: torch.linspace(0, 3, 7)),
    "logspace": of_nothing(lambda: paddle.logspace(0, 2, 3), lambda: torch.logspace(0, 2, 3)),
    "to_tensor": of_nothing(lambda: paddle.to_tensor([1.5, 2.0]), lambda: torch.tensor([1.5, 2.0])),
    "to_tensor of integers": of_nothing(lambda: paddle.to_tensor([[1], [2]]), lambda: torch.tensor([[1], [2]])),
    "to_tensor of an array": of_nothing(lambda: paddle.to_tensor(X), lambda: torch.from_numpy(X)),
    "to_tensor of a number": of_nothing(lambda: paddle.to_tensor(True), lambda: torch.tensor(True)),
    "assign": case(paddle.assign, torch.clone, X),
    "assign of a list": of_nothing(lambda: paddle.assign([1, 2]), lambda: torch.tensor([1, 2])),
    "clone": case(paddle.clone, torch.clone, X),
    "zeros_like": case(paddle.zeros_like, torch.zeros_like, X, differentiable=False),
    "ones_like": case(
        lambda x: paddle.ones_like(x, "int32"), lambda x: torch.ones_like(x, dtype=torch.int32), X, differentiable=False
    ),
    "full_like": case(lambda x: paddle.full_like(x, 7), lambda x: torch.full_like(x, 7), I),
    "empty_like": case(paddle.empty_like, torch.zeros_like, X, differentiable=False),
    "meshgrid": case(paddle.meshgrid, lambda x, y: torch.meshgrid(x, y, indexing="ij"), V, X[0]),
    "meshgrid of a list": case(
        lambda x, y: paddle.meshgrid([x, y]), lambda x, y: torch.meshgrid(x, y, indexing="ij"), V, X[0]
    ),
    "tril": case(paddle.tril, torch.tril, X),
    "tril above": case(lambda x: paddle.tril(x, 1), lambda x: torch.tril(x, 1), CUBE),
    "triu": case(lambda x: paddle.triu(x, -1), lambda x: torch.triu(x, -1), X),
    "tril_indices": of_nothing(lambda: paddle.tril_indices(3, 4, 1), lambda: torch.tril_indices(3, 4, 1)),
    "triu_indices": of_nothing(lambda: paddle.triu_indices(3), lambda: torch.triu_indices(3, 3)),
    "diag": case(paddle.diag, torch.diag, V, fixed=True),
    "diag above": case(lambda x: paddle.diag(x, 2), lambda x: torch.diag(x, 2), V, fixed=True),
    "diag below": case(lambda x: paddle.diag(x, -1), lambda x: torch.diag(x, -1), V, fixed=True),
    "diag of a matrix": case(lambda x: paddle.diag(x, 1), lambda x: torch.diag(x, 1), X, fixed=True),
    "diag padded": case(
        lambda x: paddle.diag(x, 1, 5.0),
        lambda x: torch.where(torch.diag(torch.ones(3), 1) > 0, torch.diag(x, 1), 5.0),
        V,
        fixed=True,
    ),
    "diagflat": case(lambda x: paddle.diagflat(x, 1), lambda x: torch.diagflat(x, 1), X, fixed=True),
    "diag_embed": case(paddle.diag_embed, torch.diag_embed, X, fixed=True),
    "diag_embed elsewhere": case(
        lambda x: paddle.diag_embed(x, 1, 0, 2), lambda x: torch.diag_embed(x, 1, 0, 2), X, fixed=True
    ),
    "diagonal": case(paddle.diagonal, torch.diagonal, X, fixed=True),
    "diagonal elsewhere": case(
        lambda x: paddle.diagonal(x, -1, 1, 2), lambda x: torch.diagonal(x, -1, 1, 2), CUBE, fixed=True
    ),
}

CASES |= {
    "as_tensor": of_nothing(lambda: paddle.as_tensor([1, 2], "float32"), lambda: torch.tensor([1.0, 2.0])),
    "asarray": of_nothing(lambda: paddle.asarray([[1.5]]), lambda: torch.tensor([[1.5]])),
    "from_numpy": of_nothing(lambda: paddle.from_numpy(I), lambda: torch.from_numpy(I)),
    "vander": case(paddle.vander, lambda x: x[:, None] ** torch.tensor([2, 1, 0]), V, fixed=True),
    "vander increasing": case(lambda x: paddle.vander(x, 4, True), lambda x: x[:, None] ** torch.arange(4), V),
}


test_value_and_gradient = family_test(CASES)
