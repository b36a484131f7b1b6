"""WidenLowFloats: what becomes float32, what keeps its 16-bit type, and where casts stand."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx.parser import parse_model

from amp_transpiler.errors import OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import WIDENED, all_nodes
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.passes.widen_low_floats import WidenLowFloats

HEAD = '<ir_version: 10, opset_import: ["": 26, "com.microsoft": 1, "my.domain": 1]>'
SHORT = {"FLOAT16": "fp16", "BFLOAT16": "bf16", "FLOAT": "fp32", "INT16": "int16", "INT64": "int64", "BOOL": "bool"}


def widened(text, formats=LOW_DTYPES, new_io=()):
    model = load(parse_model(f"{HEAD} {text}")).model
    propagate_types(model)
    result = run_pass(WidenLowFloats(formats, new_io), model)
    verify(model, "the test")
    return model, result


def steps(model):
    """Return the nodes in order: the operator, and the types of its inputs and outputs."""
    listed = []
    for node in all_nodes(model):
        types = [[SHORT[value.dtype.name] for value in values if value] for values in (node.inputs, node.outputs)]
        listed.append(f"{node.op_type}: {' '.join(types[0])} -> {' '.join(types[1])}")
    return listed


# Text -> the nodes afterwards.
CASES = {
    "an input and an output keep their types": (
        "g (float16[2] x) => (float16[2] y) { y = Relu (x) }",
        ["Cast: fp16 -> fp32", "Relu: fp32 -> fp32", "Cast: fp32 -> fp16"],
    ),
    "an input that is an output": (
        "g (float16[2] x) => (float16[2] x, float16[2] y) { y = Relu (x) }",
        ["Cast: fp16 -> fp32", "Relu: fp32 -> fp32", "Cast: fp32 -> fp16"],
    ),
    "an output that is read inside": (
        "g (float16[2] x) => (float16[2] y, float16[2] z) { y = Relu (x) z = Neg (y) }",
        ["Cast: fp16 -> fp32", "Relu: fp32 -> fp32", "Cast: fp32 -> fp16", "Neg: fp32 -> fp32", "Cast: fp32 -> fp16"],
    ),
    "an initializer that is an output": (
        "g (float16[2] x) => (float16[2] w, float16[2] y) <float16[2] w = {1, 2}> { y = Add (x, w) }",
        ["Cast: fp16 -> fp32", "Cast: fp16 -> fp32", "Add: fp32 fp32 -> fp32", "Cast: fp32 -> fp16"],
    ),
    "float32 beside it": (
        "g (float[2] x, float16[2] h) => (float[2] y) { c = Cast <to = 1> (h) y = Add (x, c) }",
        ["Cast: fp16 -> fp32", "Add: fp32 fp32 -> fp32"],
    ),
    "casts between both formats": (
        "g (float16[2] x) => (bfloat16[2] y) { a = Cast <to = 16> (x) b = Neg (a) y = Identity (b) }",
        ["Cast: fp16 -> fp32", "Neg: fp32 -> fp32", "Identity: fp32 -> fp32", "Cast: fp32 -> bf16"],
    ),
    "bits are not reinterpreted": (
        "g (int16[2] x) => (int16[2] y) { a = BitCast <to = 10> (x) b = Neg (a) y = BitCast <to = 5> (b) }",
        [
            "BitCast: int16 -> fp16",
            "Cast: fp16 -> fp32",
            "Neg: fp32 -> fp32",
            "Cast: fp32 -> fp16",
            "BitCast: fp16 -> int16",
        ],
    ),
    "a captured value": (
        """g (float16[2] x, bool c) => (float16[2] y) {
            a = Neg (x) y = If (c) <then_branch = t () => (float16[2] p) { p = Add (a, x) },
            else_branch = e () => (float16[2] q) { q = Identity (a) }> }""",
        [
            "Cast: fp16 -> fp32",
            "Neg: fp32 -> fp32",
            "If: bool -> fp32",
            "Cast: fp32 -> fp16",
            "Identity: fp32 -> fp32",
            "Add: fp32 fp32 -> fp32",
        ],
    ),
    "an integer comparison": (
        "g (float16[2] x) => (bool[2] y) { y = Greater (x, x) }",
        ["Cast: fp16 -> fp32", "Greater: fp32 fp32 -> bool"],
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_what_becomes_float32(text, expected):
    model, result = widened(text)
    assert sorted(steps(model)) == sorted(expected)
    assert result.modified


def test_an_unknown_operator_keeps_its_types():
    model = load(
        parse_model(f"{HEAD} g (float16[2] x) => (float16[2] y) {{ a = Neg (x) b = my.domain.Own (a) y = Neg (b) }}")
    ).model
    model.graph[1].outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
    propagate_types(model)
    run_pass(WidenLowFloats(LOW_DTYPES), model)
    assert steps(model) == [
        "Cast: fp16 -> fp32",
        "Neg: fp32 -> fp32",
        "Cast: fp32 -> fp16",
        "Own: fp16 -> fp16",
        "Cast: fp16 -> fp32",
        "Neg: fp32 -> fp32",
        "Cast: fp32 -> fp16",
    ]


def test_only_the_formats_asked_for():
    text = "g (bfloat16[2] x, float16[2] h) => (float16[2] y) { a = Neg (x) b = Cast <to = 10> (a) y = Add (b, h) }"
    model, result = widened(text, {ir.DataType.BFLOAT16})
    assert steps(model) == ["Cast: bf16 -> fp32", "Neg: fp32 -> fp32", "Cast: fp32 -> fp16", "Add: fp16 fp16 -> fp16"]
    assert result.formats == {"bfloat16"}
    assert [node.meta.get(WIDENED) for node in model.graph] == [None, "bfloat16", None, None]


@pytest.mark.parametrize(
    ("new_io", "types"),
    [({"x"}, "FLOAT FLOAT16"), ({"y"}, "FLOAT16 FLOAT"), ({"x", "y"}, "FLOAT FLOAT"), ((), "FLOAT16 FLOAT16")],
)
def test_inputs_and_outputs_that_may_change(new_io, types):
    model, _ = widened("g (float16[2] x) => (float16[2] y) { y = Relu (x) }", new_io=new_io)
    graph = model.graph
    assert f"{graph.inputs[0].dtype.name} {graph.outputs[0].dtype.name}" == types
    assert [value.name for value in (*graph.inputs, *graph.outputs)] == ["x", "y"]


@pytest.mark.parametrize(("new_io", "dtype"), [((), "FLOAT16"), ({"w"}, "FLOAT")])
def test_the_default_of_an_input(new_io, dtype):
    """A caller may override it, so it keeps its type with the input."""
    text = "g (float16[2] x, float16[2] w) => (float16[2] y) <w = {0, 0}> { y = Add (x, w) }"
    proto = parse_model(f"{HEAD} {text.replace('<w = {0, 0}> ', '')}")
    proto.graph.initializer.add(name="w", data_type=10, dims=[2], raw_data=np.float16([0.1, 70]).tobytes())
    model = load(proto).model
    propagate_types(model)
    run_pass(WidenLowFloats(LOW_DTYPES, new_io), model)
    value = model.graph.inputs[1]
    assert (value.dtype.name, value.const_value.dtype.name) == (dtype, dtype)
    assert np.array_equal(value.const_value.numpy(), np.float16([0.1, 70]))


@pytest.mark.parametrize(
    ("attribute", "node"),
    [
        ("softmax_precision", "a, b, c = Attention <softmax_precision = 10> (x, x, x, , s, s)"),
        ("precision", "k = Constant <value = float16 {12345}> () q = QuantizeLinear <precision = 10> (x, k)"),
        ("stash_type", "w = Identity (v) n = RMSNormalization <stash_type = 10> (x, w)"),
    ],
)
def test_what_an_operator_computes_in_is_float32_too(attribute, node):
    inputs = "float16[1, 2, 4, 4] x, float16[1, 2, 2, 4] s, float16[4] v"
    model, _ = widened(f"g ({inputs}) => (float16[1, 2, 4, 4] y) {{ {node} y = Neg (x) }}")
    [wide_node] = [node for node in model.graph if attribute in node.attributes]
    assert wide_node.attributes[attribute].as_int() == 1


def test_constants_are_widened_exactly_and_no_node_is_left_to_do_it():
    text = """g (float16[2] x) => (float16[2] y) {
        c = Constant <value = float16[2] {1, 31743}> () s = Shape (x)
        f = ConstantOfShape <value = float16[1] {1}> (s) a = Add (c, f) y = Add (a, x) }"""
    model, result = widened(text)
    constant = next(node for node in model.graph if node.op_type == "Constant").outputs[0]
    assert np.array_equal(constant_array(constant), np.array([2.0**-24, 65504.0], np.float32))
    filled = next(node for node in model.graph if node.op_type == "ConstantOfShape").attributes["value"].as_tensor()
    assert filled.numpy().tolist() == [2.0**-24]
    assert filled.dtype == ir.DataType.FLOAT
    assert [name for name, _ in result.constants] == ["c"]


def test_a_program_without_such_floats_is_left_alone():
    model, result = widened("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    assert (result.modified, result.count, result.notes) == (False, 0, ())
    assert steps(model) == ["Relu: fp32 -> fp32"]


def test_bodies_of_unknown_meaning_are_refused():
    text = """g (float16[2] x) => (float16[2] y) {
        y = my.domain.Each (x) <body = b (float16[2] p) => (float16[2] q) { q = Neg (p) }> }"""
    with pytest.raises(OptionError, match=r"'.*' \(my.domain::Each\) has bodies of a meaning unknown here"):
        widened(text.replace("y = my.domain.Each (x) <body", "y = my.domain.Each <body").replace("}> }", "}> (x) }"))
