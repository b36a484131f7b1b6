"""The oracle's own operators, each against ONNX Runtime in float32."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from tests.oracle.fast_operators import FAST
from tests.oracle.interpreter import Interpreter

_IMAGE = (2, 4, 7, 9)

# operator and attributes in ONNX text, shapes of the inputs (a list: an int64 constant), opset
CASES = [
    ("Conv", _IMAGE, (6, 4, 3, 3)),
    ("Conv <pads = [1, 0, 2, 1], strides = [2, 1]>", _IMAGE, (6, 4, 3, 2), (6,)),
    ("Conv <group = 2, dilations = [2, 3]>", _IMAGE, (6, 2, 2, 2)),
    ("Conv <group = 4, pads = [1, 1, 1, 1]>", _IMAGE, (4, 1, 3, 3), (4,)),
    ("Conv <group = 4>", _IMAGE, (8, 1, 3, 3)),
    ('Conv <auto_pad = "SAME_UPPER", strides = [2, 2]>', _IMAGE, (3, 4, 4, 2)),
    ('Conv <auto_pad = "SAME_LOWER", strides = [3, 2]>', _IMAGE, (3, 4, 2, 4)),
    ('Conv <auto_pad = "VALID">', _IMAGE, (3, 4, 2, 4)),
    ("Conv <strides = [2]>", (1, 3, 11), (5, 3, 4)),
    ("Conv", (1, 2, 4, 5, 6), (3, 2, 2, 3, 2)),
    ("Conv <pads = [1, 1, 1, 1]>", (1, 64, 70, 80), (8, 64, 3, 3)),
    ("ConvTranspose", _IMAGE, (4, 5, 3, 2), (5,)),
    ("ConvTranspose <group = 2, strides = [2, 3], dilations = [1, 2]>", _IMAGE, (4, 3, 3, 2)),
    ("ConvTranspose <strides = [2, 2], pads = [1, 0, 1, 1], output_padding = [1, 0]>", _IMAGE, (4, 3, 3, 3)),
    ("ConvTranspose <strides = [2, 2], output_shape = [15, 18]>", _IMAGE, (4, 3, 3, 3)),
    ('ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER">', _IMAGE, (4, 3, 3, 3)),
    ("MaxPool <kernel_shape = [3, 2], strides = [2, 3], pads = [1, 0, 1, 1]>", _IMAGE),
    ("MaxPool <kernel_shape = [2, 2], dilations = [2, 3]>", _IMAGE),
    ('MaxPool <kernel_shape = [2, 3], auto_pad = "SAME_LOWER", strides = [2, 2]>', _IMAGE),
    ("MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>", _IMAGE),
    ("AveragePool <kernel_shape = [3, 2], strides = [2, 3], pads = [1, 0, 1, 1]>", _IMAGE),
    ("AveragePool <kernel_shape = [3, 2], count_include_pad = 1, pads = [1, 0, 1, 1]>", _IMAGE),
    ("AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>", _IMAGE),
    ("GlobalMaxPool", _IMAGE),
    ("GlobalMaxPool", (2, 3, 5)),
    ("Erf", (3, 4)),
    ("GatherElements <axis = 1>", (3, 4), [[0, -1], [2, 1]]),
    ("Pad", (3, 4), [1, 0, 2, 1]),
    ("Pad", (3, 4), [-1, 2, 1, -2]),
    ('Pad <mode = "edge">', (3, 4), [0, 1, 1, 2]),
    ('Pad <mode = "reflect">', (3, 4), [0, 1, 1, 2]),
    ("STFT <onesided = 1>", (1, 32), [8], (16,)),
    ("STFT <onesided = 0>", (2, 32, 1), [5], (16,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_operator_computes_what_onnx_runtime_computes(case):
    call, *inputs = case
    random = np.random.default_rng(7)
    feeds = {
        f"x{i}": np.array(shape, np.int64) if isinstance(shape, list) else random.normal(size=shape).astype(np.float32)
        for i, shape in enumerate(inputs)
    }
    if call.startswith("STFT"):
        feeds["x1"] = feeds["x1"].reshape(())  # its step is a scalar
    operator, _, options = call.partition(" ")
    declared = ", ".join(_declared(name, array) for name, array in feeds.items())
    node = f"y = {operator} {options}({', '.join(feeds)})"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g ({declared}) => (float y) {{ {node} }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    wanted = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    got = Interpreter(model).run(feeds)["y"]
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def _declared(name: str, array: np.ndarray) -> str:
    return f"{'int64' if array.dtype == np.int64 else 'float'}[{','.join(map(str, array.shape))}] {name}"


def test_every_operator_has_a_case():
    tested = {case[0].split()[0] for case in CASES}
    elsewhere = {"Scatter", "DequantizeLinear", "BatchNormalization"}  # in ONNX's node tests, and below
    assert {operator.__name__ for operator in FAST} == tested | elsewhere


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 15, 18])
@pytest.mark.parametrize("options", ["", "<epsilon = 0.01>", "<momentum = 0.5>"])
def test_batch_normalization_takes_the_statistics_that_are_given(opset, options):
    random = np.random.default_rng(3)
    feeds = {"x": random.normal(3.0, 2.0, (2, 4, 5, 6)).astype(np.float32)}
    feeds |= {name: random.uniform(0.5, 2.0, 4).astype(np.float32) for name in ("scale", "bias", "mean", "variance")}
    declared = ", ".join(_declared(name, array) for name, array in feeds.items())
    node = f"y = BatchNormalization {options}({', '.join(feeds)})"
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({declared}) => (float[2, 4, 5, 6] y) {{ {node} }}'
    model = onnx.parser.parse_model(text)
    wanted = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    assert np.allclose(Interpreter(model).run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)
