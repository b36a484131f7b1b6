"""A workflow of Olive with our pass in it, run from end to end."""

import importlib.util
import json
import logging
import pathlib
import warnings

import numpy as np
import onnx
import pytest

from tests.support import array, parse, run

if importlib.util.find_spec("olive") is None or importlib.util.find_spec("olive.passes") is None:
    pytest.skip("olive-ai, whose workflow is run, is not installed: the extra [olive]", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # Olive's own, and those of what it imports


@pytest.fixture(scope="module")
def olive():
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("OLIVE_DISABLE_TELEMETRY", "1")
        from amp_transpiler.compat import olive as ours

        yield ours
        logging.getLogger("olive").handlers.clear()


@pytest.fixture
def workflow(olive, tmp_path):
    """Run passes on a small model, and return the model that comes out."""
    source = tmp_path / "model.onnx"
    text = "(float[2,8] x) => (float[2,8] y) { [product] a = MatMul(x, w) b = Identity(a) [last] y = Relu(b) }"
    onnx.save(parse(text, w=array(8, 8)), source)

    def run_passes(**passes):
        result = olive.olive_run(
            {
                "input_model": {"type": "ONNXModel", "model_path": str(source)},
                "passes": passes,
                "output_dir": str(tmp_path / "out"),
                "cache_dir": str(tmp_path / "cache"),
            }
        )
        assert result.has_output_model()
        (written,) = (tmp_path / "out").glob("*.onnx")
        return onnx.load(written)

    return run_passes


def test_a_workflow_from_end_to_end(workflow):
    model = workflow(
        first={"type": "OnnxPeepholeOptimizer"},
        amp={"type": "AmpTranspile", "tolerance": "1%"},
    )
    assert [node.op_type for node in model.graph.node] == ["Cast", "MatMul", "Relu", "Cast"]
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT16}
    x = array(2, 8)
    np.testing.assert_allclose(run(model, {"x": x})["y"], np.maximum(x @ array(8, 8), 0), atol=1e-2)


def test_the_command_finds_the_pass(olive, tmp_path, monkeypatch):
    from olive.cli.launcher import main

    monkeypatch.chdir(tmp_path)
    onnx.save(parse("(float[2,8] x) => (float[2,8] y) { y = MatMul(x, w) }", w=array(8, 8)), "model.onnx")
    olive.write_package_config("passes.json")
    workflow = {
        "input_model": {"type": "ONNXModel", "model_path": "model.onnx"},
        "passes": {"mixed": {"type": "AmpTranspile"}},
        "output_dir": "out",
        "cache_dir": "cache",
    }
    pathlib.Path("workflow.json").write_text(json.dumps(workflow))
    main(["run", "--config", "workflow.json", "--package-config", "passes.json"])
    (written,) = pathlib.Path("out").glob("*.onnx")
    assert [node.op_type for node in onnx.load(written).graph.node] == ["Cast", "MatMul", "Cast"]


def test_options_and_lists_reach_the_conversion(workflow):
    model = workflow(
        amp={
            "type": "AmpTranspile",
            "level": "O2",
            "dtype": "bfloat16",
            "target": "tensorrt",
            "keep_io_types": False,
            "black": ["Relu"],
            "save_as_external_data": True,
            "size_threshold": 0,
        }
    )
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.BFLOAT16}
    assert [info.type.tensor_type.elem_type for info in model.graph.input] == [onnx.TensorProto.BFLOAT16]
    casts = [node.attribute[0].i for node in model.graph.node if node.op_type == "Cast"]
    assert casts == [onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16]


def test_every_option_that_json_can_hold_is_known(olive):
    from amp_transpiler.options.conversion import ConversionOptions
    from amp_transpiler.options.option import declarations

    known = set(declarations(ConversionOptions))
    only_python = {"amp_lists", "progress"}
    only_training = {"state", "master_weights", "loss_scaling", "frontier"}
    assert set(olive._TYPES) == known - only_python - only_training
    json.dumps({name: param.default_value for name, param in olive.AmpTranspile._default_config(None).items()})


def test_the_package_configuration_can_be_a_file(olive, tmp_path):
    olive.write_package_config(tmp_path / "package.json")
    written = json.loads((tmp_path / "package.json").read_text())
    assert written["passes"]["AmpTranspile"]["module_path"] == "amp_transpiler.compat.olive.AmpTranspile"
    assert "OnnxFloatToFloat16" in written["passes"]
