"""What is predicted of a result in memory is what is predicted of its file, which has all shapes."""

import pytest

import amp_transpiler as amp
from amp_transpiler.cost import find_device, predict
from tests.support import array, parse

H100 = find_device("H100")
# ONNX cannot tell the shape that a Reshape to a computed shape makes: not before the file has it.
BODY = """
    s = Shape (x)  t = Max (s, one)  r = Reshape (x, t)
    h = MatMul (r, w)  a = Add (h, r)  [norm] n = LayerNormalization <axis = -1> (a, g, b)
    y = MatMul (n, w)
"""


@pytest.mark.parametrize("prefer", ["low", "time"])
def test_a_result_in_memory_is_predicted_like_its_file(prefer, tmp_path):
    weights = {"w": array(16, 16, seed=1), "g": array(16, seed=2), "b": array(16, seed=3)}
    model = parse(f"(float[N,S,16] x) => (float[N,S,16] y) {{ {BODY} }}", opset=17, one=[1], **weights)
    report = amp.transpile(model, tmp_path / "m.onnx", prefer=prefer, verify=False)
    written = predict(amp.load(tmp_path / "m.onnx").model, H100, fuse=True)
    assert report.kept_float32 == (prefer == "time")
    assert report.predicted_ms[1] == pytest.approx(written.milliseconds)
    again = predict(report.program.model, H100, fuse=True, written=True)
    assert report.kept_float32 or again.launches == written.launches
