"""Sums of look-ups in short pieces: the same numbers."""

import numpy as np
import pytest

from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import ShortenScatters
from tests.support import array
from tests.training_passes.training_step import same_after, step


def scatter(table, indices, updates, reduction="add"):
    text = f"""(float{list(table)} t, int64{list(indices)} i, float{list(updates)} u) => (float{list(table)} y)
        {{ y = ScatterND <reduction = "{reduction}"> (t, i, u) }}"""
    model = step(text, "y")
    infer_shapes(model)
    return model


SHAPES = {
    "rows of 64": ((7, 64), (5, 1), (5, 64)),
    "two axes of indices": ((7, 96), (2, 3, 1), (2, 3, 96)),
    "rows of two axes": ((7, 4, 20), (5, 1), (5, 4, 20)),
    "rows of 66: pieces of 2": ((7, 66), (5, 1), (5, 66)),
    "rows of 67: pieces of 1": ((7, 67), (5, 1), (5, 67)),
}


@pytest.mark.parametrize("reduction", ["add", "none", "max"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_sums_stay(name, reduction, run):
    table, indices, updates = SHAPES[name]
    rows = np.arange(np.prod(indices)) if reduction == "none" else np.array([1, 3, 1, -1, 6, 0])[: np.prod(indices)]
    feeds = {"t": array(*table, seed=1), "i": rows.reshape(indices), "u": array(*updates, seed=2)}
    model = scatter(table, indices, updates, reduction)
    same_after(ShortenScatters(), model, run, feeds, 1)
    (node,) = [node for node in model.graph if node.op_type == "ScatterND"]
    assert node.inputs[0].shape[1] <= 16


KEPT = {
    "short rows": ((7, 32), (5, 1), (5, 32)),
    "rows by two numbers": ((7, 9, 64), (5, 2), (5, 64)),
    "single numbers": ((7,), (5, 1), (5,)),
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    assert run_pass(ShortenScatters(), scatter(*KEPT[name])).count == 0
