"""BatchNormalization in training mode with low outputs: what is written computes what the source does, in every run."""

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.proto import to_proto

NORM = "n, rm, rv = BatchNormalization <training_mode = 1> ({}, s, b, m, v)"
KINDS = {
    "conv": ("[n, 3, 8, 8]", 4, "a = Conv <pads = [1, 1, 1, 1]> (x, w) " + NORM.format("a") + " y = Relu (n)"),
    "alone": ("[n, 4, 5]", 4, NORM.format("x") + " y = Identity (n)"),
    "rows": ("[n, 4]", 4, "a = Tanh (x) " + NORM.format("a") + " y = Sigmoid (n)"),
    "matmul": ("[n, 6]", 4, "a = MatMul (x, w) " + NORM.format("a") + " y = Relu (n)"),
    "momentum": ("[n, 4, 5]", 4, NORM.format("x").replace("= 1>", "= 1, momentum = 0.5>") + " y = Relu (n)"),
    "constants of their own": ("[n, 4, 5]", 4, NORM.format("x") + " y = Relu (n)"),
}
WEIGHTS = {"conv": (4, 3, 3, 3), "matmul": (6, 4)}


def built(kind):
    shape, channels, text = KINDS[kind]
    out = shape.replace("3, 8", "4, 8").replace("6", "4")
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g (float{shape} x) => (float{out} y, '
        f"float[4] rm, float[4] rv) {{ {text} }}"
    )
    random = np.random.default_rng(0)
    added = 0.5 if kind == "constants of their own" else 0.0
    arrays = {
        "s": np.ones(channels),
        "b": np.zeros(channels) + added,
        "m": np.zeros(channels),
        "v": np.ones(channels) + added,
    }
    if kind in WEIGHTS:
        arrays["w"] = random.standard_normal(WEIGHTS[kind])
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    sizes = [5 if part == "n" else int(part) for part in shape[1:-1].split(", ")]
    return model, 3 * random.standard_normal(sizes).astype(np.float32) + 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_the_source_does(kind, dtype):
    model, x = built(kind)
    report = amp.transpile(model, inputs={"x": x}, keep_io_types=False, dtype=dtype, prefer="size")
    assert "verified" in report.verdict
    if dtype == "bfloat16":
        return  # no kernels on the CPU
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    session = onnxruntime.InferenceSession(to_proto(report.program.model).SerializeToString())
    for _ in range(3):
        for result, expected in zip(session.run(None, {"x": x.astype(np.float16)}), wanted, strict=True):
            np.testing.assert_allclose(result.astype(np.float32), expected, atol=0.02 * np.abs(expected).max())


def test_float32_outputs_keep_the_operator():
    model, x = built("conv")
    report = amp.transpile(model, inputs={"x": x}, prefer="size")
    assert "BatchNormalization" in [node.op_type for node in report.program.model.graph]
