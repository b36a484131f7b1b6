"""Maxima, norms and products of long rows in stages: the same numbers."""

import numpy as np
import pytest

from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import ReduceInStages
from tests.support import array
from tests.training_passes.training_step import step

EXACT = ("ReduceMax", "ReduceMin")
OTHERS = ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceProd")


def reduction(operator, shape, axes, result, keepdims=0, element="float"):
    inputs, constant = (
        ("x, axes", f"<int64[{len(axes)}] axes = {{{', '.join(map(str, axes))}}}>") if axes else ("x", "")
    )
    text = f"""({element}{list(shape)} x) => ({element}{list(result)} y) {constant}
        {{ y = {operator} <keepdims = {keepdims}> ({inputs}) }}"""
    model = step(text, "y")
    infer_shapes(model)
    return model


SHAPES = {  # shape, axes, shape of the result, keepdims, reductions afterwards
    "a row": ((3, 3000), [1], (3,), 0, 2),
    "a row whose axis stays": ((3, 3000), [-1], (3, 1), 1, 2),
    "two axes": ((2, 60, 50), [1, 2], (2,), 0, 2),
    "everything": ((4, 5, 300), [], (), 0, 2),
    "three stages": ((1, 589824), [1], (1,), 0, 3),
}


@pytest.mark.parametrize("operator", [*EXACT, *OTHERS])
@pytest.mark.parametrize("name", SHAPES)
def test_the_numbers_stay(name, operator, run):
    shape, axes, result, keepdims, count = SHAPES[name]
    model = reduction(operator, shape, axes, result, keepdims)
    scale = 1e-3 if operator == "ReduceProd" else 1.0
    feeds = {"x": (1 + array(*shape, scale=scale) if operator == "ReduceProd" else array(*shape))}
    (before,) = run(model, feeds)
    assert run_pass(ReduceInStages(), model).count == 1
    reductions = [node for node in model.graph if node.op_type == operator]
    assert len(reductions) == count
    assert all(node.inputs[0].shape[1] <= 1024 for node in reductions)
    (after,) = run(model, feeds)
    np.testing.assert_allclose(after, before, rtol=0 if operator in EXACT else 2e-3)
    assert after.shape == before.shape


def test_a_low_maximum_is_staged_and_a_low_norm_is_not():
    assert run_pass(ReduceInStages(), reduction("ReduceMax", (3, 3000), [1], (3,), element="float16")).count == 1
    assert run_pass(ReduceInStages(), reduction("ReduceL2", (3, 3000), [1], (3,), element="float16")).count == 0


KEPT = {
    "short rows": ("ReduceMax", (3, 1024), [1], (3,)),
    "a sum": ("ReduceSum", (3, 3000), [1], (3,)),
    "first axes": ("ReduceMax", (3000, 3), [0], (3,)),
    "a prime": ("ReduceMax", (3, 3001), [1], (3,)),
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    assert run_pass(ReduceInStages(), reduction(*KEPT[name])).count == 0
