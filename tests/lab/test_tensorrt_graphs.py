"""The graphs that TensorRT's builder is asked about, and what the page says that it takes in 16 bits."""

from __future__ import annotations

import pytest

import amp_transpiler as amp
from amp_transpiler.graph.checker import checker_fault
from tensorrt_graphs import graphs
from tensorrt_probe import with_constants
from tests.support import array, parse
from tests.tensorrt import needs_builder

GRAPHS = {name: (model, sample) for name, model, sample in graphs()}
TAKEN = [
    "Conv, 1 groups, 2d, opset 22",
    "Conv, 4 groups, 1d, opset 13",
    "Conv, 8 groups, 2d, opset 22",
    "GroupNormalization, opset 21",
    "If, opset 16",
    "InstanceNormalization, opset 22",
    "LayerNormalization, opset 17",
    "QDQ around a Conv, opset 13",
    "QDQ around a Conv, opset 21",
    "QDQ before a product, opset 19",
    "RMSNormalization, opset 23",
    "Resize, cubic, sizes, half_pixel, opset 19",
    "Resize, linear, scales, asymmetric, opset 13",
    "Scan, opset 16",
    "a normalisation written out, opset 17",
    "an output that others read, opset 13",
]


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_valid(name):
    assert checker_fault(amp.load(GRAPHS[name][0]).model) == ""


@needs_builder
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", TAKEN)
def test_what_the_page_says_is_taken(tmp_path, name, dtype):
    model, sample = GRAPHS[name]
    options = {"level": "O2", "target": "tensorrt", "dtype": dtype, "build": "yes", "cache": False}
    report = amp.transpile(model, tmp_path / "out.onnx", inputs=sample, **options)
    assert report.low_nodes
    assert report.engine.bytes


def test_inputs_after_the_first_become_constants():
    case = parse("(float[2] x, float[2] w) => (float[2] y) { y = Add (x, w) }")
    model = with_constants(case, {"x": array(2), "w": array(2)})
    assert [value.name for value in model.graph.input] == ["x"]
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]
    assert len(case.graph.input) == 2
