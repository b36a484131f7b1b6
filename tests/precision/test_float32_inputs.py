"""Inputs of operators that stay float32 beside low ones (`--float32-inputs`)."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.cli import main
from amp_transpiler.errors import OptionError
from tests.support import array, parse

WEIGHTS = {"w": array(8, 8, scale=0.1), "e": np.float32([1.5])}
TEXT = "(float[4,8] x) => (float[4,8] y) { [first] a = MatMul(x, w) [power] b = Pow(a, e) [last] y = MatMul(b, w) }"


def model():
    return parse(TEXT, **WEIGHTS)


def types_of_power(graph):
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types |= {info.name: info.type.tensor_type.elem_type for info in graph.value_info}
    node = next(node for node in graph.node if node.op_type == "Pow")
    return [types[name] for name in (*node.input, *node.output)]


@pytest.mark.parametrize("declared", [{"Pow": [1]}, {"Pow": "1"}, {"Pow": (1, 1)}])
def test_an_input_stays_float32(declared):
    options = {"level": "O2", "target": "any"}
    report = amp.transpile(model(), None, float32_inputs=declared, **options)
    assert types_of_power(report.program.to_onnx().graph) == [10, 1, 10]
    assert types_of_power(amp.transpile(model(), None, **options).program.to_onnx().graph) == [10, 10, 10]


def test_an_input_that_no_node_has_changes_nothing():
    report = amp.transpile(model(), None, float32_inputs={"Pow": [7]}, target="any", level="O2")
    assert types_of_power(report.program.to_onnx().graph) == [10, 10, 10]


def test_the_command_takes_them_and_a_recipe_holds_them(tmp_path, capsys):
    onnx.save(model(), tmp_path / "m.onnx")
    first = [str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--level", "O2", "--target", "any"]
    recipe = ["--save-recipe", str(tmp_path / "r.toml")]
    assert main([*first, "--float32-inputs", "Pow:1", *recipe]) == 0
    assert types_of_power(onnx.load(tmp_path / "o.onnx").graph) == [10, 1, 10]
    again = amp.transpile(model(), None, recipe=tmp_path / "r.toml")
    assert types_of_power(again.program.to_onnx().graph) == [10, 1, 10]
    for text in ("Pow", "Pow:x", ":1", "com.microsoft::Pow"):
        assert main([*first, "--float32-inputs", text]) == 2
    assert "'Pow' is no OP:INDICES: expected such as Pow:1" in capsys.readouterr().err


WRONG = {
    "one type": ({"MatMul": [1]}, "node 'first': no form of MatMul has input 1 in float32 and others in float16"),
    "every input": ({"Pow": [0, 1]}, "node 'power': no form of Pow has input 0, 1 in float32"),
    "unknown": ({"Powr": [1]}, r"the model has no operator 'Powr' \(did you mean 'Pow'"),
    "no index": ({"Pow": ["x"]}, "'Pow' has .*: expected indices of inputs, such as 1,2"),
    "none": ({"Pow": []}, "expected indices of inputs, such as 1,2"),
    "a number": ({"Pow": 1}, "expected indices of inputs, such as 1,2"),
    "another kind": (["Pow:1"], "got list, expected a dict"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case):
    declared, message = WRONG[case]
    with pytest.raises(OptionError, match=message):
        amp.transpile(model(), None, float32_inputs=declared, target="any", level="O2")


def test_an_operator_that_stays_float32_anyway_is_no_error():
    report = amp.transpile(model(), None, float32_inputs={"Pow": [0, 1]}, disable_amp="power", target="any", level="O2")
    assert types_of_power(report.program.to_onnx().graph) == [1, 1, 1]


def test_it_has_no_meaning_where_all_is_float32():
    with pytest.raises(OptionError, match="float32_inputs has no meaning where everything becomes float32"):
        amp.transpile(model(), None, float32_inputs={"Pow": [1]}, dtype="float32")
