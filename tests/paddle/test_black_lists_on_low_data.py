"""Operators of the black list on data of 16 bits: they compute in float32, as in Paddle."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.paddle import nn, static
from amp_transpiler.paddle.static import amp

X = np.random.default_rng(6).random([8, 8], np.float32)


pytestmark = pytest.mark.usefixtures("fresh_programs")


def fetch(wanted, x):
    exe = static.Executor(paddle.CPUPlace())
    exe.run(static.default_startup_program())
    return exe.run(feed={"x": X.astype(x.value.dtype.numpy())}, fetch_list=wanted)


def cast(level, *black, dtype="float16", **options):
    lists = amp.AutoMixedPrecisionLists(custom_black_list=set(black), dtype=dtype)
    options = {"use_fp16_guard": False, **options}
    amp.cast_model_to_fp16(static.default_main_program(), lists, dest_type=dtype, level=level, **options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("level", "black"), [("O1", []), ("O2", ["reduce_mean"])])
def test_the_mean_of_low_data_is_not_rounded(level, black, dtype):
    x = static.data("x", [8, 8], dtype)
    loss = paddle.mean(x)
    assert loss.dtype == dtype
    cast(level, *black, dtype=dtype)
    assert loss.dtype == "float32"
    [mean] = fetch([loss], x)
    np.testing.assert_allclose(mean, X.astype(x.value.dtype.numpy()).astype(np.float64).mean(), rtol=1e-6)


@pytest.mark.parametrize("level", ["O2", "OD"])
def test_an_operator_off_the_black_list_stays_as_written(level):
    loss = paddle.mean(static.data("x", [8, 8], "float16"))
    cast(level)
    assert loss.dtype == "float16"


def test_what_reads_the_result_gets_its_16_bits_but_black_operators_and_casts_do_not():
    x = static.data("x", [8, 8], "float16")
    scores = paddle.exp(x)
    logs, product, wide = paddle.log(scores), paddle.matmul(scores, x), scores.astype("float32")
    cast("O1")
    assert [item.dtype for item in (scores, logs, product, wide)] == ["float32", "float32", "float16", "float32"]
    values = fetch([scores, logs, product, wide], x)
    exact = np.exp(X.astype(np.float16).astype(np.float32))
    np.testing.assert_allclose(values[0], exact, rtol=1e-6)
    np.testing.assert_array_equal(values[0], values[3])
    np.testing.assert_allclose(values[1], X.astype(np.float16), rtol=1e-5, atol=1e-6)  # log(exp(x)), rounded nowhere
    np.testing.assert_allclose(values[2].astype(np.float32), exact.astype(np.float16) @ X, rtol=5e-3)


def test_regions_keep_what_they_kept():
    x = static.data("x", [8, 8], "float16")
    with amp.fp16_guard():
        inside = paddle.exp(x)
    outside = paddle.exp(x)
    cast("O1", use_fp16_guard=True)
    assert (inside.dtype, outside.dtype) == ("float32", "float16")


def test_low_data_and_parameters_train_with_the_losses_of_float32_ones():
    def losses(dtype, level):
        main, startup = static.Program(), static.Program()
        with static.program_guard(main, startup), paddle.utils.unique_name.guard():
            x = static.data("x", [8, 8], dtype)
            start = nn.initializer.Assign(np.full([8, 8], 0.5, np.float32))
            weight = paddle.create_parameter([8, 8], dtype, attr=paddle.ParamAttr("w", initializer=start))
            loss = paddle.mean(x + weight)
            lists = amp.AutoMixedPrecisionLists({"elementwise_add"}, {"reduce_mean"}, dtype="bfloat16")
            optimizer = amp.decorate(paddle.optimizer.AdamW(0.01), lists, level=level, dtype="bfloat16")
            optimizer.minimize(loss)
        exe = static.Executor(paddle.CPUPlace())
        with static.scope_guard(static.Scope()):
            exe.run(startup)
            optimizer.amp_init(paddle.CPUPlace())
            fed = amp.bf16.convert_float_to_uint16(X)
            fed = fed if dtype == "uint16" else (fed.astype(np.uint32) << 16).view(np.float32)
            return [exe.run(main, feed={"x": fed}, fetch_list=[loss])[0].item() for _ in range(3)]

    assert losses("uint16", "O2") == losses("float32", "O1")
