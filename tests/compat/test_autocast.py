"""The behaviours of AutoCast's converters, by the names of their arguments."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from amp_transpiler.compat import convert_to_f16, convert_to_mixed_precision
from tests.support import array, assert_valid, parse

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


def simple():
    return parse(
        """(float[1,5] X) => (float[1,3] Y) {
            [gemm_node] a = Gemm(X, w, bias) [add_node] b = Add(a, c) [relu_node] Y = Relu(b) }""",
        opset=20,
        w=array(5, 3),
        bias=array(3),
        c=array(1, 3),
    )


@pytest.fixture
def path(tmp_path):
    onnx.save(simple(), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def operators(model):
    return [node.op_type for node in model.graph.node]


def io_types(model):
    return [info.type.tensor_type.elem_type for info in (*model.graph.input, *model.graph.output)]


def high(model):
    """Return the names of the nodes that read float32."""
    typed = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    infos = {info.name: info.type.tensor_type.elem_type for info in (*typed.input, *typed.output, *typed.value_info)}
    types = infos | {tensor.name: tensor.data_type for tensor in typed.initializer}
    read = {node.name: {types[name] for name in node.input} for node in typed.node if node.op_type != "Cast"}
    return {name for name, types_of_it in read.items() if FLOAT in types_of_it}


@pytest.mark.parametrize("kept", [True, False])
def test_a_model_becomes_float16(path, kept):
    model = convert_to_mixed_precision(onnx_path=path, keep_io_types=kept)
    assert operators(model) == (["Cast", "Gemm", "Add", "Relu", "Cast"] if kept else ["Gemm", "Add", "Relu"])
    assert io_types(model) == [FLOAT if kept else FLOAT16] * 2
    assert_valid(model)


def test_a_model_becomes_bfloat16(path):
    model = convert_to_mixed_precision(path, low_precision_type="bf16")
    assert io_types(model) == [BFLOAT16, BFLOAT16]


def test_without_the_file_there_is_nothing_to_convert():
    with pytest.raises(FileNotFoundError, match=r"nonexistent\.onnx"):
        convert_to_mixed_precision(onnx_path="nonexistent.onnx")


EXCLUDED = {
    "name": ({"nodes_to_exclude": ["gemm_node"]}, {"gemm_node"}),
    "pattern": ({"nodes_to_exclude": [".*_node"]}, {"gemm_node", "add_node", "relu_node"}),
    "a pattern begins a name": ({"nodes_to_exclude": ["node", "add"]}, {"add_node"}),
    "operators": ({"op_types_to_exclude": ["Relu", "Gemm"]}, {"gemm_node", "relu_node"}),
    "include a name": ({"nodes_to_exclude": [".*"], "nodes_to_include": ["relu"]}, {"gemm_node", "add_node"}),
    "include an operator": ({"nodes_to_exclude": [".*"], "op_types_to_include": ["Gemm"]}, {"add_node", "relu_node"}),
    "include over a limit": ({"init_max": 1e-3, "op_types_to_include": ["Add"]}, {"gemm_node"}),
    "constants": ({"init_max": 1e-3}, {"gemm_node", "add_node"}),
    "values": ({"data_max": 1e-6}, {"gemm_node", "add_node", "relu_node"}),
    "no limit": ({"data_max": None, "init_max": float("inf")}, set()),
    "terms": ({"max_depth_of_reduction": 4}, {"gemm_node"}),
    "terms allowed": ({"max_depth_of_reduction": 5}, set()),
}


@pytest.mark.parametrize(("arguments", "expected"), EXCLUDED.values(), ids=EXCLUDED)
def test_nodes_stay_float32(path, arguments, expected):
    model = convert_to_mixed_precision(path, **arguments, keep_io_types=True)
    assert high(model) == expected
    assert_valid(model)


def test_calibration_data_decides(path, tmp_path):
    np.savez(tmp_path / "small.npz", X=np.full((1, 5), 0.01, np.float32))
    np.savez(tmp_path / "large.npz", X=np.full((1, 5), 600, np.float32))
    assert high(convert_to_mixed_precision(path, calibration_data=str(tmp_path / "small.npz"))) == set()
    assert "gemm_node" in high(convert_to_mixed_precision(path, calibration_data=tmp_path / "large.npz"))


def test_a_rule_of_ones_own(path):
    class Rule:
        def check(self, node):
            return node.op_type == "Add"

    assert high(convert_to_mixed_precision(path, custom_rule=Rule())) == {"add_node"}


@pytest.mark.parametrize("opset", [11, 13, 17, 19, 21])
def test_the_opset_is_the_one_asked_for(path, opset):
    model = convert_to_mixed_precision(path, opset=opset)
    assert model.opset_import[0].version == opset
    assert_valid(model)


@pytest.mark.parametrize(("opset", "low"), [(13, False), (20, True)])
def test_an_operator_is_low_from_the_opset_on_that_has_a_form(tmp_path, opset, low):
    text = "(float[1,2,4,4] x) => (bool[1,2,2,2] y) { [conv] a = Conv(x, w) [test] y = IsInf(a) }"
    onnx.save(parse(text, opset=opset, w=array(2, 2, 3, 3)), tmp_path / "m.onnx")
    model = convert_to_mixed_precision(tmp_path / "m.onnx", opset=opset, keep_io_types=True)
    assert high(model) == (set() if low else {"test"})


def test_float16_by_a_list_of_operators():
    model = convert_to_f16(simple(), op_block_list=["Relu"])
    assert high(model) == {"relu_node"}
    assert io_types(model) == [FLOAT, FLOAT]
    assert io_types(convert_to_f16(simple(), keep_io_types=False)) == [FLOAT16, FLOAT16]
    assert io_types(convert_to_f16(simple(), "bf16", False, opset=22)) == [BFLOAT16, BFLOAT16]


WRONG = {
    "format": ({"low_precision_type": "fp8"}, "low_precision_type is 'fp8': expected 'fp16' or 'bf16'"),
    "bytes": ({"init_conversion_max_bytes": 1}, "init_conversion_max_bytes=1 is not supported"),
    "plugins": ({"trt_plugins": ["plugin.so"]}, "trt_plugins=.* is not supported"),
    "provider": ({"providers": ["trt", "cpu"]}, "provider 'trt' is not supported"),
    "JSON": ({"calibration_data": "inputs.json"}, "calibration_data is JSON: save the arrays with numpy.savez"),
    "pattern": ({"nodes_to_exclude": ["("]}, "nodes_to_exclude pattern .* is not a regular expression"),
    "text": ({"op_types_to_exclude": "Relu"}, "op_types_to_exclude: expected a list"),
    "a threshold": ({"data_max": -1}, "data_max is -1.0: expected a number above 0"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_refused_by_name(path, arguments, message):
    with pytest.raises(ValueError, match=message):
        convert_to_mixed_precision(path, **arguments)


@pytest.mark.parametrize("declared", ["Scale:fp16", "Scale:[fp16]:[fp16]"])
def test_plugins_take_the_types_that_they_were_built_for(tmp_path, declared):
    text = "(float[1,5] x) => (float[1,3] y) <float[1,5] a> { [mine] a = plugin.Scale(x) [last] y = MatMul(a, w) }"
    model = parse(text, w=array(5, 3))
    model.opset_import.append(onnx.helper.make_opsetid("plugin", 1))
    onnx.save(model, tmp_path / "m.onnx")
    converted = convert_to_mixed_precision(tmp_path / "m.onnx", trt_plugins_precision=[declared], keep_io_types=True)
    assert operators(converted) == ["Cast", "Scale", "MatMul", "Cast"]
    assert operators(convert_to_mixed_precision(tmp_path / "m.onnx", keep_io_types=True)) == [
        *("Scale", "Cast", "MatMul", "Cast")
    ]


POWER = "(float[1,5] x) => (float[1,3] y) { [first] a = MatMul(x, w) [power] y = Pow(a, e) }"


def test_an_input_of_an_operator_stays_float32(caplog):
    model = parse(POWER, w=array(5, 3), e=np.float32([1.5]))
    converted = convert_to_f16(model, tensor_block_dict={"Pow": {"inp": [1]}, "Resize": {"inp": [2]}}, target="any")
    [exponent] = [tensor for tensor in converted.graph.initializer if tensor.name == converted.graph.node[-2].input[1]]
    assert converted.graph.node[-2].op_type == "Pow"
    assert exponent.data_type == FLOAT
    assert high(converted) == {"power"}
    assert "tensor_block_dict names an operator that the model lacks: Resize" in caplog.text


def test_what_cannot_stay_float32_by_itself_is_said():
    with pytest.raises(ValueError, match=r"no form of Gemm has input 1 in float32 and others in float16; keep"):
        convert_to_f16(simple(), tensor_block_dict={"Gemm": {"inp": [1]}})
    with pytest.raises(ValueError, match=r"tensor_block_dict has .* keep whole operators with op_block_list"):
        convert_to_f16(simple(), tensor_block_dict={"Gemm": {"out": [0]}})
    assert high(convert_to_f16(simple(), tensor_block_dict={"Gemm": {"inp": [1]}}, op_block_list=["Gemm"])) == {
        "gemm_node"
    }


DOUBLE = TensorProto.DOUBLE


def in_float64():
    return parse("(double[2,4] x) => (double[2,3] y) { y = MatMul (x, w) }", w=np.float64(array(4, 3)))


# Further options -> the types of the input and the output.
FLOAT64 = {"as AutoCast does": ({}, [FLOAT, FLOAT]), "on request": ({"float64": "keep"}, [DOUBLE, DOUBLE])}


@pytest.mark.parametrize(("options", "expected"), FLOAT64.values(), ids=FLOAT64)
@pytest.mark.parametrize("by", ["file", "list of operators"])
def test_float64_becomes_float32(tmp_path, by, options, expected):
    onnx.save(in_float64(), tmp_path / "double.onnx")
    if by == "file":
        model = convert_to_mixed_precision(tmp_path / "double.onnx", keep_io_types=True, **options)
    else:
        model = convert_to_f16(in_float64(), **options)
    assert io_types(model) == expected
    (weight,) = model.graph.initializer
    assert weight.data_type == (FLOAT16 if expected == [FLOAT, FLOAT] else DOUBLE)
