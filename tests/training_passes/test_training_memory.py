"""Passes that shorten the life of large values in a training step: casts, equal nodes, halves of the rows."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import MergeEqual, PlaceCasts, SplitRows
from tests.support import array
from tests.training_passes.training_step import outline, same_after, step

F32, F16 = "to = 1", "to = 10"


# name: (graph, first value of the backward pass, edits, outline afterwards)
CASTS = {
    "a widened value is widened again": (
        f"""(float16[4] x) => (float[4] y, float[4] z)
        {{ a = Cast <{F32}> (x) y = Exp (a) b = Mul (a, a) z = Mul (b, a) }}""",
        "b",
        1,
        "FLOAT Exp | FLOAT Mul Mul",
    ),
    "the smallest beside large inputs stays": (
        f"""(float16[4] x, float[99] w, float16[40] v) => (float[4] y, float[4] z, float[40] s, float[40] t)
        {{ a = Cast <{F32}> (x) y = Exp (a) c = Cast <{F32}> (v) s = Exp (c) z = Mul (a, a) t = Mul (c, c) }}""",
        "z",
        1,
        "FLOAT Exp FLOAT Exp | Mul FLOAT Mul",
    ),
    "a parameter is rounded once a step": (
        f"(float[4] w) => (float16[4] y, float16[4] z) {{ a = Cast <{F16}> (w) y = Exp (a) z = Mul (a, a) }}",
        "z",
        0,
        "FLOAT16 Exp | Mul",
    ),
    "a float32 result that is needed anyway": (
        f"""(float[4] x) => (float16[4] y, float16[4] z, float[4] u)
        {{ h = Exp (x) a = Cast <{F16}> (h) y = Exp (a) z = Mul (a, a) u = Mul (h, h) }}""",
        "z",
        1,
        "Exp FLOAT16 Exp | FLOAT16 Mul Mul",
    ),
    "a rounded result stays, of half the size": (
        f"""(float[4] x) => (float16[4] y, float16[4] z)
        {{ h = Exp (x) a = Cast <{F16}> (h) y = Exp (a) z = Mul (a, a) }}""",
        "z",
        0,
        "Exp FLOAT16 Exp | Mul",
    ),
    "equal casts are one": (
        f"(float[4] x) => (float16[4] z) {{ a = Cast <{F16}> (x) b = Cast <{F16}> (x) c = Add (a, b) z = Exp (c) }}",
        "z",
        1,
        "FLOAT16 Add | Exp",
    ),
    "a cast goes before a movement": (
        f"""(float[2,3] x) => (float16[2,3] y, float16[3,2] z)
        {{ h = Exp (x) a = Cast <{F16}> (h) y = Exp (a) t = Transpose (h) b = Cast <{F16}> (t) z = Exp (b) }}""",
        "t",
        1,
        "Exp FLOAT16 Exp | Transpose Exp",
    ),
    "but not if the float32 one is read": (
        f"""(float[2,3] x) => (float16[2,3] y, float16[3,2] z, float[3,2] u) {{ h = Exp (x) a = Cast <{F16}> (h)
        y = Exp (a) t = Transpose (h) b = Cast <{F16}> (t) z = Exp (b) u = Exp (t) }}""",
        "t",
        0,
        "Exp FLOAT16 Exp | Transpose FLOAT16 Exp Exp",
    ),
    "and not before the cast is there": (
        f"""(float[2,3] x) => (float16[2,3] y, float16[3,2] z)
        {{ h = Exp (x) t = Transpose (h) b = Cast <{F16}> (t) z = Exp (b) a = Cast <{F16}> (h) y = Exp (a) }}""",
        "z",
        0,
        "Exp Transpose FLOAT16 | Exp FLOAT16 Exp",
    ),
    "no backward pass": (
        f"(float16[4] x) => (float[4] y, float[4] z) {{ a = Cast <{F32}> (x) y = Exp (a) z = Mul (a, a) }}",
        None,
        0,
        "FLOAT Exp Mul",
    ),
}


@pytest.mark.parametrize("case", CASTS.values(), ids=CASTS)
def test_casts_stand_next_to_their_readers(case, run):
    text, border, count, left = case
    model = step(text, border)
    feeds = {x.name: array(*x.shape).astype(x.dtype.numpy()) for x in model.graph.inputs}
    same_after(PlaceCasts(), model, run, feeds, count)
    assert outline(model) == left


# name: (nodes, first value of the backward pass, nodes removed, outline afterwards)
EQUAL = {
    "small ones of both passes": (
        "a = ReduceMean (x, axes) y = Exp (a) b = ReduceMean (x, axes) z = Mul (b, y)",
        "b",
        1,
        "ReduceMean Exp | Mul",
    ),
    "large ones are computed again": ("a = Exp (x) y = Mul (a, a) b = Exp (x) z = Add (b, b)", "b", 0, None),
    "unless both are in one pass": (
        "a = Exp (x) b = Exp (x) y = Mul (a, b) z = Add (a, a)",
        "z",
        1,
        "Exp Mul | Add",
    ),
    "what is computed from large equal ones": (
        "a = Exp (x) m = ReduceMean (a, axes) y = Add (m, a) b = Exp (x) n = ReduceMean (b, axes) z = Mul (n, y)",
        "b",
        2,
        "Exp ReduceMean Add | Mul",
    ),
    "equal constants": (
        "a = ReduceMean (x, axes) y = Exp (a) b = ReduceMean (x, again) z = Mul (b, y)",
        "b",
        1,
        "ReduceMean Exp | Mul",
    ),
    "other attributes": (
        "a = ReduceMean (x, axes) y = Exp (a) b = ReduceMean <keepdims = 0> (x, axes) z = Mul (b, y)",
        "b",
        0,
        None,
    ),
    "random numbers": (
        """a = RandomNormalLike <seed = 1.0> (x) y = ReduceMean (a, axes) b = RandomNormalLike <seed = 1.0> (x)
        z = ReduceMean (b, axes)""",
        "z",
        0,
        None,
    ),
}


@pytest.mark.parametrize("case", EQUAL.values(), ids=EQUAL)
def test_equal_nodes_are_merged_by_size(case, run):
    nodes, border, count, left = case
    axes = {name: np.array([1]) for name in ("axes", "again") if name in nodes}
    model = step(f"(float[4,5] x) => (float[a,b] y, float[c,d] z) {{ {nodes} }}", border, **axes)
    before = outline(model)
    if "Random" in nodes:
        assert run_pass(MergeEqual(share=5), model).count == count
    else:
        same_after(MergeEqual(share=5), model, run, {"x": array(4, 5)}, count)
    assert outline(model) == (left or before)


LOSS = """(float16[5,6] x, int64[5,1] labels, float[5,1] weight) => (float16[5,6] y, float[1,6] total) {
    wide = Cast <to = 1> (x)
    share = Softmax <axis = 1> (wide)
    own = GatherElements <axis = 1> (share, labels)
    missed = Sub (own, one)
    less = ScatterElements <axis = 1> (share, labels, missed)
    g = Mul (less, weight)
    low = Cast <to = 10> (g)
    total = ReduceSum (g, rows)
    y = Neg (low)
}"""


def loss(text=LOSS):
    return step(text, "wide", one=np.float32(1), rows=np.array([0]), turned=np.array([1, 5]))


WEIGHED = LOSS.replace("total = ReduceSum (g, rows)", "row = Reshape (weight, turned) total = MatMul (row, less)")


@pytest.mark.parametrize("text", [LOSS, WEIGHED], ids=["a sum", "a product with a row of weights"])
def test_a_loss_is_computed_in_parts(text, run):
    model, random = loss(text), np.random.default_rng(0)
    feeds = {
        "x": array(5, 6).astype(np.float16),
        "labels": random.integers(0, 6, (5, 1)),
        "weight": array(5, 1, seed=1),
    }
    before = run(model, feeds)
    assert run_pass(SplitRows(large=30), model).count == 1
    after = run(model, feeds)
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_allclose(before[1], after[1], atol=1e-6)
    wide = {tuple(value.shape) for node in model.graph for value in node.outputs if value.dtype == ir.DataType.FLOAT}
    assert wide - {(1, 5), (1, 1), (1, 2)} == {(1, 6), (2, 6), (2, 1)}


# what is changed: why it is not split
WHOLE = {
    "small": (LOSS, 31),
    "a reader in between": (LOSS.replace("less = ", "other = Tanh (share) less = "), 30),
    "a float32 result": (LOSS.replace("y = Neg", "z = Tanh (g) y = Neg"), 30),
    "nothing is picked": (
        LOSS.replace("GatherElements <axis = 1> (share, labels)", "Identity (one)").replace(
            "ScatterElements <axis = 1> (share, labels, missed)", "Neg (share)"
        ),
        30,
    ),
    "rows that depend on each other": (LOSS.replace("Softmax <axis = 1>", "Softmax <axis = 0>"), 30),
}


@pytest.mark.parametrize(("text", "large"), WHOLE.values(), ids=WHOLE)
def test_what_cannot_be_split_stays_whole(text, large):
    if "z = Tanh" in text:
        text = text.replace("total)", "total, float[5,6] z)")
    model = loss(text)
    before = outline(model)
    assert not run_pass(SplitRows(large=large), model).modified
    assert outline(model) == before
