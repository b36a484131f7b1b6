"""A limit that was asked for is checked, or it fails; what the CPU lacks at a raised opset is compared."""

import numpy as np
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.cli import main

HEAD = '<ir_version: 8, opset_import: ["": 17, "own": 1]>\n'
X = np.linspace(-1.0, 1.0, 48, dtype=np.float32).reshape(1, 3, 4, 4)
# What the CPU provider lacks at opset 22, to which a conversion to bfloat16 goes, and the sizes of what it makes.
RAISED = {
    "RoiAlign": ("1,4,2,2", "r = RoiAlign<output_height = 2, output_width = 2>(a, rois, batch)"),
    "RandomNormalLike": ("n,4,4,4", "r = RandomNormalLike(a)"),
    "RandomUniformLike": ("n,4,4,4", "r = RandomUniformLike(a)"),
    "RandomNormal": ("2", "q = RandomNormal<shape = [2]>() r = Mul(q, q)"),
    "RandomUniform": ("2", "q = RandomUniform<shape = [2]>() r = Mul(q, q)"),
    "both": ("1,4,1,1", "q = RandomUniformLike(a) r = RoiAlign(q, rois, batch)"),
}
CONSTANTS = "float[4,3,1,1] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[1,4] rois = {0,0,3,3}, int64[1] batch = {0}"


def _model(sizes, step):
    return onnx.parser.parse_model(f"""{HEAD}g (float[n,3,4,4] x) => (float[{sizes}] r, float[n,4,4,4] z)
        <{CONSTANTS}> {{
        a = Conv(x, w) {step} z = Relu(a) }}""")


@pytest.mark.parametrize("name", RAISED)
def test_what_the_cpu_lacks_at_the_raised_opset_is_compared(name):
    report = amp.transpile(_model(*RAISED[name]), level="O2", dtype="bfloat16", inputs={"x": X}, tolerance=0.05)
    assert report.opset[1] == 22
    assert report.outputs["z"].relative < 0.05
    assert report.verdict_word in ("verified", "plausible", "estimated")


def test_a_limit_fails_there_too():
    with pytest.raises(amp.CheckFailed, match="differs by"):
        amp.transpile(_model(*RAISED["RoiAlign"]), level="O2", dtype="bfloat16", inputs={"x": X}, tolerance=1e-5)


LIMITS = [{"tolerance": 0.01}, {"tolerance": "z=1%"}, {"mismatch": 0.1}, {"tolerance": 0.01, "level": "O2"}]


def _copy(path):
    model = _model("k", "r = own.Op(a)")
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_limit_that_cannot_be_checked_fails(limits, tmp_path):
    path = _copy(tmp_path / "m.onnx")
    with pytest.raises(amp.CheckFailed, match=r"could not be checked: .*Leave --tolerance") as caught:
        amp.transpile(path, tmp_path / "out.onnx", **limits, prefer="size")
    assert caught.value.report.verdict_word == "failed"
    assert not (tmp_path / "out.onnx").exists()
    assert amp.transpile(path, tmp_path / "out.onnx", prefer="size").verdict_word == "structure only"


def test_a_metric_that_cannot_be_computed_fails(tmp_path):
    with pytest.raises(amp.CheckFailed, match="could not be checked"):
        amp.transpile(_copy(tmp_path / "m.onnx"), metric=lambda _fp32, _low: 0.0, metric_bound=1.0, prefer="size")


def test_outputs_that_cannot_be_judged_fail(tmp_path):
    model = onnx.parser.parse_model(f"{HEAD}g (float[2] x) => (float[2] y) {{ r = RandomNormalLike(x) y = Mul(x, r) }}")
    with pytest.raises(amp.CheckFailed, match="no output can be judged"):
        amp.transpile(model, tolerance=0.01, prefer="size")
    assert amp.transpile(model, prefer="size").verdict_word == "structure only"


def test_the_exit_status_says_so(tmp_path, capsys):
    path = str(_copy(tmp_path / "m.onnx"))
    assert main([path, "--tolerance", "1%"]) == 1
    assert "could not be checked" in capsys.readouterr().err
    assert main([path]) == 0
