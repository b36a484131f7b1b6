"""The modules of `paddle.static.amp`, and names that scripts import from them."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, MisfitError, OptionError
from amp_transpiler.paddle import nn, static
from amp_transpiler.paddle.base import core
from amp_transpiler.paddle.static import amp
from amp_transpiler.paddle.static.amp import amp_nn, bf16, fp16_lists, fp16_utils
from amp_transpiler.paddle.static.amp.bf16 import amp_lists, amp_utils

pytestmark = pytest.mark.usefixtures("fresh_programs")


def fetch(wanted, **feed):
    exe = static.Executor(paddle.CPUPlace())
    exe.run(static.default_startup_program())
    return exe.run(feed=feed, fetch_list=wanted)


# ---- the two operators of loss scaling ----

GOOD = np.array([[1.0, -2.0], [0.5, 4.0]], np.float32)
BAD = np.array([[1.0, np.inf], [0.5, 4.0]], np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("grads", "bad"), [(GOOD, False), (BAD, True), (GOOD * np.nan, True)])
def test_gradients_are_divided_by_the_scale_and_checked(grads, bad, dtype):
    x, other = static.data("x", [2, 2], dtype), static.data("other", [2, 2], dtype)
    scale = static.data("scale", [1], "float32")
    unscaled, is_bad = amp_nn.check_finite_and_unscale([x, other], scale)
    assert unscaled[0] is x
    assert (is_bad.dtype, is_bad.shape, x.dtype) == ("bool", (1,), dtype)
    low = x.value.dtype.numpy()
    values = fetch([x, other, is_bad], x=grads.astype(low), other=GOOD.astype(low), scale=np.array([8], np.float32))
    assert values[2].tolist() == [bad]
    np.testing.assert_array_equal(values[1].astype(np.float32), GOOD / 8)


# scale, good and bad steps before; whether this step is bad; the same three after
UPDATES = {
    "a good step": ((16.0, 3, 1), False, (16.0, 4, 0)),
    "enough good steps": ((16.0, 9, 1), False, (32.0, 0, 0)),
    "a bad step": ((16.0, 9, 0), True, (16.0, 0, 1)),
    "enough bad steps": ((16.0, 9, 1), True, (8.0, 0, 0)),
    "never below 1": ((1.5, 0, 1), True, (1.0, 0, 0)),
    "never infinite": ((3e38, 9, 0), False, (3e38, 0, 0)),
}


def update_of(before, **options):
    x, is_bad = static.data("x", [2, 2]), static.data("found", [1], "bool")
    scale = static.data("scale", [1])
    good, bad = static.data("good", [1], "int32"), static.data("bad", [1], "int32")
    assert amp_nn.update_loss_scaling([x], is_bad, scale, good, bad, 10, 2, 2.0, 0.5, **options)[0] is x
    scale_value, good_value, bad_value = before
    feed = {"scale": np.array([scale_value], np.float32)}
    feed |= {"good": np.array([good_value], np.int32), "bad": np.array([bad_value], np.int32)}
    return [x, scale, good, bad], feed


@pytest.mark.parametrize("case", UPDATES)
def test_the_scale_is_updated(case):
    before, is_bad, after = UPDATES[case]
    wanted, feed = update_of(before)
    x, *state = fetch(wanted, x=GOOD, found=np.array([is_bad]), **feed)
    np.testing.assert_array_equal(x, GOOD * (not is_bad))
    np.testing.assert_allclose([value.item() for value in state], after, rtol=1e-6)


@pytest.mark.parametrize("stop", [True, False])
def test_a_stopped_update_clears_gradients_alone(stop):
    stopped = static.data("stopped", [1], "bool")
    wanted, feed = update_of((16.0, 9, 1), stop_update=stopped)
    x, *state = fetch(wanted, x=BAD, found=np.array([True]), stopped=np.array([stop]), **feed)
    assert not x.any()
    assert [value.item() for value in state] == ([16.0, 9, 1] if stop else [8.0, 0, 0])


def test_a_stopped_update_may_be_known_while_building():
    wanted, feed = update_of((16.0, 9, 1), stop_update=True)
    x, *state = fetch(wanted, x=BAD, found=np.array([True]), **feed)
    assert not x.any()
    assert [value.item() for value in state] == [16.0, 9, 1]


def test_each_bad_step_shrinks_and_none_is_counted():
    x, is_bad, scale = static.data("x", [2, 2]), static.data("found", [1], "bool"), static.data("scale", [1])
    good, bad = static.data("good", [1], "int32"), static.data("bad", [1], "int32")
    amp_nn.update_loss_scaling([x], is_bad, scale, good, bad, 10, 1, 2.0, 0.5)
    feed = {"scale": np.array([4], np.float32), "good": np.array([2], np.int32), "bad": np.array([0], np.int32)}
    values = fetch([scale, good, bad], x=GOOD, found=np.array([True]), **feed)
    assert [value.item() for value in values] == [2.0, 0, 0]


def test_a_persistable_scale_keeps_its_value_from_run_to_run():
    x, is_bad = static.data("x", [2, 2]), static.data("found", [1], "bool")
    scale = static.create_global_var([1], 16.0, "float32", persistable=True)
    good, bad = (static.create_global_var([1], 0, "int32", persistable=True) for _ in range(2))
    amp_nn.update_loss_scaling([x], is_bad, scale, good, bad, 2, 1, 2.0, 0.5)
    exe, main = static.Executor(paddle.CPUPlace()), static.default_main_program()
    exe.run(static.default_startup_program())
    for _ in range(4):
        exe.run(main, feed={"x": GOOD, "found": np.array([False])}, fetch_list=[x])
    held = static.global_scope()
    assert [np.asarray(held[item.name]).item() for item in (scale, good)] == [64.0, 0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, n: amp_nn.check_finite_and_unscale(x, x), "x must be a list of float variables"),
        (lambda x, n: amp_nn.update_loss_scaling([n], x, x, n, n, 1, 1, 2.0, 0.5), "list of float variables"),
        (lambda x, n: amp_nn.update_loss_scaling([x], x, n, n, n, 1, 1, 2.0, 0.5), "prev_loss_scaling must be float32"),
        (lambda x, n: amp_nn.update_loss_scaling([x], x, x, n, n, 0, 1, 2.0, 0.5), "whole numbers from 1 to"),
    ],
)
def test_what_these_operators_cannot_take(call, says):
    with pytest.raises(InputError, match=says):
        call(static.data("x", [1]), static.data("n", [1], "int32"))


# ---- lists and functions under other names ----


def test_names_of_the_two_formats():
    kinds = core.VarDesc.VarType
    for name, kind in (("float16", kinds.FP16), ("bfloat16", kinds.BF16)):
        assert fp16_lists.get_low_precision_vartype(name) == fp16_lists.get_low_precision_vartype(kind) == kind
        assert fp16_lists.get_low_precision_dtypestr(kind) == name
    with pytest.raises(ValueError, match="int64"):
        fp16_lists.get_low_precision_vartype("int64")


def test_lists_for_bfloat16_by_their_older_names():
    lists = bf16.AutoMixedPrecisionListsBF16({"exp"}, {"matmul_v2"}, {"loss"})
    assert isinstance(lists, amp.AutoMixedPrecisionLists)
    assert "exp" in amp_lists.fp32_list
    assert "exp" in lists.bf16_list
    assert "exp" not in lists.fp32_list
    assert "matmul_v2" in amp_lists.bf16_list
    assert "matmul_v2" in lists.fp32_list
    assert (lists.gray_list, lists.fp32_varnames) == (amp_lists.gray_list, {"loss"})
    assert amp_utils.cast_model_to_bf16 is bf16.cast_model_to_bf16


def test_a_program_is_rewritten_by_its_lists():
    x = static.data("x", [4, 8])
    product, square = static.nn.fc(x, 8), paddle.square(x)
    fp16_utils.rewrite_program(static.default_main_program(), fp16_utils.AutoMixedPrecisionLists())
    assert (product.dtype, square.dtype) == ("float16", "float32")
    assert fp16_utils.cast_model_to_fp16 is amp.cast_model_to_fp16


def test_the_module_of_files_hands_out_inference_models():
    assert static.io.save_inference_model is static.save_inference_model
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = static.io.nothing_of_this_name


# ---- data of 16 bits and parameters of float32 ----

LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), [2, 4]),
    "conv2d": (lambda: nn.Conv2D(2, 3, 3, padding=1), [1, 2, 4, 4]),
    "conv2d_transpose": (lambda: nn.Conv2DTranspose(2, 3, 3), [1, 2, 4, 4]),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_takes_data_of_16_bits(layer, dtype):
    make, shape = LAYERS[layer]
    x = static.data("x", shape, dtype)
    built = make()
    wide, narrow = built(x.astype("float32")), built(x)
    fed = np.random.default_rng(1).random(shape, np.float32).astype(x.value.dtype.numpy())
    expected, narrow_result = fetch([wide, narrow], x=fed)
    assert narrow_result.dtype == np.float32
    np.testing.assert_array_equal(narrow_result, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_data_of_16_bits_train_at_o2_as_float32_data_do(dtype):
    def losses(kind):
        main, startup = static.Program(), static.Program()
        main.random_seed = startup.random_seed = 3
        with static.program_guard(main, startup), paddle.utils.unique_name.guard():
            x = static.data("x", [8, 4], kind)
            loss = paddle.mean(nn.functional.relu(nn.Linear(4, 6)(x)))
            optimizer = amp.decorate(paddle.optimizer.AdamW(0.01), level="O2", dtype=dtype)
            optimizer.minimize(loss)
        exe = static.Executor(paddle.CPUPlace())
        with static.scope_guard(static.Scope()):
            exe.run(startup)
            optimizer.amp_init(paddle.CPUPlace())
            fed = np.random.default_rng(2).random([8, 4], np.float32).astype(x.value.dtype.numpy())
            return [exe.run(main, feed={"x": fed}, fetch_list=[loss])[0].item() for _ in range(4)]

    losses_low = losses(dtype)
    assert losses_low[-1] < losses_low[0]
    np.testing.assert_allclose(losses_low, losses("float32"), rtol=4e-3 if dtype == "float16" else 0.02)


# ---- a device's name ----


@pytest.mark.parametrize(
    ("device", "cuda"), [("cpu", False), ("gpu", True), ("gpu:1", True), (paddle.CPUPlace(), False)]
)
def test_what_a_device_computes_in(device, cuda):
    assert paddle.amp.is_float16_supported(device) is cuda
    assert paddle.amp.is_bfloat16_supported(device) is (cuda or core.supports_bfloat16())


@pytest.mark.parametrize("device", ["xxx", 111, "gpu:x"])
def test_a_device_that_there_is_not(device):
    with pytest.raises(ValueError, match="a device is a place, 'cpu'") as raised:
        paddle.amp.is_float16_supported(device)
    assert isinstance(raised.value, OptionError)


# ---- a variable that gets another value ----


def test_an_input_is_overwritten_by_a_branch():
    label = static.data("label", [None, 1], "int64")
    double = label * 2
    zero, one_constant = (paddle.full([1], number, "int64") for number in (0, 1))
    flipped = static.nn.cond(label != zero, lambda: zero, lambda: one_constant)
    assert paddle.assign(flipped, output=label) is label
    after = label + 5
    assert [value.item() for value in fetch([double, after], label=np.array([[0]]))] == [0, 6]
    with pytest.raises(MisfitError, match=r"2 numbers cannot get the shape \[\]"):
        fetch([after], label=np.array([[0], [0]]))


def test_what_is_assigned_gets_the_type_of_its_place():
    held, number = static.create_global_var([1], 1.0, "float32", persistable=True), static.data("n", [1], "int32")
    paddle.assign(number, output=held)
    fetch([number], n=np.array([7], np.int32))
    value = np.asarray(static.global_scope()[held.name])
    assert (value.dtype, value.item()) == (np.float32, 7.0)


# ---- places by name ----


def test_an_executor_takes_the_name_of_its_place():
    x = static.data("x", [2])
    doubled = x * 2.0
    [value] = static.Executor("cpu").run(feed={"x": np.ones(2, np.float32)}, fetch_list=[doubled])
    assert value.tolist() == [2.0, 2.0]
    with pytest.raises(OptionError, match="unknown place 'tpu'"):
        static.Executor("tpu")


@pytest.mark.parametrize(("name", "number"), [("gpu", 0), ("gpu:1", 1)])
def test_an_executor_on_a_device_by_name(name, number):
    assert static.Executor(name).place == paddle.CUDAPlace(number)
