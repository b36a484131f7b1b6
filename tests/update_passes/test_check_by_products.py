"""The check for infinity by products with zeros, and updates that read gradients before they are rounded."""

import collections

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.update_passes import CheckByProducts, ReadUnrounded


def model_of(text):
    """A model from text; values that begin with `b` are the backward pass's, others the optimizer's."""
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> step {text}')
    infer_shapes(model)
    for node in model.graph:
        node.metadata_props[ROLE_KEY] = "backward" if str(node.outputs[0].name).startswith("b") else "optimize"
    return model


def kinds(model):
    return collections.Counter(node.op_type for node in model.graph)


def run(model, feeds):
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


TWO_TYPES = """(float[8,96] x, float[3,128] y, float16[1024] z, float[5] w) => (bool bad)
<float zero = {0}, float16 low = {0}> {
    x0 = Mul(x, zero) x1 = ReduceSum<keepdims=0>(x0) y0 = Mul(y, zero) y1 = ReduceSum<keepdims=0>(y0)
    z0 = Mul(z, low) z1 = ReduceSum<keepdims=0>(z0) w0 = Mul(w, zero) w1 = ReduceSum<keepdims=0>(w0)
    s0 = Sum(z1) s1 = Cast<to=1>(s0) s2 = Sum(x1, y1, w1) s3 = Sum(s2, s1) bad = IsNaN(s3)
}"""


@pytest.mark.parametrize("poison", [None, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["x", "y", "z", "w"])
def test_what_is_found_is_the_same(poison, name):
    before, model = model_of(TWO_TYPES), model_of(TWO_TYPES)
    assert run_pass(CheckByProducts(), model).count == 3, "what is short is left"
    assert kinds(model)["MatMul"] == 3
    assert kinds(model)["ReduceSum"] == 2
    assert not kinds(model)["Sum"]
    shapes = {"x": (8, 96), "y": (3, 128), "z": 1024, "w": 5}
    feeds = {key: np.full(shape, 60000.0, np.float16 if key == "z" else np.float32) for key, shape in shapes.items()}
    feeds["x"][1, 2] = feeds["y"][0, 0] = np.finfo(np.float32).max
    if poison is not None:
        feeds[name].reshape(-1)[-1] = poison
    assert run(model, feeds)[0] == run(before, feeds)[0] == (poison is not None)


@pytest.mark.parametrize(
    "body",
    [
        "a = Mul(x, one) c = ReduceSum<keepdims=0>(a) d = ReduceSum<keepdims=0>(y) t = Sum(c, d)",
        "a = Mul(x, zero) c = ReduceSum<keepdims=0>(a) t = Sum(c)",
        "a = Mul(x, zero) c = ReduceMax<keepdims=0>(a) d = ReduceSum<keepdims=0>(y) t = Sum(c, d)",
    ],
    ids=["no zero", "one alone", "no sum"],
)
def test_other_sums_stay(body):
    head = "(float[8,96] x, float[3,128] y) => (float s) <float zero = {0}, float one = {1}>"
    assert not run_pass(CheckByProducts(), model_of(f"{head} {{ {body} s = Neg(t) }}")).modified


ROUNDED = """(float[8,96] x, float[4,64] y, float[] rate, float[8,96] w) => (float[8,96] n{more})
<float16 zero = {{0}}, float wide = {{0}}> {{
    b0 = Neg(x) b1 = Cast<to=10>(b0) b2 = Identity(b1)
    c0 = Mul(b2, zero) c1 = ReduceSum<keepdims=0>(c0) c2 = Cast<to=1>(c1)
    d0 = Mul(y, wide) d1 = ReduceSum<keepdims=0>(d0) e = Sum(c2, d1) bad = IsNaN(e)
    g0 = Where(bad, zero, b2) g1 = Cast<to=1>(g0) g2 = Mul(g1, rate) n = Sub(w, g2)
}}"""


@pytest.mark.parametrize(("more", "casts"), [("", 0), (", float16[8,96] b2", 1)], ids=["read by no other", "fetched"])
def test_an_update_reads_what_a_gradient_was_rounded_from(more, casts):
    model = model_of(ROUNDED.format(more=more))
    assert not run_pass(ReadUnrounded(), model).count, "a small one"
    assert run_pass(ReadUnrounded(least=8 * 96), model).count == 1
    run_pass(CheckByProducts(), model)
    gradients = [node for node in model.graph if node.op_type == "Cast" and node.outputs[0].shape.rank() == 2]
    assert len(gradients) == casts
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(8, 96)), "y": np.ones((4, 64)), "rate": np.array(0.5), "w": np.ones((8, 96))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    np.testing.assert_array_equal(run(model, feeds)[0], feeds["w"] + feeds["x"] * np.float32(0.5))
    feeds["x"][0, 0] = np.inf
    np.testing.assert_array_equal(run(model, feeds)[0], feeds["w"])


UNCHECKED = """(float[8,96] x, float[] rate, float[8,96] w) => (float[8,96] n{more}) {{
    b0 = Neg(x) b1 = Cast<to=16>(b0) b2 = Identity(b1) g1 = Cast<to=1>(b2) g2 = Mul(g1, rate) n = Sub(w, g2)
}}"""


@pytest.mark.parametrize(("more", "count"), [("", 1), (", bfloat16[8,96] b2", 0)], ids=["read by no other", "fetched"])
def test_an_update_without_a_check_reads_what_a_gradient_was_rounded_from(more, count):
    model = model_of(UNCHECKED.format(more=more))
    assert run_pass(ReadUnrounded(least=8 * 96), model).count == count
    assert kinds(model)["Cast"] == 2 * (1 - count)
    if not count:
        return
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(8, 96)), "rate": np.array(0.5), "w": np.ones((8, 96))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    np.testing.assert_array_equal(run(model, feeds)[0], feeds["w"] + feeds["x"] * np.float32(0.5))
