"""The operator lists: their content, Paddle's rules for changing them, and names."""

import logging

import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from amp_transpiler.errors import OptionError
from amp_transpiler.ops.vocabulary import finer_classes, known_operator, paddle_names, unknown_operators
from amp_transpiler.systems.paddle.default_colours import DEFAULT_COLOURS, Colour
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from tests.support import HAS_SWIGLU

FINER_CLASSES, PADDLE_NAMES = finer_classes(), paddle_names()
LISTS = ("white_list", "black_list", "gray_list", "unsupported_list", "extra_black_list")


def snapshot(lists):
    return {name: frozenset(getattr(lists, name)) for name in LISTS}


def where(lists, key):
    return {name for name in LISTS if key in getattr(lists, name)}


def known_schemas():
    schemas = (*onnx.defs.get_all_schemas_with_history(), *state.get_all_operator_schema())
    return {f"{s.domain}::{s.name}" if s.domain else s.name for s in schemas}


def float_operators():
    """Operators of ONNX's newest opset that can take or give a float tensor."""
    for schema in onnx.defs.get_all_schemas():
        types = {t for constraint in schema.type_constraints for t in constraint.allowed_type_strs}
        types |= {t for formal in (*schema.inputs, *schema.outputs) for t in formal.types}
        if not schema.domain and not schema.deprecated and any("tensor(float)" in t for t in types):
            yield schema.name


def test_every_float_operator_of_the_newest_opset_has_a_row():
    operators = list(float_operators())
    assert len(operators) > 150
    missing = [name for name in operators if name not in DEFAULT_COLOURS]
    assert missing == [], "give each a colour in operators.txt, unlisted included"


@HAS_SWIGLU
def test_every_row_names_an_operator_that_exists():
    known = known_schemas()
    assert [key for key in DEFAULT_COLOURS if key.partition("[")[0] not in known] == []


def test_every_finer_class_has_a_row():
    assert [key for keys in FINER_CLASSES.values() for key in keys if key not in DEFAULT_COLOURS] == []
    assert {key.partition("[")[0] for key in DEFAULT_COLOURS if "[" in key} == FINER_CLASSES.keys()


def test_every_row_has_a_reason():
    assert [key for key, (_, reason) in DEFAULT_COLOURS.items() if not reason.strip()] == []


def test_no_operator_is_in_two_lists():
    lists = AutoMixedPrecisionLists()
    assert not lists.white_list & lists.black_list
    assert not lists.white_list & lists.gray_list
    assert not lists.black_list & lists.gray_list
    assert lists.extra_black_list == lists.unsupported_list
    assert lists.extra_black_list < lists.black_list


@pytest.mark.parametrize(
    ("operator", "lists"),
    [
        ("Conv", {"white_list"}),
        ("MatMul", {"white_list"}),
        ("Gemm", {"white_list"}),
        ("Einsum", {"white_list"}),
        ("com.microsoft::FusedMatMul", {"white_list"}),
        ("com.microsoft::MultiHeadAttention", {"white_list"}),
        ("Softmax", {"black_list"}),
        ("LayerNormalization", {"black_list"}),
        ("com.microsoft::SkipLayerNormalization", {"black_list"}),
        ("Exp", {"black_list"}),
        ("ReduceMean", {"black_list"}),
        ("Pow[scalar]", {"black_list"}),
        ("Pow", {"gray_list"}),
        ("Add", {"gray_list"}),
        ("BatchNormalization", {"gray_list"}),
        ("MaxPool", {"gray_list"}),
        ("Gather", {"gray_list"}),
        ("Squeeze", {"gray_list"}),
        ("Where", {"gray_list"}),
        ("Resize", {"black_list", "unsupported_list", "extra_black_list"}),
        ("Gather[embedding]", {"black_list", "unsupported_list", "extra_black_list"}),
        ("ScatterND", {"black_list", "unsupported_list", "extra_black_list"}),
        ("Gelu", set()),
        ("com.microsoft::BiasGelu", set()),
        ("Conv[depthwise]", set()),
        ("Conv[3d]", set()),
        ("ConvTranspose", set()),
        ("InstanceNormalization", set()),
    ],
)
def test_default_lists(operator, lists):
    """The lists are the published ones."""
    assert where(AutoMixedPrecisionLists(), operator) == lists


# Paddle's own cases of custom lists: what is asked for, and what changes against the default lists.
@pytest.mark.parametrize(
    ("white", "black", "changes"),
    [
        ({"Exp"}, None, {"white_list": {"+Exp"}, "black_list": {"-Exp"}}),
        ({"Tanh"}, None, {"white_list": {"+Tanh"}, "gray_list": {"-Tanh"}}),
        ({"my.domain::Foo"}, None, {"white_list": {"+my.domain::Foo"}}),
        (None, {"MatMul"}, {"white_list": {"-MatMul"}, "black_list": {"+MatMul"}, "unsupported_list": {"+MatMul"}}),
        (None, {"Tanh"}, {"gray_list": {"-Tanh"}, "black_list": {"+Tanh"}, "unsupported_list": {"+Tanh"}}),
        (None, {"my.domain::Foo"}, {"black_list": {"+my.domain::Foo"}, "unsupported_list": {"+my.domain::Foo"}}),
        (
            {"lookup_table_v2"},
            None,
            {
                "white_list": {"+Gather[embedding]"},
                "black_list": {"-Gather[embedding]"},
                "unsupported_list": {"-Gather[embedding]"},
                "extra_black_list": {"-Gather[embedding]"},
            },
        ),
        (
            None,
            {"Resize"},  # the user's wish now, and no longer only the default's
            {"extra_black_list": {"-Resize"}},
        ),
        ({"exp"}, None, {"white_list": {"+Exp"}, "black_list": {"-Exp"}}),
        ({"ai.onnx::Exp"}, None, {"white_list": {"+Exp"}, "black_list": {"-Exp"}}),
    ],
)
def test_custom_lists_move_operators(white, black, changes):
    before = snapshot(AutoMixedPrecisionLists())
    after = snapshot(AutoMixedPrecisionLists(white, black))
    lists_of = {
        name: {f"+{key}" for key in after[name] - before[name]} | {f"-{key}" for key in before[name] - after[name]}
        for name in LISTS
    }
    assert {name: change for name, change in lists_of.items() if change} == changes


@pytest.mark.parametrize(
    ("white", "black", "whites", "blacks"),
    [
        ({"Conv"}, None, {"Conv", "Conv[depthwise]", "Conv[3d]"}, set()),
        ({"conv2d"}, None, {"Conv"}, set()),
        ({"depthwise_conv2d"}, None, {"Conv", "Conv[depthwise]"}, set()),
        (None, {"Conv"}, set(), {"Conv", "Conv[depthwise]", "Conv[3d]"}),
        ({"Conv"}, {"Conv[3d]"}, {"Conv", "Conv[depthwise]"}, {"Conv[3d]"}),
        ({"Conv[3d]"}, {"Conv"}, {"Conv[3d]"}, {"Conv", "Conv[depthwise]"}),
    ],
)
def test_a_plain_name_covers_its_finer_classes(white, black, whites, blacks):
    """Conv moves from white to black."""
    lists = AutoMixedPrecisionLists(white, black)
    keys = {"Conv", *FINER_CLASSES["Conv"]}
    assert lists.white_list & keys == whites
    assert lists.unsupported_list & keys == blacks


def test_an_alias_may_stand_for_several_operators():
    lists = AutoMixedPrecisionLists(custom_black_list=["pool2d"])
    assert {"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"} <= lists.unsupported_list


def test_custom_lists_leave_the_defaults_alone():
    before = snapshot(AutoMixedPrecisionLists())
    AutoMixedPrecisionLists({"Exp"}, {"Conv"}).gray_list.clear()
    assert snapshot(AutoMixedPrecisionLists()) == before


@pytest.mark.parametrize(
    ("white", "black", "named"),
    [
        ({"Conv"}, {"Conv"}, "Conv"),
        ({"conv2d"}, {"Conv"}, "Conv"),
        ({"pool2d"}, {"MaxPool"}, "MaxPool"),
        ({"Foo"}, {"Foo"}, "Foo"),
    ],
)
def test_one_operator_in_both_lists_is_refused(white, black, named):
    with pytest.raises(ValueError, match=f"overlaps.*{named}"):
        AutoMixedPrecisionLists(white, black)


@pytest.mark.parametrize("dtype", ["int64", "float32", "", "half"])
def test_other_dtypes_are_refused(dtype):
    """For the lists; `tests/paddle` has the other places that take a dtype."""
    with pytest.raises(ValueError, match="float16"):
        AutoMixedPrecisionLists(dtype=dtype)


@pytest.mark.parametrize(("dtype", "name"), [("float16", "float16"), ("BFloat16", "bfloat16"), ("FLOAT16", "float16")])
def test_dtypes(dtype, name):
    assert AutoMixedPrecisionLists(dtype=dtype).dtype == name


def test_bfloat16_goes_by_the_same_lists():
    assert snapshot(AutoMixedPrecisionLists(dtype="bfloat16")) == snapshot(AutoMixedPrecisionLists())


def test_variable_names_are_kept():
    assert AutoMixedPrecisionLists(custom_black_varnames=["loss"]).black_varnames == {"loss"}


def test_a_string_is_no_list_of_names():
    with pytest.raises(OptionError, match=r"custom_white_list.*'Conv'"):
        AutoMixedPrecisionLists(custom_white_list="Conv")


@pytest.mark.parametrize(
    ("white", "message"),
    [
        ("Convv", "did you mean Conv"),
        ("cos_sim", "no counterpart in ONNX"),
        ("MaxUnpool", "no float16 kernel"),
    ],
)
def test_a_doubtful_name_is_warned_of(white, message, caplog):
    with caplog.at_level(logging.WARNING):
        lists = AutoMixedPrecisionLists([white])
    assert message in caplog.text
    assert white in lists.white_list


@pytest.mark.parametrize("white", ["Conv", "Mish", "Exp", "conv2d", "Conv[3d]", "com.microsoft::BiasGelu"])
def test_a_good_name_is_not_warned_of(white, caplog):
    with caplog.at_level(logging.WARNING):
        AutoMixedPrecisionLists([white])
    assert not caplog.records


# Every operator that Paddle 2.5 has in a list, or holds in float32.
PADDLE_OPERATORS = """
conv2d matmul matmul_v2 mul einsum max_pool2d_with_index fake_quantize_dequantize_abs_max
fake_quantize_dequantize_moving_average_abs_max fused_gemm_epilogue fused_attention fused_feedforward resnet_unit
fused_bn_add_activation tan acos asin sinh cosh atanh tanh_shrink cos_sim erfinv exp expm1 log log10 log2 reciprocal
rsqrt pow square reduce_sum mean reduce_mean reduce_prod cumprod cumsum dist p_norm frobenius_norm renorm group_norm
layer_norm softmax softmin softplus log_softmax softmax_with_cross_entropy sigmoid_cross_entropy_with_logits
c_softmax_with_cross_entropy cross_entropy cross_entropy2 nll_loss huber_loss triplet_margin_loss log_loss hsigmoid_loss
margin_cross_entropy linear_interp_v2 nearest_interp_v2 bilinear_interp_v2 bicubic_interp_v2 trilinear_interp_v2
lookup_table lookup_table_v2 scatter elementwise_add elementwise_sub elementwise_mul elementwise_div elementwise_max
elementwise_min elementwise_pow elementwise_mod elementwise_floordiv batch_norm tanh sigmoid top_k pool2d dropout relu
relu6 leaky_relu flatten2 stack unstack uniform_random gaussian_random slice scale transpose2 reshape2 gather
fill_constant sign cast concat split conv3d conv2d_transpose depthwise_conv2d sum fc
""".split()


@pytest.mark.parametrize("name", PADDLE_OPERATORS)
def test_paddle_names_are_known(name):
    assert known_operator(name)
    assert all(key in DEFAULT_COLOURS for key in PADDLE_NAMES[name])


def test_paddle_names_stand_for_rows():
    assert {k for keys in PADDLE_NAMES.values() for k in keys} <= DEFAULT_COLOURS.keys()


@pytest.mark.parametrize(
    ("name", "colour"),
    [
        ("conv2d", Colour.WHITE),
        ("matmul_v2", Colour.WHITE),
        ("softmax", Colour.BLACK),
        ("reduce_mean", Colour.BLACK),
        ("pow", Colour.BLACK),
        ("bilinear_interp_v2", Colour.UNSUPPORTED),
        ("lookup_table", Colour.UNSUPPORTED),
        ("elementwise_pow", Colour.GRAY),
        ("pool2d", Colour.GRAY),
        ("depthwise_conv2d", Colour.UNLISTED),
        ("gelu", Colour.UNLISTED),
    ],
)
def test_paddle_names_have_paddles_colour(name, colour):
    """Under Paddle's own names."""
    assert {DEFAULT_COLOURS[key][0] for key in PADDLE_NAMES[name]} == {colour}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("conv", "Conv"),
        ("Cnov", "Conv"),
        ("BiasGelu", "com.microsoft::BiasGelu"),
        ("matmul_v3", "matmul_v2"),
        ("my.domain::Fou", "my.domain::Foo"),
        ("xyzzyxyzzy", None),
    ],
)
def test_unknown_operators_come_with_near_matches(name, near):
    [(unknown, matches)] = unknown_operators([name], {"my.domain::Foo", "Conv"})
    assert unknown == name
    assert (near in matches) if near else matches == []


@pytest.mark.parametrize("name", ["Conv", "ai.onnx::Conv", "Scatter", "conv2d", "Gather[embedding]", "my.domain::Foo"])
def test_known_operators(name):
    assert unknown_operators([name], ["my.domain::Foo"]) == []
