"""Query, key and value as one product, forward and backward."""

import collections

import numpy as np
import pytest

from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import JoinProducts
from tests.support import array
from tests.training_passes.training_step import step

HEADS, TURNED, BACK = "perm = [0, 2, 1, 3]", "perm = [0, 2, 3, 1]", "perm = [0, 3, 1, 2]"
WEIGHTS = {
    f"{name}{part}": array(*shape, seed=ord(part)).astype(np.float16)
    for part in "qkv"
    for name, shape in (("w", (8, 8)), ("b", (8,)))
}


def forward(part, perm, left="x"):
    return f"""p{part} = MatMul ({left}, w{part}) s{part} = Add (p{part}, b{part}) h{part} = Reshape (s{part}, heads)
        {part} = Transpose <{perm}> (h{part})"""


def backward(part, perm, extra=""):
    return f"""t{part} = Transpose <{perm}> (g{part}) r{part} = Reshape (t{part}, rows)
        u{part} = Transpose <perm = [1, 0]> (w{part}) l{part} = MatMul (r{part}, u{part})
        x{part} = Transpose <perm = [1, 0]> (x) dw{part} = MatMul (x{part}, r{part}) db{part} = MatMul (ones, r{part})
        ow{part} = Exp (dw{part}) ob{part} = Exp (db{part}) {extra}"""


def attention(forwards=None, backwards=None, end="y = Sum (e, lv, lk, lq)", more=""):
    """Query, key and value of 2 x 3 tokens of 2 heads, some use of each, and their gradients."""
    forwards = forwards or [forward("q", HEADS), forward("k", TURNED), forward("v", HEADS)]
    backwards = backwards or [backward("v", HEADS), backward("k", BACK), backward("q", HEADS)]
    results = ", ".join(f"float16[8,8] ow{part}, float16[1,8] ob{part}" for part in "qkv")
    return f"""(float16[6,8] x, float16[6,8] e, float16[2,2,3,4] gq, float16[2,2,3,4] gv, float16[2,2,4,3] a,
        float16[2,2,3,3] b) => (float16[2,2,3,4] o, float16[6,8] z, {results}{more})
        <int64[4] heads = {{2, 3, 2, 4}}, int64[2] rows = {{6, 8}}>
        {{ {" ".join(forwards)} c = MatMul (q, k) o = MatMul (c, v) gk = MatMul (a, b) {" ".join(backwards)}
        {end} z = Neg (y) }}"""


def operators(model):
    return collections.Counter(node.op_type for node in model.graph)


@pytest.mark.parametrize("end", ["y = Sum (e, lv, lk, lq)", "y = Sum (lv, lk, lq)"])
def test_three_products_become_one_each_way(end, run):
    model = step(attention(end=end), "gk", ones=np.ones((1, 6), np.float16), **WEIGHTS)
    feeds = {value.name: array(*value.shape, scale=0.3).astype(np.float16) for value in model.graph.inputs}
    before = run(emulate(model.clone()).model, feeds)
    assert run_pass(JoinProducts(), model).count == 3
    operators_now = operators(model)
    assert operators_now["MatMul"] == 1 + 2 + 1 + 3  # forward; scores and values; the key's gradient; three gradients
    assert operators_now["Split"] == 3
    assert operators_now["Sum"] == 0
    for old, new in zip(before, run(emulate(model).model, feeds), strict=True):
        np.testing.assert_allclose(new.astype("f"), old.astype("f"), rtol=4e-3, atol=4e-3)


KEPT = {
    "a result that is read elsewhere: the two others": attention(
        [forward("q", HEADS), forward("k", TURNED), forward("v", HEADS) + " more = Exp (pv)"],
        more=", float16[6,8] more",
    ),
    "other heads: the two others": attention(
        [forward("q", HEADS), forward("k", "perm = [0, 2, 3, 1]"), forward("v", "perm = [1, 2, 0, 3]")]
    ).replace("o = MatMul (c, v)", "o0 = Transpose <perm = [2, 0, 1, 3]> (v) o = MatMul (c, o0)"),
    "a gradient that is read elsewhere": attention(
        backwards=[backward("v", HEADS, "more = Exp (rv)"), backward("k", BACK), backward("q", HEADS)],
        more=", float16[6,8] more",
    ),
    "gradients that are not added at once": attention(end="y0 = Add (lv, lk) y = Add (y0, lq)"),
}


@pytest.mark.parametrize("name", KEPT)
def test_products_stay_whose_results_or_gradients_others_want(name):
    model = step(KEPT[name], "gk", ones=np.ones((1, 6), np.float16), **WEIGHTS)
    assert run_pass(JoinProducts(), model).count == (2 if name.endswith("the two others") else 0)
