"""Finer operator classes, and what the lists say at each level."""

import onnx.parser
import onnx_ir as ir
import pytest

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.ops.names import operator_name
from amp_transpiler.systems.paddle.colours import Colour, colour
from amp_transpiler.systems.paddle.levels import LEVELS, find_level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists


def last_node(body, inputs="float[2,4,8,8] x", initializers=""):
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "my.domain": 1]>
    g ({inputs}) => (float y) <{initializers}> {{ {body} }}"""
    return ir.from_proto(onnx.parser.parse_model(text)).graph[-1]


def plain(op_type, domain=""):
    return ir.node(op_type, [ir.val("x")], domain=domain)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (plain("Relu"), "Relu"),
        (plain("Relu", "ai.onnx"), "Relu"),
        (plain("BiasGelu", "com.microsoft"), "com.microsoft::BiasGelu"),
        (plain("Conv", "my.domain"), "my.domain::Conv"),
    ],
)
def test_operator_name(node, expected):
    assert operator_name(node) == expected
    assert operator_class(node) == expected


@pytest.mark.parametrize(
    ("weight", "attributes", "expected"),
    [
        ("float[8,4,3,3] w", "", "Conv"),
        ("float[8,2,3,3] w", "<group=2>", "Conv"),
        ("float[4,1,3,3] w", "<group=4>", "Conv[depthwise]"),
        ("float[8,1,3,3] w", "<group=4>", "Conv[depthwise]"),
        ("float[8,1,3,3] w", "", "Conv"),  # one input channel, but a single group
        ("float[4,1,3] w", "<group=4>", "Conv[depthwise]"),
        ("float[8,4,3,3,3] w", "", "Conv[3d]"),
        ("float[4,1,3,3,3] w", "<group=4>", "Conv[3d]"),
        ("float w", "<kernel_shape=[3,3,3]>", "Conv[3d]"),
        ("float w", "<kernel_shape=[3,3]>", "Conv"),
        ("float[] w", "<group=4>", "Conv"),  # nothing is known of the weight
    ],
)
def test_conv_classes(weight, attributes, expected):
    node = last_node(f"y = Conv{attributes}(x, w)", inputs=f"float[2,4,8,8] x, {weight}")
    assert operator_class(node) == expected


def test_conv_class_of_an_initializer():
    node = last_node("y = Conv<group=2>(x, w)", initializers="float[2,1,1,1] w = {1, 2}")
    assert operator_class(node) == "Conv[depthwise]"


TABLE = "float[2,3] t = {1, 2, 3, 4, 5, 6}"


@pytest.mark.parametrize(
    ("body", "inputs", "initializers", "expected"),
    [
        ("y = Gather(t, i)", "int64[5] i", TABLE, "Gather[embedding]"),
        ("y = Gather<axis=0>(t, i)", "int64[5] i", TABLE, "Gather[embedding]"),
        ("y = Gather(t, i)", "int64[5] i, float[2,3] t", TABLE, "Gather[embedding]"),  # older files list initializers
        ("y = Gather<axis=1>(t, i)", "int64[5] i", TABLE, "Gather"),
        ("y = Gather(t, i)", "int64[5] i, float[2,3] t", "", "Gather"),
        ("y = Gather(t, i)", "int64[5] i", "int64[2,2] t = {1, 2, 3, 4}", "Gather"),
        ("y = Gather(t, i)", "int64[5] i", "float[2] t = {1, 2}", "Gather"),
        ("t = Constant<value = float[2,1] {1, 2}>() y = Gather(t, i)", "int64[5] i", "", "Gather[embedding]"),
        ("u = Cast<to=10>(t) y = Gather(u, i)", "int64[5] i", TABLE, "Gather[embedding]"),
    ],
)
def test_gather_classes(body, inputs, initializers, expected):
    assert operator_class(last_node(body, inputs, initializers)) == expected


@pytest.mark.parametrize(
    ("body", "initializers", "expected"),
    [
        ("y = Pow(x, e)", "float e = {2}", "Pow[scalar]"),
        ("y = Pow(x, e)", "int64[1] e = {2}", "Pow[scalar]"),
        ("y = Pow(x, e)", "float[2] e = {2, 3}", "Pow"),
        ("e = Constant<value = float {3}>() y = Pow(x, e)", "", "Pow[scalar]"),
        ("e = Constant<value_float = 3.0>() y = Pow(x, e)", "", "Pow[scalar]"),
        ("e = Constant<value_floats = [3.0, 2.0]>() y = Pow(x, e)", "", "Pow"),
        ("e = Constant<value_floats = [3.0]>() y = Pow(x, e)", "", "Pow[scalar]"),
        ("f = Cast<to=1>(e) y = Pow(x, f)", "int64 e = {2}", "Pow[scalar]"),
        ("y = Pow(x, x)", "", "Pow"),
    ],
)
def test_pow_classes(body, initializers, expected):
    assert operator_class(last_node(body, initializers=initializers)) == expected


@pytest.mark.parametrize(("outputs", "expected"), [("y", "MaxPool"), ("y, i", "MaxPool[indices]")])
def test_max_pool_classes(outputs, expected):
    assert operator_class(last_node(f"{outputs} = MaxPool<kernel_shape=[2,2]>(x)")) == expected


@pytest.mark.parametrize(("text", "level"), [("o1", "O1"), ("O2", "O2"), ("od", "OD"), ("AUTO", "auto"), ("O0", "O0")])
def test_levels(text, level):
    assert find_level(text).name == level


@pytest.mark.parametrize("text", ["O3", "", "1", "fp16", None])
def test_unknown_levels(text):
    with pytest.raises(OptionError, match="auto, O0, OD, O1, O2"):
        find_level(text)


WHITE, BLACK, GRAY, UNSUPPORTED, UNLISTED = (
    Colour.WHITE,
    Colour.BLACK,
    Colour.GRAY,
    Colour.UNSUPPORTED,
    Colour.UNLISTED,
)
SCATTER_ADD = last_node('y = ScatterND<reduction="add">(x, i, x)', inputs="float[4] x, int64[4,1] i")
EMBEDDING = last_node("y = Gather(t, i)", "int64[5] i", TABLE)


@pytest.mark.parametrize(
    ("node", "custom_white", "custom_black", "expected"),  # at OD, O1, O2, auto
    [
        (plain("MatMul"), None, None, (WHITE, WHITE, WHITE, WHITE)),
        (plain("Add"), None, None, (BLACK, GRAY, GRAY, GRAY)),
        (plain("Gelu"), None, None, (BLACK, UNLISTED, UNLISTED, UNLISTED)),
        (plain("Foo", "my.domain"), None, None, (BLACK, UNLISTED, UNLISTED, UNLISTED)),
        (plain("Softmax"), None, None, (BLACK, BLACK, UNLISTED, UNLISTED)),
        (plain("Resize"), None, None, (UNSUPPORTED, UNSUPPORTED, UNLISTED, UNLISTED)),
        (EMBEDDING, None, None, (UNSUPPORTED, UNSUPPORTED, UNLISTED, UNLISTED)),
        (SCATTER_ADD, None, None, (UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, UNSUPPORTED)),
        (plain("MatMul"), None, ["matmul"], (UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, UNSUPPORTED)),
        (plain("Softmax"), None, ["Softmax"], (UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, UNSUPPORTED)),
        (EMBEDDING, None, ["lookup_table"], (UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, UNSUPPORTED)),
        (plain("Add"), ["Add"], None, (WHITE, WHITE, WHITE, WHITE)),
        (EMBEDDING, ["Gather"], None, (WHITE, WHITE, WHITE, WHITE)),
        (EMBEDDING, ["gather"], None, (UNSUPPORTED, UNSUPPORTED, UNLISTED, UNLISTED)),
    ],
)
def test_colour_by_level(node, custom_white, custom_black, expected):
    lists = AutoMixedPrecisionLists(custom_white, custom_black)
    assert tuple(colour(node, lists, LEVELS[level]).colour for level in ("OD", "O1", "O2", "auto")) == expected
    assert colour(node, lists, LEVELS["O0"]).colour is BLACK


@pytest.mark.parametrize(
    ("op", "level", "words"),
    [
        ("MatMul", "O1", ["MatMul", "white list", "matmul_v2"]),
        ("Softmax", "O1", ["Softmax", "black list", "exponentials"]),
        ("Softmax", "O2", ["Softmax", "O2 lifts"]),
        ("Resize", "O1", ["Resize", "extra black list", "interpolation"]),
        ("Relu", "OD", ["OD", "Relu", "not on the white list"]),
        ("Gelu", "O1", ["Gelu", "no list"]),
        ("Tanh", "O1", ["Tanh", "custom black list"]),
    ],
)
def test_reasons(op, level, words):
    reason = colour(plain(op), AutoMixedPrecisionLists(custom_black_list=["Tanh"]), LEVELS[level]).reason
    assert [word for word in words if word not in str(reason)] == []


def test_every_level_gives_a_reason():
    for level in LEVELS.values():
        assert str(colour(plain("Gelu"), AutoMixedPrecisionLists(), level).reason)
