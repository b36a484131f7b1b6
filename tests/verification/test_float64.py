"""`--float64 float32`: decided as any float32, compared with the float64 source, and told in the report."""

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import amp_transpiler as amp
from amp_transpiler.cli.command import main

HEAD = '<ir_version: 10, opset_import: ["": 20]>'
# A product in float64 between float32 ones, as an exporter writes it for a scale of numpy.
MIXED = """g (float[4, 8] x) => (float[4, 8] y)
    <double[8] scale = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}, float[8, 8] w> {
    a = MatMul (x, w) b = Cast <to = 11> (a) c = Mul (b, scale) d = Cast <to = 1> (c) y = MatMul (d, w) }"""
DOUBLE = (
    """g (double[4, 8] x) => (double[4, 8] y) <double[8, 8] w> { a = MatMul (x, w) b = Relu (a) y = MatMul (b, w) }"""
)
LARGE = "g (double[4, 8] x) => (double[4, 8] y) <double[8, 8] w> { a = Mul (x, x) b = Mul (a, a) y = MatMul (b, w) }"


def model(text, rng=None):
    proto = parse_model(f"{HEAD} {text.replace(', float[8, 8] w>', '>').replace('<double[8, 8] w>', '')}")
    dtype = np.float32 if "float[8, 8] w" in text else np.float64
    weights = (rng or np.random.default_rng(0)).normal(size=(8, 8)).astype(dtype)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return proto


def inputs(dtype, scale=1.0):
    return {"x": (np.random.default_rng(1).normal(size=(4, 8)) * scale).astype(dtype)}


# Text, choice, level -> whether float64 is left, the types of inputs and outputs, and the least number of low nodes.
RESULTS = {
    "kept": (MIXED, "keep", "O2", True, "FLOAT FLOAT", 2),
    "inside": (MIXED, "float32", "O2", False, "FLOAT FLOAT", 3),
    "inside, by cost": (MIXED, "float32", "auto", False, "FLOAT FLOAT", 3),
    "outputs stay": (DOUBLE, "float32", "O2", True, "DOUBLE DOUBLE", 3),
    "outputs, too": (DOUBLE, "float32-io", "O2", False, "FLOAT FLOAT", 3),
    "outputs, too, by cost": (DOUBLE, "float32-io", "auto", False, "FLOAT FLOAT", 3),
}


@pytest.mark.parametrize(("text", "choice", "level", "left", "types", "low"), RESULTS.values(), ids=RESULTS)
def test_the_rest_is_decided_as_usual(tmp_path, text, choice, level, left, types, low):
    out = tmp_path / "out.onnx"
    data = inputs(np.float32 if text is MIXED else np.float64)
    report = amp.transpile(model(text), out, level=level, float64=choice, inputs=data, tolerance=0.01, prefer="size")
    assert report.low_nodes >= low
    assert report.verdict_word == "verified"
    assert 0 < max(output.relative for output in report.outputs.values()) < 0.01
    written = onnx.shape_inference.infer_shapes(onnx.load(out)).graph
    values = [*written.input, *written.output, *written.value_info]
    assert any(value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for value in values) is left
    io = (written.input[0], written.output[0])
    assert " ".join(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type) for value in io) == types


# How inputs and outputs are named -> their types.
IO = {
    "all": (False, "FLOAT16 FLOAT16"),
    "one": ({"x": "low"}, "FLOAT16 DOUBLE"),
    "a pattern": ({".": "low"}, "FLOAT16 FLOAT16"),
    "all but one": ("x", "DOUBLE FLOAT16"),
}


@pytest.mark.parametrize(("keep_io_types", "types"), IO.values(), ids=IO)
def test_inputs_and_outputs_become_low_as_those_of_float32_do(keep_io_types, types):
    report = amp.transpile(
        model(DOUBLE), level="O2", float64="float32", keep_io_types=keep_io_types, inputs=inputs(np.float64)
    )
    graph = report.program.to_onnx().graph
    io = (graph.input[0], graph.output[0])
    assert " ".join(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type) for value in io) == types


def test_without_the_option_they_cannot():
    with pytest.raises(amp.OptionError, match=r"'x' is DOUBLE; .* with --float64 float32 also float64, can become"):
        amp.transpile(model(DOUBLE), keep_io_types={"x": "low"})


def test_only_float32_is_wanted(tmp_path):
    """The error is that of float32 against float64, which the source computes."""
    report = amp.transpile(
        model(DOUBLE), tmp_path / "o.onnx", dtype="float32", float64="float32-io", inputs=inputs(np.float64)
    )
    [output] = report.outputs.values()
    assert 1e-9 < output.relative < 1e-5
    assert "the source" in report.verdict


def test_the_report_says_what_was_rounded():
    report = amp.transpile(model(MIXED), level="O2", float64="float32", inputs=inputs(np.float32))
    text = "\n".join(report.notes)
    assert "the source's float64 was made float32 first, as --float64 asks: " in text
    assert "0 of 1 constants are exact in float32; rounded: 'scale'" in text


def test_what_overflows_float32_fails_the_comparison(tmp_path):
    """The values are beyond float32 although all constants are within."""
    out = tmp_path / "out.onnx"
    with pytest.raises(amp.CheckFailed, match="output 'y'"):
        amp.transpile(model(LARGE), out, dtype="float32", float64="float32", inputs=inputs(np.float64, 1e30))
    assert not out.exists()


# Options of the command -> the status, and words of the message.
REFUSED = {
    "no such choice": (["--float64", "half"], 2, "invalid choice: 'half'"),
    "files are copied": (["--level", "O0", "--float64", "float32"], 2, "--float64"),
}


@pytest.mark.parametrize(("options", "status", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(tmp_path, capsys, options, status, words):
    onnx.save(model(MIXED), tmp_path / "m.onnx")
    try:
        code = main([str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), *options])
    except SystemExit as end:
        code = end.code
    assert code == status
    assert words in capsys.readouterr().err


def test_a_choice_that_python_does_not_have():
    with pytest.raises(amp.OptionError, match="float64 is 'half': expected 'keep', 'float32' or 'float32-io'"):
        amp.transpile(model(MIXED), float64="half")


def test_a_recipe_holds_it(tmp_path):
    onnx.save(model(MIXED), tmp_path / "m.onnx")
    first = amp.transpile(
        tmp_path / "m.onnx", tmp_path / "a.onnx", level="O2", float64="float32", inputs=inputs(np.float32)
    )
    first.save_recipe(tmp_path / "r.toml")
    amp.transpile(tmp_path / "m.onnx", tmp_path / "b.onnx", recipe=tmp_path / "r.toml", inputs=inputs(np.float32))
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
