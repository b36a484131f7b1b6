"""Medians without NaN, the most frequent, histograms and runs, against torch's and numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(3, 4, 5)).astype(np.float32)
HOLES = X.copy()
HOLES[0, 1, 2] = HOLES[2, :, 3] = HOLES[1, 2, :2] = np.nan
FEW = np.array([[2.0, 1.0, 2.0, 1.0, 3.0], [4.0, 4.0, 0.0, 5.0, 5.0]], np.float32)
RUNS = np.array([1, 1, 2, 2, 2, 1, 3, 3])
ROWS = np.array([[1, 2], [1, 2], [3, 2], [3, 2], [1, 2]])
POINTS = RANDOM.normal(size=(40, 2)).astype(np.float32)
WEIGHTS = RANDOM.uniform(size=40).astype(np.float32)


def histogram(x, weights=None, **settings):
    counts, edges = np.histogramdd(x.numpy(), weights=None if weights is None else weights.numpy(), **settings)
    return [torch.from_numpy(part.astype(np.float32)) for part in (counts, *edges)]


def flat(found):
    return [found[0], *found[1]]


CASES = {
    "nanmedian": case(paddle.nanmedian, lambda x: torch.nanquantile(x, 0.5), HOLES),
    "nanmedian axis": case(lambda x: paddle.nanmedian(x, 2), lambda x: torch.nanquantile(x, 0.5, 2), HOLES),
    "nanmedian min": case(
        lambda x: paddle.nanmedian(x, 1, True, "min"), lambda x: torch.nanmedian(x, 1, True), X, differentiable=False
    ),
    "nanmedian of none": case(paddle.nanmedian, torch.nanmedian, np.full(3, np.nan, np.float32), differentiable=False),
    "mode": case(lambda x: paddle.mode(x)[0], lambda x: torch.mode(x)[0], FEW, differentiable=False),
    "the mode's gradient goes to its last place": case(
        lambda x: paddle.mode(x)[0], lambda x: torch.stack([x[0, 3], x[1, 1]]), FEW
    ),
    "mode keepdim": case(
        lambda x: paddle.mode(x, 0, True)[0], lambda x: torch.mode(x, 0, True)[0], ROWS, differentiable=False
    ),
    "the mode's last index": case(
        lambda x: paddle.mode(x)[1], lambda _: torch.tensor([3, 1]), FEW, differentiable=False
    ),
    "histogram_bin_edges": case(
        lambda x: paddle.histogram_bin_edges(x, 7),
        lambda x: torch.from_numpy(np.histogram_bin_edges(x.detach().numpy(), 7).astype(np.float32)),
        X,
        differentiable=False,
    ),
    "histogram_bin_edges between": case(
        lambda x: paddle.histogram_bin_edges(x, 4, -1, 2), lambda _: torch.linspace(-1, 2, 5), X, differentiable=False
    ),
    "histogramdd": case(
        lambda x: flat(paddle.histogramdd(x, 3)),
        lambda x: histogram(x.detach(), bins=3),
        POINTS,
        fixed=True,
        differentiable=False,
    ),
    "histogramdd density": case(
        lambda x, w: flat(paddle.histogramdd(x, [3, 4], [-1, 1, -2, 2], True, w)),
        lambda x, w: histogram(x.detach(), w.detach(), bins=[3, 4], range=[(-1, 1), (-2, 2)], density=True),
        POINTS,
        WEIGHTS,
        fixed=True,
        differentiable=False,
    ),
    "unique_consecutive": case(
        lambda x: paddle.unique_consecutive(x, True, True), lambda x: torch.unique_consecutive(x, True, True), RUNS
    ),
    "unique_consecutive axis": case(
        lambda x: paddle.unique_consecutive(x, axis=0), lambda x: torch.unique_consecutive(x, dim=0), ROWS
    ),
}
for _between in ("linear", "lower", "higher", "midpoint", "nearest"):
    CASES[f"nanquantile {_between}"] = case(
        lambda x, i=_between: paddle.nanquantile(x, [0.2, 0.75], 2, True, i),
        lambda x, i=_between: torch.nanquantile(x, torch.tensor([0.2, 0.75]), 2, True, interpolation=i),
        HOLES,
    )


test_value_and_gradient = family_test(CASES)


def test_mistakes():
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        x = paddle.static.data("x", [3, 4])
        with pytest.raises(OptionError, match="q must be from 0 to 1"):
            paddle.nanquantile(x, 1.5)
        with pytest.raises(InputError, match="one axis or none"):
            paddle.nanmedian(x, [0, 1])
        with pytest.raises(OptionError, match="expected 4 bins and 8 ranges"):
            paddle.histogramdd(x, [2, 2])
