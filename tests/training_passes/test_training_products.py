"""What a training step's products take in: sums, transposes, factors; and small casts and normalizations of sums."""

import numpy as np
import pytest

from amp_transpiler.fusion.skip_norms import FuseSkipNorms
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import CastTogether, FuseProducts, SumByProducts, WriteInPlace
from tests.support import array
from tests.training_passes.training_step import outline, step

F32, F16 = "to = 1", "to = 10"

# name: (graph, outline afterwards, None where nothing changes)
SUMS = {
    "a bias": (
        f"""(float16[6,4] x) => (float16[4] y) <int64[1] axes = {{0}}>
        {{ w = Cast <{F32}> (x) s = ReduceSum <keepdims = 0> (w, axes) y0 = Cast <{F16}> (s) y = Exp (y0) }}""",
        "MatMul Reshape Exp",
    ),
    "behind a squeeze": (
        f"""(float16[6,4] x) => (float16[4] y) <int64[1] axes = {{0}}>
        {{ w = Cast <{F32}> (x) k = ReduceSum (w, axes) s = Squeeze (k, axes)
           y0 = Cast <{F16}> (s) y = Exp (y0) }}""",
        "MatMul Reshape Exp",
    ),
    "a table of positions": (
        f"""(float16[3,2,4] x) => (float16[2,4] y) <int64[1] axes = {{0}}>
        {{ w = Cast <{F32}> (x) s = ReduceSum <keepdims = 0> (w, axes) y0 = Cast <{F16}> (s) y = Exp (y0) }}""",
        "Reshape MatMul Reshape Exp",
    ),
    "several leading axes": (
        f"""(float16[3,2,4] x) => (float16[1,1,4] y) <int64[2] axes = {{0, 1}}>
        {{ w = Cast <{F32}> (x) s = ReduceSum (w, axes) y0 = Cast <{F16}> (s) y = Exp (y0) }}""",
        "Reshape MatMul Reshape Exp",
    ),
    "low itself, in several blocks": (
        """(float16[128,32] x) => (float16[1,32] y) <int64[1] axes = {0}> { s = ReduceSum (x, axes) y = Neg (s) }""",
        "MatMul Reshape Neg",
    ),
    "low itself, over two axes in several blocks": (
        """(float16[8,16,32] x) => (float16[32] y) <int64[2] axes = {0, 1}>
        { s = ReduceSum <keepdims = 0> (x, axes) y = Neg (s) }""",
        "Reshape MatMul Reshape Neg",
    ),
    "low itself, in one block": (
        """(float16[127,32] x) => (float16[1,32] y) <int64[1] axes = {0}> { s = ReduceSum (x, axes) y = Neg (s) }""",
        None,
    ),
    "the last axis": (
        f"""(float16[6,4] x) => (float16[6] y) <int64[1] axes = {{1}}>
        {{ w = Cast <{F32}> (x) s = ReduceSum <keepdims = 0> (w, axes) y0 = Cast <{F16}> (s) y = Exp (y0) }}""",
        None,
    ),
    "a sum that is needed in float32": (
        f"""(float16[6,4] x) => (float16[4] y, float[4] z) <int64[1] axes = {{0}}> {{ w = Cast <{F32}> (x)
        s = ReduceSum <keepdims = 0> (w, axes) y0 = Cast <{F16}> (s) y = Exp (y0) z = Exp (s) }}""",
        None,
    ),
    "a float32 value": (
        f"""(float[6,4] x) => (float16[4] y) <int64[1] axes = {{0}}>
        {{ s = ReduceSum <keepdims = 0> (x, axes) y0 = Cast <{F16}> (s) y = Exp (y0) }}""",
        None,
    ),
}

PRODUCTS = {
    "both transposed": (
        (
            "(float[4,3] a, float[5,4] b) => (float[3,5] y) { c = Transpose (a) d = Transpose (b) y0 = MatMul (c, d) "
            "y = Identity (y0) }"
        ),
        "FusedMatMul Identity",
    ),
    "stacks": (
        (
            "(float[2,4,3] a, float[2,5,3] b) => (float[2,4,5] y) "
            "{ d = Transpose <perm = [0, 2, 1]> (b) y0 = MatMul (a, d) y = Identity (y0) }"
        ),
        "FusedMatMul Identity",
    ),
    "factors before and after": (
        (
            "(float[3,4] a, float[4,5] b) => (float[3,5] y) <float half = {0.5}, float third = {0.25}> "
            "{ c = Mul (a, half) y0 = MatMul (c, b) y1 = Mul (third, y0) y = Identity (y1) }"
        ),
        "FusedMatMul Identity",
    ),
    "a transpose that others read too": (
        (
            "(float[3,4] a, float[5,4] b) => (float[3,5] y, float[4,5] z) "
            "{ d = Transpose (b) y0 = MatMul (a, d) y = Identity (y0) z = Exp (d) }"
        ),
        "Transpose FusedMatMul Identity Exp",
    ),
    "rows before the stack": (
        (
            "(float[2,4,3] a, float[3,2,5] b) => (float[2,4,5] y) "
            "{ d = Transpose <perm = [1, 0, 2]> (b) y0 = MatMul (a, d) y = Identity (y0) }"
        ),
        "FusedMatMul Identity",
    ),
    "rows before a stack of two axes, turned": (
        (
            "(float[4,2,3,5] a, float[6,2,3,5] b) => (float[2,3,4,6] y) <float half = {0.5}> "
            "{ c = Transpose <perm = [1, 2, 0, 3]> (a) e = Mul (c, half) d = Transpose <perm = [1, 2, 3, 0]> (b) "
            "y0 = MatMul (e, d) y = Identity (y0) }"
        ),
        "FusedMatMul Identity",
    ),
    "turned twice": (
        (
            "(float[4,2,3,5] a, float[2,3,4,6] b) => (float[2,3,5,6] y) "
            "{ c = Transpose <perm = [1, 2, 0, 3]> (a) e = Transpose <perm = [0, 1, 3, 2]> (c) "
            "y0 = MatMul (e, b) y = Identity (y0) }"
        ),
        "FusedMatMul Identity",
    ),
    "rows before a stack, times a matrix": (
        (
            "(float[4,2,3] a, float[3,5] b) => (float[2,4,5] y) "
            "{ c = Transpose <perm = [1, 0, 2]> (a) y0 = MatMul (c, b) y = Identity (y0) }"
        ),
        None,
    ),
    "rows before a stack, times another stack": (
        (
            "(float[4,2,3] a, float[1,3,5] b) => (float[2,4,5] y) "
            "{ c = Transpose <perm = [1, 0, 2]> (a) y0 = MatMul (c, b) y = Identity (y0) }"
        ),
        None,
    ),
    "another permutation": (
        (
            "(float[2,4,3] a, float[5,3,2] b) => (float[2,4,5] y) "
            "{ d = Transpose <perm = [2, 1, 0]> (b) y0 = MatMul (a, d) y = Identity (y0) }"
        ),
        None,
    ),
    "a product with a bias": (
        (
            "(float[3,4] a, float[5,4] b, float[5] c) => (float[3,5] y) "
            "{ d = Transpose (b) y0 = MatMul (a, d) y = Add (y0, c) }"
        ),
        None,
    ),
    "a factor for each column": (
        (
            "(float[3,4] a, float[4,5] b) => (float[3,5] y) <float[1,4] each = {1, 2, 3, 4}> "
            "{ c = Mul (a, each) y0 = MatMul (c, b) y = Identity (y0) }"
        ),
        None,
    ),
    "vectors": (
        "(float[4] a, float[5,4] b) => (float[5] y) { d = Transpose (b) y0 = MatMul (a, d) y = Identity (y0) }",
        None,
    ),
}


@pytest.fixture
def emulated(run):
    """Run a model as a float32 program that rounds."""
    return lambda model, feeds: run(emulate(model.clone()).model, feeds)


NORMS = {
    "a sum that others read too": (
        """(float[6,4] a, float[6,4] b, float[4] s, float[4] t) => (float[6,4] y, float[6,4] z)
        { c = Add (a, b) y0 = LayerNormalization (c, s, t) y = Exp (y0) z = Exp (c) }""",
        "SkipLayerNormalization Exp Exp",
    ),
    "with a bias": (
        """(float[2,3,4] a, float[2,3,4] b, float[4] s, float[4] v) => (float[2,3,4] y)
        { d = Add (v, b) c = Add (a, d) y0 = LayerNormalization <axis = 2, epsilon = 0.1> (c, s) y = Exp (y0) }""",
        "SkipLayerNormalization Exp",
    ),
    "positions, the same for a batch": (
        """(float[2,3,4] a, float[3,4] b, float[4] s) => (float[2,3,4] y, float[2,3,4] z)
        { c = Add (b, a) y0 = LayerNormalization (c, s) y = Exp (y0) z = Exp (c) }""",
        "SkipLayerNormalization Exp Exp",
    ),
    "a batch of one": (
        """(float[2,3,4] a, float[1,3,4] b, float[4] s) => (float[2,3,4] y)
        { c = Add (a, b) y0 = LayerNormalization (c, s) y = Exp (y0) }""",
        "SkipLayerNormalization Exp",
    ),
    "with a bias and positions": (
        """(float[2,3,4] a, float[3,4] b, float[4] s, float[4] v) => (float[2,3,4] y)
        { d = Add (a, v) c = Add (d, b) y0 = LayerNormalization (c, s) y = Exp (y0) }""",
        "SkipLayerNormalization Exp",
    ),
    "with biased positions": (
        """(float[2,3,4] a, float[3,4] b, float[4] s, float[4] v) => (float[2,3,4] y)
        { d = Add (v, b) c = Add (d, a) y0 = LayerNormalization (c, s) y = Exp (y0) }""",
        "SkipLayerNormalization Exp",
    ),
    "a token, the same for all places": (
        """(float[2,3,4] a, float[2,1,4] b, float[4] s) => (float[2,3,4] y)
        { c = Add (a, b) y0 = LayerNormalization (c, s) y = Exp (y0) }""",
        None,
    ),
    "a biased term that others read too": (
        """(float[6,4] a, float[6,4] b, float[4] s, float[4] v) => (float[6,4] y, float[6,4] z)
        { d = Add (b, v) c = Add (a, d) y0 = LayerNormalization (c, s) y = Exp (y0) z = Exp (d) }""",
        "Add SkipLayerNormalization Exp Exp",
    ),
    "a vector alone": (
        """(float[6,4] a, float[4] v, float[4] s) => (float[6,4] y)
        { c = Add (a, v) y0 = LayerNormalization (c, s) y = Exp (y0) }""",
        None,
    ),
    "the mean is read": (
        """(float[6,4] a, float[6,4] b, float[4] s, float[4] t) => (float[6,4] y, float[6,1] z)
        { c = Add (a, b) y0, m = LayerNormalization (c, s, t) y = Exp (y0) z = Exp (m) }""",
        None,
    ),
    "over two axes": (
        """(float[6,4] a, float[6,4] b, float[6,4] s) => (float[6,4] y)
        { c = Add (a, b) y0 = LayerNormalization <axis = 0> (c, s) y = Exp (y0) }""",
        None,
    ),
}


def changed(pass_, text, run, left, tolerance):
    """Run the pass: the outputs stay close; return whether the outline is the expected one."""
    model = step(text, "y")
    before, feeds = outline(model), {x.name: array(*x.shape).astype(x.dtype.numpy()) for x in model.graph.inputs}
    old = run(model, feeds)
    result = run_pass(pass_, model)
    assert result.modified == (left is not None)
    after = outline(model).replace("| ", "")
    assert after == (before.replace("| ", "") if left is None else left)
    for before_value, other in zip(old, run(model, feeds), strict=True):
        np.testing.assert_allclose(
            before_value.astype(np.float32), other.astype(np.float32), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("case", SUMS.values(), ids=SUMS)
def test_a_low_sum_over_rows_is_a_product(case, emulated):
    text, left = case
    changed(SumByProducts(), text, emulated, left, 2**-10)


@pytest.mark.parametrize("case", PRODUCTS.values(), ids=PRODUCTS)
def test_transposes_and_factors_go_into_products(case, run):
    text, left = case
    changed(FuseProducts(), text, run, left, 1e-6)


@pytest.mark.parametrize("case", NORMS.values(), ids=NORMS)
def test_a_sum_goes_into_the_normalization_behind_it(case, run):
    text, left = case
    changed(FuseSkipNorms(), text, run, left, 1e-5)


WRITES = {
    "a row's label": ("x", "i", "", "Exp Concat Squeeze ScatterND Neg"),
    "of 32 bits": ("x", "k", "", "Exp Cast Concat Squeeze ScatterND Neg"),
    "data that others read too": ("x", "i", "z = Tanh (e)", None),
    "two a row": ("x", "two", "", None),
    "added": ("add", "i", "", None),
}


@pytest.mark.parametrize(("kind", "indices", "more", "left"), WRITES.values(), ids=WRITES)
def test_one_element_a_row_is_written_in_place(kind, indices, more, left, run):
    attributes = 'axis = 1, reduction = "add"' if kind == "add" else "axis = 1"
    columns = 2 if indices == "two" else 1
    outputs = "float[3,5] y, float[3,5] z" if more else "float[3,5] y"
    model = step(
        f"""(float[3,5] x, float[3,{columns}] u) => ({outputs})
        <int64[3,1] i = {{0, 4, -2}}, int32[3,1] k = {{1, 0, 3}}, int64[3,2] two = {{0, 1, 2, 3, 4, 0}}>
        {{ e = Exp (x) s = ScatterElements <{attributes}> (e, {indices}, u) y = Neg (s) {more} }}""",
        "y",
    )
    feeds = {x.name: array(*x.shape) for x in model.graph.inputs}
    old = run(model, feeds)
    assert run_pass(WriteInPlace(), model).modified == (left is not None)
    assert left is None or outline(model).replace("| ", "").replace("INT64", "Cast") == left
    for before_value, other in zip(old, run(model, feeds), strict=True):
        np.testing.assert_array_equal(before_value, other)


def test_small_parameters_of_one_shape_are_cast_together(run):
    names = [f"w{index}" for index in range(5)]
    inputs = ", ".join(f"float[4] {name}" for name in names)
    casts = " ".join(f"l{name} = Cast <{F16}> ({name})" for name in names)
    model = step(
        f"({inputs}, float[3] v) => (float16[4] y, float16[3] z) {{ {casts} lv = Cast <{F16}> (v) "
        f"y = Sum ({', '.join('l' + name for name in names)}) z = Exp (lv) }}",
        "y",
    )
    feeds = {x.name: array(*x.shape).astype(np.float32) + index for index, x in enumerate(model.graph.inputs)}
    old = run(model, feeds)
    assert run_pass(CastTogether(), model).count == 4
    assert outline(model) == "Concat FLOAT16 Split FLOAT16 | Sum Exp"
    for before_value, other in zip(old, run(model, feeds), strict=True):
        np.testing.assert_array_equal(before_value, other)


JOINED = {
    "each cast is read once": ("", "Concat FLOAT | Neg"),
    "one is read elsewhere": ("z = Tanh (c)", None),
}


@pytest.mark.parametrize(("more", "left"), JOINED.values(), ids=JOINED)
def test_values_that_are_cast_to_be_joined_are_joined_first(more, left, run):
    outputs = "float[5,4] y, float[2,4] z" if more else "float[5,4] y"
    model = step(
        f"""(float16[2,4] a, float16[3,4] b) => ({outputs}) {{ c = Cast <{F32}> (a)
        d = Cast <{F32}> (b) j = Concat <axis = 0> (c, d) y = Neg (j) {more} }}""",
        "y",
    )
    feeds = {x.name: array(*x.shape).astype(np.float16) for x in model.graph.inputs}
    old = run(model, feeds)
    assert run_pass(CastTogether(), model).modified == (left is not None)
    assert left is None or outline(model) == left
    for before_value, other in zip(old, run(model, feeds), strict=True):
        np.testing.assert_array_equal(before_value, other)


def test_three_parameters_are_cast_each_by_itself(run):
    model = step(
        f"(float[4] a, float[4] b, float[4] c) => (float16[4] y) {{ d = Cast <{F16}> (a) "
        f"e = Cast <{F16}> (b) f = Cast <{F16}> (c) y = Sum (d, e, f) }}",
        "y",
    )
    assert not run_pass(CastTogether(), model).modified


def test_rows_are_numbered_once_for_the_same_indices(run):
    model = step(
        """(float[3,5] x, int64[3,1] i, float[3,1] u, float[3,1] v) => (float[3,5] y)
        { e = Exp (x) s = ScatterElements <axis = 1> (e, i, u) n = Neg (s)
          t = ScatterElements <axis = 1> (n, i, v) y = Neg (t) }""",
        "y",
    )
    feeds = {name: array(3, size) for name, size in (("x", 5), ("u", 1), ("v", 1))} | {"i": np.array([[0], [4], [2]])}
    old = run(model, feeds)
    assert run_pass(WriteInPlace(), model).count == 2
    assert outline(model).count("Concat") == 1
    np.testing.assert_array_equal(old, run(model, feeds))
