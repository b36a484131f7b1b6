"""What ONNX Runtime would rewrite into nodes that run last, or copy, written before it sees a step."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import AddInPlace, FuseBiases
from tests.support import array
from tests.training_passes.training_step import outline, step

# name: (inputs and outputs, nodes, outline afterwards, None where nothing changes)
BIASES = {
    "a matrix": (
        "(float[3,4] x, float[4,5] w, float[5] b) => (float[3,5] y)",
        "p = MatMul (x, w) a = Add (p, b) y = Exp (a)",
        "Gemm Exp",
    ),
    "the bias first": (
        "(float[3,4] x, float[4,5] w, float[5] b) => (float[3,5] y)",
        "p = MatMul (x, w) y = Add (b, p)",
        "Gemm",
    ),
    "a batch of matrices": (
        "(float[2,3,4] x, float[4,5] w, float[5] b) => (float[2,3,5] y)",
        "p = MatMul (x, w) y = Add (p, b)",
        "Reshape Gemm Reshape",
    ),
    "a Gemm without one": (
        "(float[4,3] x, float[5,4] w, float[5] b) => (float[3,5] y)",
        "p = Gemm <transA = 1, transB = 1, alpha = 0.5> (x, w) y = Add (p, b)",
        "Gemm",
    ),
    "a product that is read twice": (
        "(float[3,4] x, float[4,5] w, float[5] b) => (float[3,5] y, float[3,5] z)",
        "p = MatMul (x, w) y = Add (p, b) z = Exp (p)",
        None,
    ),
    "a product that is an output": (
        "(float[3,4] x, float[4,5] w, float[5] b) => (float[3,5] y, float[3,5] p)",
        "p = MatMul (x, w) y = Add (p, b)",
        None,
    ),
    "a matrix is added": (
        "(float[3,4] x, float[4,5] w, float[3,5] b) => (float[3,5] y)",
        "p = MatMul (x, w) y = Add (p, b)",
        None,
    ),
    "a batch of right sides": (
        "(float[2,3,4] x, float[2,4,5] w, float[5] b) => (float[2,3,5] y)",
        "p = MatMul (x, w) y = Add (p, b)",
        None,
    ),
    "a vector times a matrix": (
        "(float[4] x, float[4,5] w, float[5] b) => (float[5] y)",
        "p = MatMul (x, w) y = Add (p, b)",
        None,
    ),
    "an unknown size": (
        "(float[N,4] x, float[4,5] w, float[5] b) => (float[N,5] y)",
        "p = MatMul (x, w) y = Add (p, b)",
        None,
    ),
}


@pytest.mark.parametrize(("declared", "nodes", "left"), BIASES.values(), ids=BIASES)
def test_a_bias_is_part_of_the_product(declared, nodes, left, run):
    model = step(f"{declared} {{ {nodes} }}", "p")
    feeds = {x.name: array(*[n if isinstance(n, int) else 3 for n in x.shape]) for x in model.graph.inputs}
    old = run(model, feeds)
    assert run_pass(FuseBiases(), model).modified == (left is not None)
    assert left is None or outline(model).replace("| ", "") == left
    for before_value, other in zip(old, run(model, feeds), strict=True):
        np.testing.assert_allclose(before_value, other, rtol=1e-6, atol=1e-6)


ADDED, PUT = 'axis = 0, reduction = "add"', "axis = 0"
EXPANDED = "e = Expand (n, shape) z = Reshape (e, all)"

# name: (attributes, nodes that make the data z, more nodes, outline afterwards, None where nothing changes)
SCATTERS = {
    "sums": (ADDED, EXPANDED, "", "Reshape Expand Reshape ScatterND Neg"),
    "numbers replaced": (PUT, EXPANDED, "", "Reshape Expand Reshape ScatterND Neg"),
    "no reshape": (ADDED, "z = Expand (n, all)", "", "Reshape Expand Reshape ScatterND Neg"),
    "the largest": ('axis = 0, reduction = "max"', EXPANDED, "", None),
    "data of other numbers": (ADDED, "e = Expand (three, shape) z = Reshape (e, all)", "", None),
    "data that is read elsewhere": (ADDED, EXPANDED, "also = Exp (e)", None),
    "an input": (ADDED, "", "", None),
}


@pytest.mark.parametrize(("attributes", "made", "more", "left"), SCATTERS.values(), ids=SCATTERS)
def test_sums_are_scattered_in_place(attributes, made, more, left, run):
    data, outputs = ("" if made else "float[12] z, "), "float[12] y, float[4,3] also" if more else "float[12] y"
    model = step(
        f"""({data}float[1] n, float[3] three, float[4] u) => ({outputs})
        <int64[2] shape = {{4, 3}}, int64[1] all = {{12}}, int64[4] i = {{2, 11, 2, 0}}>
        {{ {made} s = ScatterElements <{attributes}> (z, i, u) y = Neg (s) {more} }}""",
        "s",
    )
    if "add" not in attributes:  # in any order, so none twice
        model.graph.initializers["i"].const_value = ir.tensor(np.array([2, 11, 1, 0]))
    feeds = {x.name: array(*x.shape) for x in model.graph.inputs}
    old = run(model, feeds)
    assert run_pass(AddInPlace(), model).modified == (left is not None)
    assert left is None or outline(model).replace("| ", "") == left
    for before_value, other in zip(old, run(model, feeds), strict=True):
        np.testing.assert_array_equal(before_value, other)
