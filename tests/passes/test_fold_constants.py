"""Floats that are computed only from constants become constants, where an engine is built of the file."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.passes.fold_constants import FoldConstants
from tests.support import array, parse, run

W = array(8, 8, seed=3)
KERNEL = "c = Clip (v, least, most) a = Cos (c) s = Sin (c) k = Mul (a, s) y = MatMul (x, k)"

# name: (nodes, operators that are left)
CASES = {
    "a kernel": (KERNEL, ["Constant", "MatMul"]),
    "one that only parts are known of": (
        "c = Cos (v) s = Selu (c) a = Add (s, least) y = MatMul (x, a)",
        ["Add", "Constant", "MatMul", "Selu"],
    ),
    "read by two": ("a = Cos (v) b = MatMul (x, a) y = MatMul (b, a)", ["Constant", "MatMul", "MatMul"]),
    "a weight that is only moved": ("t = Transpose (v) y = MatMul (x, t)", ["MatMul", "Transpose"]),
    "moved at the end": (
        "c = Cos (v) t = Transpose (c) y = MatMul (x, t)",
        ["Constant", "MatMul", "Transpose"],
    ),
    "too large": (
        "c = Cos (v) e = Expand (c, many) f = Cos (e) m = ReduceMax <keepdims = 0> (f, first) y = MatMul (x, m)",
        ["Constant", "Cos", "Expand", "MatMul", "ReduceMax"],
    ),
    "sizes stay integers": ("n = Add (shape, one) y = Expand (x, n)", ["Add", "Expand"]),
}
NUMBERS = {
    "v": W,
    "least": np.float32(-0.5),
    "most": np.float32(0.5),
    "many": np.array([1 << 15, 8, 8]),
    "first": np.array([0]),
    "shape": np.array([3, 7]),
    "one": np.array([1, 1]),
}


def of(text):
    used = {name: value for name, value in NUMBERS.items() if f"{name}," in text or f"{name})" in text}
    return parse(f"(float[n, 8] x) => (float[m, 8] y) {{ {text} }}", opset=18, **used)


@pytest.mark.parametrize(("text", "operators"), CASES.values(), ids=CASES)
def test_what_is_folded(text, operators):
    proto = of(text)
    model = ir.from_proto(proto)
    result = FoldConstants()(model)
    assert sorted(node.op_type for node in model.graph) == operators
    assert result.count == operators.count("Constant")
    feeds = {"x": array(4, 8)}
    np.testing.assert_allclose(run(proto, feeds)["y"], run(ir.to_proto(model), feeds)["y"], rtol=1e-5, atol=1e-6)


def test_a_result_of_the_model_keeps_its_name():
    proto = parse("(float[n, 8] x) => (float[8, 8] k, float[n, 8] y) { k = Cos (v) y = MatMul (x, k) }", v=W)
    assert not FoldConstants()(ir.from_proto(proto)).modified


@pytest.mark.parametrize(("target", "folds"), [("tensorrt", True), ("any", False), ("cuda", False)])
def test_it_is_rounded_once_in_the_file_of_an_engine(target, folds):
    report = amp.transpile(of(KERNEL), target=target, level="O2", verify=False, build="no")
    graph = report.program.model.graph
    assert {"Cos", "Sin"}.isdisjoint(node.op_type for node in graph) == folds
    kernel = next(node for node in graph if node.op_type == "MatMul").inputs[1]
    if folds:
        clipped = np.clip(W, -0.5, 0.5)
        expected = (np.cos(clipped) * np.sin(clipped)).astype(np.float16)
        np.testing.assert_allclose(constant_array(kernel), expected, rtol=1e-3)
