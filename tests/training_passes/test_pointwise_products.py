"""1x1 convolutions of one sample as products: the same values, where the price list prefers them."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.training_passes import PointwiseProducts, pointwise_products
from tests.support import array, parse

X, WIDE = "float[1,64,32,48] x", "float[24,64,1,1] w"
# what is given, the node, the operator that it becomes; None where it stays
CASES = {
    "a convolution": (f"{X}, {WIDE}", "Conv (x, w)", "MatMul"),
    "its bias": (f"{X}, {WIDE}, float[24] b", "Conv (x, w, b)", "Gemm"),
    "one result": (f"{X}, float[1,64,1,1] w", "Conv <kernel_shape = [1, 1], pads = [0, 0, 0, 0]> (x, w)", "MatMul"),
    "a transposed one": (f"{X}, float[64,8,1,1] w", "ConvTranspose (x, w)", "FusedMatMul"),
    "a transposed one with a bias": (f"{X}, float[64,8,1,1] w, float[8] b", "ConvTranspose (x, w, b)", "Gemm"),
    "a signal": ("float[1,64,900] x, float[24,64,1] w", "Conv (x, w)", "MatMul"),
    "a turned weight": (
        f"{X}, float[64,24,1,1] v",
        "Conv (x, w)",
        "FusedMatMul",
    ),
    "two samples": (f"float[2,64,32,48] x, {WIDE}", "Conv (x, w)", None),
    "a window": (f"{X}, float[24,64,3,1] w", "Conv (x, w)", None),
    "strides": (f"{X}, {WIDE}", "Conv <strides = [2, 1]> (x, w)", None),
    "padding": (f"{X}, {WIDE}", "Conv <pads = [1, 0, 0, 0]> (x, w)", None),
    "groups": (f"{X}, float[24,16,1,1] w", "Conv <group = 4> (x, w)", None),
    "room at the end": (
        f"{X}, float[64,8,1,1] w",
        "ConvTranspose <output_padding = [1, 0], strides = [2, 1]> (x, w)",
        None,
    ),
    "unknown sizes": (f"float[1,64,H,48] x, {WIDE}", "Conv (x, w)", None),
}


@pytest.mark.parametrize(("given", "node", "wanted"), CASES.values(), ids=CASES)
def test_values(run, monkeypatch, given, node, wanted):
    monkeypatch.setattr(pointwise_products, "_is_faster", lambda *_: True)
    turned = "w = Transpose <perm = [1, 0, 2, 3]> (v) " if " v" in given else ""
    text = f"({given}) => (float[A,B,D,E] y) {{ {turned}y0 = {node} y = Relu (y0) }}"
    if "900" in given:
        text = text.replace("[A,B,D,E]", "[A,B,D]")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, opset=20)))
    propagate_types(model)
    feeds = {
        value.name: array(*(size if isinstance(size, int) else 32 for size in value.shape), seed=index)
        for index, value in enumerate(model.graph.inputs)
    }
    before = run(model, feeds)
    assert PointwiseProducts()(model).count == (wanted is not None)
    verify(model, "products")
    products = [part.op_type for part in model.graph if part.op_type in ("MatMul", "Gemm", "FusedMatMul")]
    assert products == ([wanted] if wanted else [])
    np.testing.assert_allclose(run(model, feeds)[0], before[0], rtol=1e-4, atol=1e-4)


def test_another_view_of_the_result_is_one_of_the_product(run, monkeypatch):
    monkeypatch.setattr(pointwise_products, "_is_faster", lambda *_: True)
    body = "<int64[2] shape = {24, -1}> { y0 = Conv (x, w) y = Reshape (y0, shape) }"
    text = f"({X}, {WIDE}) => (float[24,1536] y) {body}"
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, opset=20)))
    propagate_types(model)
    feeds = {"x": array(1, 64, 32, 48), "w": array(24, 64, 1, 1, seed=1)}
    before = run(model, feeds)
    PointwiseProducts()(model)
    *_, last = model.graph
    assert last.inputs[0].producer().op_type == "MatMul"
    np.testing.assert_allclose(run(model, feeds)[0], before[0], rtol=1e-4, atol=1e-4)


# type, sizes of data and weight -> whether a product is faster on an H100
PRICED = [
    ("float", "1,256,512,512", "256,256,1,1", 1),
    ("float16", "1,256,512,512", "256,256,1,1", 1),
    ("float", "1,64,14,14", "64,64,1,1", 0),
]


@pytest.mark.parametrize(("dtype", "data", "weight", "count"), PRICED)
def test_prices_decide(dtype, data, weight, count):
    text = f"({dtype}[{data}] x, {dtype}[{weight}] w) => ({dtype}[A,B,D,E] y) {{ y = Conv (x, w) }}"
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, opset=20)))
    propagate_types(model)
    assert PointwiseProducts()(model).count == count
