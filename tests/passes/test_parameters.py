"""Constants made low, in place or as a copy, initializers and Constant nodes alike; attributes that type outputs."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.passes.apply_assignment import retype_attributes
from amp_transpiler.passes.parameters import convert_constant, copy_constant
from amp_transpiler.passes.unify_constants import UnifyConstants
from tests.support import array, parse

W = array(4, 4, seed=1)


def model():
    work = ir.from_proto(
        parse(
            """(float[4,4] x) => (float[4,4] y) {
                [node] n = Constant <value = float[2,2] {0.1, 0.2, -0.3, 1.0e9}> () a = Add (x, w) y = MatMul (a, w)
                b = Neg (n)
            }""",
            w=W,
        )
    )
    propagate_types(work)
    work.graph[0].metadata_props["origin"] = "here"
    return work


def value_of(work, name):
    return work.graph.initializers[name] if name in work.graph.initializers else work.graph[0].outputs[0]


CONSTANTS = {"w": W, "n": np.array([[0.1, 0.2], [-0.3, 1e9]], np.float32)}


@pytest.mark.parametrize("low", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_converted_where_it_is(name, low):
    work = model()
    value = value_of(work, name)
    convert_constant(value, low)
    tensor = constant_of(value)
    assert (value.name, value.dtype, tensor.dtype) == (name, low.dtype, low.dtype)
    with np.errstate(over="ignore"):
        expected = np.clip(CONSTANTS[name], -low.max, low.max).astype(low.numpy)
    np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize("low", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_copy_leaves_the_original_exact(name, low):
    work = model()
    value = value_of(work, name)
    copy = copy_constant(value, low, NameAllocator(work))
    assert copy.name == f"{name}__amp_{low.short}"
    assert (value.dtype, copy.dtype) == (ir.DataType.FLOAT, low.dtype)
    np.testing.assert_array_equal(constant_of(value).numpy(), CONSTANTS[name])
    assert constant_of(copy).numpy().dtype == low.numpy
    verify(work, "copying")
    if name == "n":
        assert copy.producer().metadata_props["origin"] == "here", "a region goes with the copy"
        assert list(work.graph)[1] is copy.producer(), "beside the original"


def test_a_copy_of_a_body_s_constant_is_in_that_body():
    work = ir.from_proto(
        parse(
            """(float[2] x, bool c) => (float[2] y) {
                y = If (c) <then_branch = t () => (float[2] p) <float[2] k = {1, 2}> { p = Add (x, k) },
                            else_branch = e () => (float[2] q) { q = Neg (x) }>
            }"""
        )
    )
    body = work.graph[0].attributes["then_branch"].as_graph()
    copy_constant(body.initializers["k"], FLOAT16, NameAllocator(work))
    assert set(body.initializers) == {"k", "k__amp_fp16"}
    assert not work.graph.initializers


def test_what_is_no_constant_is_refused():
    work = model()
    with pytest.raises(ValueError, match="'x' is not a constant"):
        convert_constant(work.graph.inputs[0], FLOAT16)


# ---- Constant nodes in one form (value_float and value_floats) ----

FORMS = {
    "value_float = 0.5": (np.array(0.5, np.float32), True),
    "value_floats = [1.0, 2.0]": (np.array([1.0, 2.0], np.float32), True),
    "value = float[1] {3}": (np.array([3.0], np.float32), False),
    "value_int = 7": (None, False),
    "value_ints = [1, 2]": (None, False),
    'value_string = "text"': (None, False),
}


@pytest.mark.parametrize("form", FORMS)
def test_constant_nodes_in_one_form(form):
    expected, changes = FORMS[form]
    kind = "float" if expected is not None else "string" if "string" in form else "int64"
    work = ir.from_proto(parse(f"() => ({kind}[N] y) {{ k = Constant <{form}> () y = Identity (k) }}"))
    before = dict(work.graph[0].attributes)
    assert UnifyConstants()(work).count == changes
    if expected is None:
        assert dict(work.graph[0].attributes) == before
    else:
        assert set(work.graph[0].attributes) == {"value"}
        found = work.graph[0].attributes["value"].as_tensor().numpy()
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


def test_constant_nodes_of_bodies_and_those_that_are_parameters_of_functions():
    work = ir.from_proto(
        parse(
            """(float[2] x, bool c) => (float[2] y) {
                y = If (c) <then_branch = t () => (float[2] p) { k = Constant <value_float = 2.0> () p = Mul (x, k) },
                            else_branch = e () => (float[2] q) { q = Neg (x) }>
            }"""
        )
    )
    assert UnifyConstants()(work).count == 1
    assert UnifyConstants()(work).count == 0


# ---- attributes that type outputs ----

ATTRIBUTES = {
    # call, outputs that go low: attributes afterwards
    "RandomNormal <shape = [2]> ()": ([0], {"dtype": 10, "shape": [2]}),
    "RandomUniform <dtype = 1, shape = [2]> ()": ([0], {"dtype": 10, "shape": [2]}),
    "EyeLike <dtype = 1> (m)": ([0], {"dtype": 10}),
    "HannWindow (n)": ([0], {"output_datatype": 10}),
    "BlackmanWindow <output_datatype = 1, periodic = 0> (n)": ([0], {"output_datatype": 10, "periodic": 0}),
    "ConstantOfShape (s)": ([0], {"value": np.zeros(1, np.float16)}),
    "ConstantOfShape <value = float[1] {0.1}> (s)": ([0], {"value": np.array([0.1], np.float16)}),
    "ConstantOfShape <value = float[1] {-1.0e9}> (s)": ([0], {"value": np.array([-65504], np.float16)}),
    "RandomNormal <dtype = 11, shape = [2]> ()": ([], {"dtype": 11, "shape": [2]}),
    "Relu (m)": ([0], {}),
    "LayerNormalization (m, v)": ([0], {}),
}


@pytest.mark.parametrize("call", ATTRIBUTES)
def test_attributes_follow_their_outputs(call):
    outputs, expected = ATTRIBUTES[call]
    work = ir.from_proto(parse(f"(float[2,2] m, float[2] v, int64 n, int64[1] s) => (float[N] y) {{ y = {call} }}"))
    node = work.graph[0]
    retype_attributes(node, outputs, FLOAT16)
    found = {name: attribute.value for name, attribute in node.attributes.items()}
    assert set(found) == set(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name].numpy(), value)
            assert found[name].dtype == ir.DataType.FLOAT16
        else:
            assert (list(found[name]) if isinstance(value, list) else found[name]) == value


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_a_dequantizer_s_type_is_its_scale_s_and_needs_no_attribute(opset):
    """`output_dtype` exists from opset 23 on; before, the scale alone says it."""
    work = ir.from_proto(
        parse("(int8[2] q, float16 s, int8 z) => (float16[2] y) { y = DequantizeLinear (q, s, z) }", opset=opset)
    )
    retype_attributes(work.graph[0], [0], FLOAT16)
    assert not work.graph[0].attributes


def test_a_dequantizer_s_type_that_is_given_follows():
    work = ir.from_proto(
        parse("(int8[2] q, float s) => (float[2] y) { y = DequantizeLinear <output_dtype = 1> (q, s) }", opset=23)
    )
    retype_attributes(work.graph[0], [0], FLOAT16)
    assert work.graph[0].attributes["output_dtype"].as_int() == int(ir.DataType.FLOAT16)
