"""MXNet's lists on ONNX's operators: that they are whole, and where they put what."""

import collections

import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from amp_transpiler.errors import OptionError
from amp_transpiler.ops.table import column
from amp_transpiler.systems.mxnet.conversion import (
    list_conditional_fp32_ops,
    list_fp32_ops,
    list_loss_output_functions,
    list_lp16_fp32_ops,
    list_lp16_ops,
    list_lp16_use_fp32_params,
    list_widest_type_cast,
)
from amp_transpiler.systems.mxnet.lists import default_mxnet_lists, like_mxnet_name
from amp_transpiler.systems.paddle.default_colours import DEFAULT_COLOURS
from tests.support import HAS_SWIGLU

FORMATS = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
QUERIES = (list_lp16_ops, list_fp32_ops, list_widest_type_cast, list_lp16_fp32_ops)


def listed(dtype):
    conditional = [operator for operator, _, _ in list_conditional_fp32_ops(dtype)]
    return [key for query in QUERIES for key in query(dtype)] + conditional


def known_schemas():
    schemas = (*onnx.defs.get_all_schemas_with_history(), *state.get_all_operator_schema())
    return {f"{s.domain}::{s.name}" if s.domain else s.name for s in schemas}


def float_operators():
    """Operators of ONNX's own domain that, in any version, can take or give a float tensor."""
    for schema in onnx.defs.get_all_schemas_with_history():
        types = {t for constraint in schema.type_constraints for t in constraint.allowed_type_strs}
        types |= {t for formal in (*schema.inputs, *schema.outputs) for t in formal.types}
        if not schema.domain and any("tensor(float)" in t for t in types):
            yield schema.name


@FORMATS
def test_no_operator_is_on_two_lists_or_twice_on_one(dtype):
    assert [key for key, count in collections.Counter(listed(dtype)).items() if count > 1] == []


@HAS_SWIGLU
@FORMATS
def test_every_listed_operator_exists(dtype):
    known = known_schemas()
    assert [key for key in listed(dtype) if key.partition("[")[0] not in known] == []


@FORMATS
def test_every_operator_with_a_float_tensor_is_listed(dtype):
    operators = {*float_operators(), *(key for key in DEFAULT_COLOURS if "::" in key)}
    assert len(operators) > 240
    assert sorted(operators - set(listed(dtype))) == []


def test_every_bfloat16_difference_names_a_row():
    keys = {operator for operator, cell in column("mxnet").items() if "bfloat16:" in cell}
    assert len(keys) > 20
    assert keys <= set(listed("float16"))
    assert all((key in list_fp32_ops()) != (key in list_fp32_ops("bfloat16")) for key in keys)


@pytest.mark.parametrize(
    ("operator", "float16", "bfloat16"),
    [
        ("Conv", "target", "target"),
        ("ConvTranspose", "target", "target"),
        ("Gemm", "target", "target"),
        ("MatMul", "target", "target"),
        ("LSTM", "target", "fp32"),
        ("Softmax", "fp32", "neutral"),
        ("LayerNormalization", "fp32", "neutral"),
        ("ReduceMean", "fp32", "neutral"),
        ("ReduceSum", "fp32", "neutral"),
        ("Exp", "fp32", "neutral"),
        ("Log", "fp32", "fp32"),
        ("Pow", "fp32", "fp32"),
        ("TopK", "fp32", "fp32"),
        ("Softplus", "fp32", "fp32"),
        ("Elu", "fp32", "neutral"),
        ("Selu", "fp32", "fp32"),
        ("Add", "widest", "widest"),
        ("Concat", "widest", "widest"),
        ("Sum", "widest", "widest"),
        ("Where", "widest", "widest"),
        ("BatchNormalization", "neutral", "neutral"),
        ("Relu", "neutral", "neutral"),
        ("Reshape", "neutral", "neutral"),
        ("Gather", "neutral", "neutral"),
        ("Gather[embedding]", "neutral", "fp32"),
        ("Dropout", "neutral", "fp32"),
        ("Pad", "neutral", "fp32"),
    ],
)
def test_where_operators_stand(operator, float16, bfloat16):
    for dtype, expected in (("float16", float16), ("bfloat16", bfloat16)):
        lists = default_mxnet_lists(dtype)
        assert [n for n in ("target", "fp32", "widest", "neutral") if operator in getattr(lists, n)] == [expected]


@pytest.mark.parametrize("query", [*QUERIES, list_conditional_fp32_ops, list_loss_output_functions])
def test_queries_return_fresh_lists(query):
    before = query("bfloat16")
    query("bfloat16").clear()
    query("bfloat16").append("Conv")
    assert query("bfloat16") == before
    with pytest.raises(OptionError, match="int8"):
        query("int8")


def test_losses_are_float32_operators():
    assert set(list_loss_output_functions()) <= set(list_fp32_ops())


def test_parameters_that_stay_float32_are_named_as_the_schema_names_them():
    parameters = list_lp16_use_fp32_params()
    parameters["BatchNormalization"].append("X")
    names = [formal.name for formal in onnx.defs.get_schema("BatchNormalization", 15, "").inputs]
    assert list_lp16_use_fp32_params() == {"BatchNormalization": names[1:]}


@pytest.mark.parametrize(
    ("name", "first"), [("Convolution", "Conv"), ("FullyConnected", "Gemm"), ("add_n", "Sum"), ("none", None)]
)
def test_mxnet_names_lead_to_operators(name, first):
    assert next(iter(like_mxnet_name(name)), None) == first
