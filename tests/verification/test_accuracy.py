"""The fp32 run that a result is compared with."""

import numpy as np
import onnx

import amp_transpiler as amp


def test_a_file_is_compared_without_the_fusion_that_multiplies_a_vector_wrongly(tmp_path):
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    step (float[7, 6] x, float[7] d) => (float[6] g) { t = Transpose(x) g = MatMul(t, d) }
    """
    path = tmp_path / "step.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    generator = np.random.default_rng(0)
    feeds = {"x": generator.normal(size=(7, 6)).astype(np.float32), "d": generator.normal(size=7).astype(np.float32)}
    report = amp.transpile(path, inputs=feeds, level="O2")
    assert report.outputs["g"].relative < 0.01
