"""The gradient of a table of words that is the last layer's weight too: checked and replaced before it is summed up."""

import collections

import numpy as np
import pytest

from amp_transpiler.passes.manager import PassManager, run_pass
from amp_transpiler.update_passes import CheckByProducts, ZeroBeforeSums
from tests.update_passes.test_check_by_products import model_of, run

TABLE = """(float[64,96] x, int64[5,1] i, float[5,96] y, float[3,128] z) => (bool bad, float[64,96] g)
<float zero = {0}, float16 low_zero = {0}> {
    b1 = Cast<to=10>(x) b2 = Cast<to=1>(b1) b3 = Cast<to=10>(y) b4 = Cast<to=1>(b3)
    b5 = ScatterND<reduction="add">(b2, i, b4)
    x0 = Mul(b5, zero) x1 = ReduceSum<keepdims=0>(x0) z0 = Mul(z, zero) z1 = ReduceSum<keepdims=0>(z0)
    s = Sum(x1, z1) bad = IsNaN(s) g = Where(bad, zero, b5)
}"""


def kinds(model):
    return collections.Counter((node.op_type, node.outputs[0].dtype.name) for node in model.graph)


def feeds_with(poison, name):
    """A word comes twice; the sums of the largest numbers of float16 are none of float16."""
    feeds = {"x": np.full((64, 96), 65504.0, "f"), "y": np.full((5, 96), 65504.0, "f"), "z": np.ones((3, 128), "f")}
    feeds["i"] = np.array([[3], [0], [3], [63], [7]])
    if poison is not None:
        feeds[name].reshape(-1)[-1] = poison
    return feeds


@pytest.mark.parametrize("name", ["x", "y", "z"])
@pytest.mark.parametrize("poison", [None, np.inf, -np.inf, np.nan, 1e5], ids=str)
def test_the_check_and_the_sum_are_the_same(poison, name):
    before, model = model_of(TABLE), model_of(TABLE)
    result = PassManager([CheckByProducts(), ZeroBeforeSums(least=1000)])(model)
    assert result.modified
    assert kinds(model)["MatMul", "FLOAT16"] == 2, "of the product and of the rows"
    assert kinds(model)["MatMul", "FLOAT"] == 1, "of the other gradient"
    assert kinds(model)["Where", "FLOAT16"] == 2
    assert kinds(model)["Where", "FLOAT"] == 0
    assert kinds(model)["ScatterND", "FLOAT"] == 1
    feeds = feeds_with(poison, name)
    (bad, total), (bad_before, total_before) = run(model, feeds), run(before, feeds)
    assert bad == bad_before == (poison is not None and (name != "z" or not np.isfinite(poison)))
    np.testing.assert_array_equal(total, total_before)


KEPT = {  # what is changed: what it says
    "small": ("", "", 10000),
    "bfloat16, whose largest numbers have an infinite sum": ("to=10", "to=16", 1000),
    "float32 rows": ("b4 = Cast<to=1>(b3)", "b4 = Identity(y)", 1000),
    "no sum": ('<reduction="add">', "", 1000),
    "another number": ("Where(bad, zero, b5)", "Where(bad, z2, b5)", 1000),
    "a choice of elements": ("Where(bad, zero, b5)", "Where(some, zero, b5)", 1000),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_such_choice_stays(name):
    old, new, least = KEPT[name]
    text = TABLE.replace(old, new).replace("float zero = {0},", "float zero = {0}, float z2 = {2},")
    text = text.replace("g = Where", "some = Greater(x, zero) g = Where").replace(
        "float16 low_zero = {0}", "float u = {0}"
    )
    model = model_of(text)
    assert not run_pass(ZeroBeforeSums(least=least), model).modified
