"""Custom lists in training programs; tests/precision/test_lists.py has the lists themselves."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.systems.paddle.default_colours import DEFAULT_COLOURS
from tests.paddle import nets, text_nets
from tests.paddle.text_nets import losses, trainer
from tests.support import array, parse

INTERPOLATIONS = (
    "linear_interp_v2",
    "nearest_interp_v2",
    "bilinear_interp_v2",
    "bicubic_interp_v2",
    "trilinear_interp_v2",
)


def test_white_embeddings_leave_interpolation_black():
    """In the custom white list embeddings leave black and unsupported; interpolation does not follow them."""
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["lookup_table", "lookup_table_v2"])
    assert "Gather[embedding]" in lists.white_list
    assert "Gather[embedding]" not in lists.black_list | lists.unsupported_list
    assert "Resize" in lists.black_list & lists.unsupported_list
    assert "Resize" not in amp.AutoMixedPrecisionLists(custom_white_list=INTERPOLATIONS).black_list


def test_custom_lists_leave_the_module_alone():
    """Neither the table of defaults nor a later object sees what an earlier one was given."""
    before = dict(DEFAULT_COLOURS)
    amp.AutoMixedPrecisionLists(custom_white_list=["Exp"], custom_black_list=["Conv"])
    assert before == DEFAULT_COLOURS
    assert "Exp" not in amp.AutoMixedPrecisionLists().white_list


def test_a_custom_white_add_in_training():
    """The addition runs in fp16; ReduceMean and Log behind it stay fp32."""
    text = """(float[n,4] x) => (float[n,1] y) {
        [add] a = Add (x, v) [mean] m = ReduceMean <axes = [1], keepdims = 1> (a) [log] y = Log (m)
    }"""
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["elementwise_add"])
    weights = {"v": np.full(4, 3.0, np.float32)}
    net = trainer(optimizer.SGD(0.1), text, weights, amp_lists=lists, level="O1", target=[None, 1], opset=13)
    assert [text_nets.kind(net, name) for name in ("add", "mean", "log")] == ["FLOAT16", "FLOAT", "FLOAT"]
    losses_low = losses(net, [{"x": np.ones((2, 4), np.float32), "target": np.ones((2, 1), np.float32)}] * 3)
    assert losses_low[-1] < losses_low[0]


def program():
    return amp.load(parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }", w=array(4, 4)))


DTYPE_TAKERS = {
    "AutoMixedPrecisionLists": lambda dtype: amp.AutoMixedPrecisionLists(dtype=dtype),
    "cast_model_to_fp16": lambda dtype: amp.cast_model_to_fp16(program(), dest_type=dtype),
    "cast_parameters_to_fp16": lambda dtype: amp.cast_parameters_to_fp16(nets.CPU, program(), {}, {"w"}, dtype),
    "decorate": lambda dtype: static.amp.decorate(optimizer.SGD(0.1), dtype=dtype),
    "transpile": lambda dtype: amp.transpile(program(), dtype=dtype, verify=False, prefer="size"),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in DTYPE_TAKERS
        for dtype in ("int64", "float32")
        if (name, dtype) != ("transpile", "float32")
    ],
)
def test_other_dtypes_are_refused_everywhere(name, dtype):
    """A ValueError that names the two that there are. `transpile` alone also makes models float32."""
    with pytest.raises(ValueError, match=r"float16.*bfloat16"):
        DTYPE_TAKERS[name](dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", DTYPE_TAKERS)
def test_both_dtypes_are_taken_everywhere(name, dtype):
    DTYPE_TAKERS[name](dtype)
