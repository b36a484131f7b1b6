"""A convolution and its bias become two operators that compute the same; other nodes stay."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes.split_biases import SplitBiases
from tests.support import run_on_noise

CONVOLUTIONS = {
    "an image": (
        "float[2, 4, 6, 6] x, float[6, 2, 3, 3] w, float[6] b",
        "Conv<group=2, strides=[2, 1], pads=[1, 0, 1, 0]>",
    ),
    "a sequence": ("float[2, 4, 6] x, float[6, 4, 3] w, float[6] b", "Conv<dilations=[2]>"),
    "a transposed one": ("float[2, 4, 5, 5] x, float[4, 3, 2, 2] w, float[3] b", "ConvTranspose<strides=[2, 2]>"),
}
OTHERS = {
    "no bias": ("float[2, 4, 6, 6] x, float[6, 4, 3, 3] w", "Conv(x, w)"),
    "double": ("double[2, 4, 6, 6] x, double[6, 4, 3, 3] w, double[6] b", "Conv(x, w, b)"),
    "a product": ("float[2, 4] x, float[4, 6] w, float[6] b", "Gemm(x, w, b)"),
}


def model_of(inputs, node, kind="float"):
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({kind} y) {{ y = {node} }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    propagate_types(model)
    return model


@pytest.mark.parametrize(("inputs", "node"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_bias_becomes_an_addition(inputs, node):
    model, before = (model_of(inputs, f"{node}(x, w, b)") for _ in range(2))
    assert run_pass(SplitBiases(lambda _: True), model).count == 1
    assert [member.op_type for member in model.graph] == [before.graph[0].op_type, "Constant", "Reshape", "Add"]
    assert [value.name for value in model.graph.outputs] == ["y"]
    np.testing.assert_allclose(run_on_noise(model), run_on_noise(before), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("inputs", "node"), OTHERS.values(), ids=OTHERS)
def test_other_nodes_stay(inputs, node):
    model = model_of(inputs, node, "double" if "double" in inputs else "float")
    assert not SplitBiases(lambda _: True)(model).modified


def test_who_decides_is_asked():
    inputs, node = CONVOLUTIONS["an image"]
    assert not SplitBiases(lambda _: False)(model_of(inputs, f"{node}(x, w, b)")).modified
