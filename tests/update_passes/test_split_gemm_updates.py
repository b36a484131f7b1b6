"""An update that is one Gemm is written as a product and a sum; other Gemms stay."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.update_passes.split_gemm_updates import SplitGemmUpdates
from tests.support import run_on_noise

UPDATE = """<ir_version: 10, opset_import: ["" : 21]>
    step (float[8, 3] x, float[8, 2] d, float[3, 2] w) => (float[3, 2] w_new) {{ w_new = Gemm<{}>(x, d, w) }}"""

OTHERS = {
    "a bias": "step (float[8, 3] x, float[3, 2] d, float[2] w) => (float[8, 2] y) { y = Gemm(x, d, w) }",
    "another shape": "step (float[8, 3] x, float[3, 2] d, float[1, 2] w) => (float[8, 2] y) { y = Gemm(x, d, w) }",
    "no output": """step (float[8, 3] x, float[3, 2] d, float[8, 2] w) => (float[8, 2] y) {
        z = Gemm(x, d, w) y = Relu(z) }""",
    "no input": """step (float[8, 3] x, float[3, 2] d, float[8, 2] v) => (float[8, 2] y) {
        w = Relu(v) y = Gemm(x, d, w) }""",
    "no third operand": "step (float[8, 3] x, float[3, 2] d, float[8, 2] w) => (float[8, 2] y) { y = Gemm(x, d) }",
    "double": "step (double[8, 3] x, double[3, 2] d, double[8, 2] w) => (double[8, 2] y) { y = Gemm(x, d, w) }",
}


def model_of(text):
    model = ir.from_proto(onnx.parser.parse_model(text))
    propagate_types(model)
    return model


@pytest.mark.parametrize(
    ("attributes", "operators"),
    [
        ("transA=1, alpha=-0.25, beta=1.0", ["Gemm", "Constant", "Mul", "Add"]),
        ("transA=1", ["Gemm", "Constant", "Mul", "Add"]),
        ("transA=1, alpha=-0.5, beta=0.75", ["Gemm", "Constant", "Mul", "Constant", "Mul", "Add"]),
    ],
)
def test_an_update_is_split_and_computes_the_same(attributes, operators):
    model, before = model_of(UPDATE.format(attributes)), model_of(UPDATE.format(attributes))
    result = SplitGemmUpdates()(model)
    assert result.count == 1
    assert [node.op_type for node in model.graph] == operators
    assert [value.name for value in model.graph.outputs] == ["w_new"]
    np.testing.assert_allclose(run_on_noise(model), run_on_noise(before), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_other_products_stay(text):
    model = model_of(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    assert not SplitGemmUpdates()(model).modified


def test_its_gradient_is_low_and_its_update_float32():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        step (float[8, 3] x, float[8, 2] t, float[3, 2] w) => (float[3, 2] w_new) {
            y = MatMul(x, w)
            d = Sub(y, t)
            w_new = Gemm<transA=1, alpha=-0.001>(x, d, w)
        }""")
    report = amp.transpile(model, level="O2", verify=False)
    assert [(state.input, state.output, state.role) for state in report.states] == [("w", "w_new", "parameter")]
    precisions = {row.op: row.precision for row in report.decisions}
    assert (precisions["Gemm"], precisions["Mul"], precisions["Add"]) == ("low", "high", "high")
