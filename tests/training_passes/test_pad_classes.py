"""Scores over many classes with aligned rows: the same numbers, in tensor cores' fast kernels."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import PadClasses
from amp_transpiler.training_passes.class_columns import class_columns, saves_time
from tests.support import NUMPY, array
from tests.training_passes.training_step import step

ROWS, INPUTS, CLASSES = 6, 5, 10
FORWARD = {  # a weight [classes, inputs], as of tied embeddings, or [inputs, classes]
    "tied": ("p = Gemm <transB = 1> (h, w)", "dh = Gemm (d, w)", "dw = Gemm <transA = 1> (d, h)", (CLASSES, INPUTS)),
    "untied": (
        "p = MatMul (h, w)",
        "dh = Gemm <transB = 1> (d, w)",
        "dw = Gemm <transA = 1> (h, d)",
        (INPUTS, CLASSES),
    ),
}
LOW = {"float16": 2e-3, "bfloat16": 2e-2}  # how far results are off
SUMS = {  # how the gradient of the bias is written: a sum, a sum in float32, a product that sums
    "plain": "db = ReduceSum <keepdims = 0> (d, zero)",
    "wide": "f = Cast <to = 1> (d) t = ReduceSum (f, zero) u = Squeeze (t, zero) db = Cast <to = {to}> (u)",
    "product": "t = MatMul (n, d) db = Reshape (t, all)",
}


def last_layer(kind, dtype, *, bias=True, total="plain", more="", outputs=""):
    """The scores of a layer, their log probabilities at the labels, and the gradients of a mean cross entropy."""
    forward, to_rows, to_weight, shape = FORWARD[kind]
    to = int(ir.DataType[dtype.upper()])
    added = "s = Add (p, b)" if bias else ""
    summed = SUMS[total].format(to=to) if bias else "db = Identity (b)"
    results = {"e": (ROWS, 1), "dh": (ROWS, INPUTS), "dw": shape, "db": (CLASSES,)}
    typed = ", ".join(f"float{list(sizes)} {name}_high" for name, sizes in results.items())
    casts = " ".join(f"{name}_high = Cast <to = 1> ({name})" for name in results)
    scores = "s" if bias else "p"
    text = f"""(float[{ROWS},{INPUTS}] x, int64[{ROWS},1] l, float[{ROWS},1] r) => ({typed}{outputs})
        <int64[1] zero = {{0}}, int64[1] all = {{-1}}> {{ h = Cast <to = {to}> (x) {forward} {added}
        q = LogSoftmax <axis = 1> ({scores}) e = GatherElements <axis = 1> (q, l) a = Softmax <axis = 1> ({scores})
        v = Cast <to = {to}> (r) k = ScatterElements <axis = 1> (a, l, v) d = Mul (k, v)
        {to_rows} {to_weight} {summed} {casts} {more} }}"""
    numbers = NUMPY.get(dtype, np.float32)
    weights = {"w": array(*shape, seed=1).astype(numbers), "b": array(CLASSES, seed=2).astype(numbers)}
    weights["n"] = np.ones((1, ROWS), numbers)
    model = step(text, "d", **weights)
    infer_shapes(model)
    return model


FEEDS = {
    "x": array(ROWS, INPUTS, seed=3),
    "l": np.array([[0], [3], [9], [9], [5], [1]]),
    "r": array(ROWS, 1, seed=4),
}


def always(_):
    return True


@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "total", "digits"),
    [("float", "plain", 1e-6), *((low, total, digits) for low, digits in LOW.items() for total in SUMS)],
)
def test_the_numbers_stay(kind, bias, dtype, total, digits, run):
    model = last_layer(kind, dtype, bias=bias, total=total)
    before = run(emulate(model.clone()).model, FEEDS)
    assert run_pass(PadClasses(always), model).count == 1
    infer_shapes(model)
    width = 16 if dtype != "float" else 12
    softmax = next(node for node in model.graph if node.op_type == "Softmax")
    assert softmax.outputs[0].shape == (ROWS, width)
    products = [node for node in model.graph if node.op_type in ("Gemm", "MatMul")]
    assert all(CLASSES not in shape for node in products for shape in shapes(node))
    for old, new in zip(before, run(emulate(model).model, FEEDS), strict=True):
        np.testing.assert_allclose(new.astype("f"), old.astype("f"), rtol=digits, atol=digits)


def shapes(node):
    return [tuple(value.shape) for value in (*node.inputs[:2], *node.outputs)]


@pytest.mark.parametrize("kind", FORWARD)
def test_a_low_bias_is_a_column_and_its_gradient_another(kind):
    model = last_layer(kind, "float16", total="product")
    assert run_pass(PadClasses(always), model).count == 1
    kinds = [node.op_type for node in model.graph]
    assert kinds.count("Gemm") + kinds.count("MatMul") == 3
    assert kinds.count("Add") == 1  # of the zero that keeps the second copy of the weight behind the loss


def test_a_sum_of_float32_slopes_stays_float32(run):
    """It is not what the product has read, which was rounded."""
    more = "f = Cast <to = 1> (k) g = Mul (f, r) o = ReduceSum <keepdims = 0> (g, zero)"
    model = last_layer("tied", "float16", total="product", more=more, outputs=f", float[{CLASSES}] o")
    before = run(emulate(model.clone()).model, FEEDS)
    assert run_pass(PadClasses(always), model).count == 1
    sums = [node for node in model.graph if node.op_type == "ReduceSum"]
    assert [node.outputs[0].dtype.name for node in sums] == ["FLOAT"]
    for old, new in zip(before, run(emulate(model).model, FEEDS), strict=True):
        np.testing.assert_allclose(new.astype("f"), old.astype("f"), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("is_cast", [True, False], ids=["a cast", "an input"])
def test_a_weight_that_is_cast_is_copied_once(kind, is_cast):
    """Its copy stands for it until the gradient is there; that of an input would be alive beside it."""
    model = last_layer(kind, "float16", total="product")
    if is_cast:
        weight = model.graph.initializers["w"]
        wide = ir.Value(name="wide", type=ir.TensorType(ir.DataType.FLOAT), shape=weight.shape)
        model.graph.inputs.append(wide)
        low = ir.node("Cast", [wide], {"to": ir.DataType.FLOAT16})
        low.outputs[0].type, low.outputs[0].shape = weight.type, weight.shape
        weight.replace_all_uses_with(low.outputs[0])
        model.graph.insert_before(model.graph[0], low)
    assert run_pass(PadClasses(always), model).count == 1
    infer_shapes(model)
    copies = [node for node in model.graph if node.op_type in ("Pad", "Concat") and _is_weight(node.outputs[0])]
    assert [node.op_type for node in copies] == (["Pad"] if is_cast else ["Pad", "Concat"])


@pytest.mark.parametrize(("dtype", "kernel"), [("float", "Pad"), ("float16", "Pad"), ("bfloat16", "Concat")])
def test_the_first_copy_has_a_kernel_on_cuda(dtype, kernel):
    """ONNX Runtime's Pad is not registered for bfloat16 there."""
    model = last_layer("tied", dtype)
    assert run_pass(PadClasses(always), model).count == 1
    copy = next(node for node in model.graph if "w" in [value.name for value in node.inputs])
    assert copy.op_type == kernel


def _is_weight(value):
    return sorted(value.shape) in ([INPUTS, 16], [8, 16])


KEPT = {
    "scores that are read": {"more": "o = Exp (p)", "outputs": f", float[{ROWS},{CLASSES}] o"},
    "log probabilities that are read": {"more": "o = Neg (q)", "outputs": f", float[{ROWS},{CLASSES}] o"},
    "a result": {"more": "o = Identity (a)", "outputs": f", float[{ROWS},{CLASSES}] o"},
    "a maximum": {"more": "o = ReduceMax (q)", "outputs": ", float[1,1] o"},
    "a number of each class": {"more": "o = Mul (d, b)", "outputs": f", float[{ROWS},{CLASSES}] o"},
    "a sum over classes of scores": {"more": "o = Gemm (s, w)", "outputs": f", float[{ROWS},{INPUTS}] o"},
}


@pytest.mark.parametrize("name", KEPT)
def test_what_needs_exactly_the_classes_stays(name):
    assert not class_columns(last_layer("tied", "float", **KEPT[name]))


def test_aligned_scores_stay():
    model = step(
        f"(float[{ROWS},{INPUTS}] h, float[{INPUTS},12] w) => (float[{ROWS},12] a) "
        "{ p = MatMul (h, w) a = Softmax <axis = 1> (p) }",
        "a",
    )
    infer_shapes(model)
    assert not class_columns(model)


@pytest.mark.parametrize(
    ("rows", "inputs", "classes", "is_wide"), [(4096, 768, 30522, True), (64, 64, 1001, False), (1, 768, 30522, False)]
)
def test_prices_decide(rows, inputs, classes, is_wide):
    text = f"""(float16[{rows},{inputs}] h, float16[{inputs},{classes}] w, int64[{rows},1] l) => (float16[{rows},1] e)
        {{ p = MatMul (h, w) q = LogSoftmax <axis = 1> (p) e = GatherElements <axis = 1> (q, l) }}"""
    model = step(text, "e")
    infer_shapes(model)
    (columns,) = class_columns(model)
    assert columns.width == (30528 if classes == 30522 else 1008)
    assert saves_time(columns) == is_wide


# name: (inputs of the layer, factors of the rows, whether the weight's gradient is of the rows beside ones)
FACTORS = {
    "all rows": ("h = Identity (x)", "y = Identity (x) v = Identity (r)", False),
    "the same rows": ("h = Neg (x)", "y = Identity (h) v = Identity (r)", False),
    "these rows": ("h = Neg (x)", "v = Identity (r)", True),
    "left out with the factor 0": (
        "y = Neg (x) h = Where (c, none, y)",
        "u = Where (c, none, r) v = Mul (u, two)",
        True,
    ),
    "left out with another factor": ("y = Neg (x) h = Where (c, none, y)", "v = Mul (r, two)", False),
    "left out otherwise": ("y = Neg (x) h = Where (c, none, y)", "u = Where (c, none, r) v = Mul (two, r)", False),
}


@pytest.mark.parametrize("case", FACTORS.values(), ids=FACTORS)
def test_rows_with_factors_and_these_are_one_product(case, run):
    layer, factors, is_one = case
    rows = "y" if "y =" in layer + factors else "h"
    text = f"""(float[6,5] x, int64[6,1] l, float[6,1] r, bool[6,1] c) => (float[6,1] e, float[10,5] dw, float[10] db)
        <float none = {{0}}, float two = {{2}}, int64[2] turned = {{1, 6}}, int64[1] all = {{-1}}> {{
        {layer} {factors} p = Gemm <transB = 1> (h, w) s = Add (p, b)
        q = LogSoftmax <axis = 1> (s) e = GatherElements <axis = 1> (q, l) a = Softmax <axis = 1> (s)
        k = ScatterElements <axis = 1> (a, l, r) m = Mul ({rows}, v) d = Gemm <transA = 1> (k, m)
        dw = Neg (d) f = Reshape (v, turned) t = MatMul (f, k) g = Reshape (t, all) db = Neg (g) }}"""
    model = step(text, "k", w=array(10, 5, seed=1), b=array(10, seed=2))
    infer_shapes(model)
    feeds = {**FEEDS, "c": np.array([[False], [True], [False], [False], [True], [False]])}
    before = run(model, feeds)
    assert run_pass(PadClasses(always), model).count == 1
    beside = [node.inputs[1].producer().op_type for node in model.graph if node.op_type == "Gemm"]
    assert beside[-1] == ("Mul" if is_one else "Concat")
    for old, new in zip(before, run(model, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)
