"""What `torch.onnx.export` returns is a model as any other: one call exports, converts, checks and writes it."""

import warnings

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.compat import convert_float_to_float16
from tests.support import assert_valid, run

torch = pytest.importorskip("torch", reason="torch, whose exporter is tried, is not installed: the extra [torch]")
pytest.importorskip("onnxscript", reason="torch's exporter needs onnxscript: install the extra [torch]")


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    x = torch.linspace(-1, 1, 16).reshape(2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about torch's
        program = torch.onnx.export(net, (x,), dynamo=True, verbose=False, input_names=["x"], output_names=["y"])
    return program, x.numpy(), net(x).detach().numpy()


@pytest.mark.slow
def test_one_line_exports_and_converts(exported, tmp_path):
    program, x, expected = exported
    report = amp.transpile(program, tmp_path / "net.fp16.onnx", prefer="size")
    assert report.low_nodes == report.nodes
    model = onnx.load(tmp_path / "net.fp16.onnx")
    assert_valid(model)
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, atol=1e-2)


def test_the_program_is_not_changed(exported):
    program, _, _ = exported
    before = program.model_proto.SerializeToString(deterministic=True)
    convert_float_to_float16(program)
    assert program.model_proto.SerializeToString(deterministic=True) == before
