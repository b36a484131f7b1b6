"""A program as Paddle's operators, their statistics by precision, and lists by Paddle's names."""

import copy

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.paddle.static import amp


def step(level, *, promote=False, clip=False, dtype="float16"):
    """Return a training program of a convolution, a fully connected layer and a Softmax."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        x = paddle.static.data("input", [None, 1, 6, 6], "float32")
        out = paddle.static.nn.conv2d(x, 6, 3)
        out = paddle.nn.functional.relu(out.astype("float32"))
        out = paddle.static.nn.fc(paddle.flatten(out, 1, 3), 4)
        loss = paddle.mean(paddle.nn.functional.softmax(out))
        grad_clip = paddle.nn.ClipGradByGlobalNorm(1.0) if clip else None
        optimizer = paddle.optimizer.AdamW(0.01, weight_decay=0.01, grad_clip=grad_clip)
        if level != "O0":
            optimizer = amp.decorate(optimizer, level=level, dtype=dtype, use_promote=promote)
        optimizer.minimize(loss)
    return main


# level, promotion -> low calls of each operator; those of promotion are the numbers of Paddle's own test of it.
COUNTS = (
    ("O1", True, {"conv2d": 1, "elementwise_add": 0, "matmul_v2": 1, "relu": 0, "softmax": 0, "adamw": 0}),
    ("O1", False, {"conv2d": 1, "matmul_v2": 1, "relu": 0, "softmax": 0, "reduce_mean": 0, "adamw": 0}),
    ("O2", True, {"conv2d": 1, "elementwise_add": 2, "relu": 0, "matmul_v2": 1, "softmax": 1, "reduce_mean": 1}),
    ("O2", False, {"conv2d": 1, "elementwise_add": 2, "relu": 1, "matmul_v2": 1, "softmax": 1, "adamw": 4}),
)


@pytest.mark.parametrize(("level", "promote", "expected"), COUNTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_statistics_have_paddles_names(level, promote, expected, dtype):
    (stats,) = amp.debugging._get_op_stats_list(step(level, promote=promote, dtype=dtype))
    low = {name: getattr(stats[name], "fp16_calls" if dtype == "float16" else "bf16_calls") for name in expected}
    assert low == expected


@pytest.mark.parametrize(("promote", "expected"), [(True, 1 + 2**-12), (False, 1.0)])
def test_promotion_at_o1_adds_the_bias_of_a_convolution_in_float32(promote, expected):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [1, 1, 4, 4], "float32")
        start = paddle.nn.initializer.Constant(1 + 2**-12)  # float16 rounds it to 1
        out = paddle.static.nn.conv2d(x, 2, 3, bias_attr=paddle.ParamAttr(name="bias", initializer=start))
        optimizer = amp.decorate(
            paddle.optimizer.SGD(0.5), level="O1", use_promote=promote, use_dynamic_loss_scaling=False
        )
        optimizer.minimize(paddle.mean(out))
    exe = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()):
        exe.run(startup)
        (names,) = exe.run(main, feed={"x": np.zeros([1, 1, 4, 4], np.float32)}, fetch_list=[out])
        np.testing.assert_array_equal(np.asarray(names, np.float32), np.full([1, 2, 2, 2], expected, np.float32))
        trained = np.asarray(paddle.static.global_scope().find_var("bias").get_tensor())
    np.testing.assert_allclose(trained, np.full(2, 1 + 2**-12 - 0.25), rtol=1e-6)


@pytest.mark.parametrize(("level", "masters"), [("O1", 0), ("O2", 4)])
def test_an_update_is_one_operator_that_names_its_parameter(level, masters):
    program = step(level)
    updates = [op for op in program.global_block().ops if {"Param", "Grad"} <= set(op.input_names)]
    assert {op.type for op in updates} == {"adamw"}
    assert {op.input("Param")[0] for op in updates} == {p.name for p in program.all_parameters()}
    assert sum(op.attr("multi_precision") for op in updates) == masters
    assert all(program.find(name) is not None for op in updates for name in op.input_arg_names)


def test_blocks_of_a_program_without_control_flow():
    program = step("O2", clip=True)
    assert program.num_blocks == 1
    assert program.block(0).ops == program.blocks[0].ops
    parameter = program.all_parameters()[0]
    assert program.block(0).var(parameter.name).shape == parameter.shape
    names = [op.type for op in program.ops]
    assert names.count("squared_l2_norm") == 4
    assert {"check_finite_and_unscale", "update_loss_scaling"} <= set(names)
    conv = next(op for op in program.ops if op.type == "conv2d")
    assert list(conv.attr("strides")) == [1, 1]
    assert conv.has_attr("pads")
    assert not conv.has_attr("nothing")


def test_labels_survive_a_clone():
    program = step("O2")
    assert [op.type for op in program.clone().ops] == [op.type for op in program.ops]


def defaults():
    lists = amp.fp16_lists
    white = copy.copy(lists.white_list) | lists._only_supported_fp16_list
    black = copy.copy(lists.black_list | lists._extra_black_list)
    return white, black, copy.copy(lists.gray_list)


# custom white, custom black -> names that leave and join the lists
MOVES = (
    ((), (), {}),
    (("exp",), (), {"white": "+exp", "black": "-exp"}),
    (("tanh",), (), {"white": "+tanh", "gray": "-tanh"}),
    (("lstm",), (), {"white": "+lstm"}),
    ((), ("conv2d",), {"white": "-conv2d", "black": "+conv2d"}),
    ((), ("tanh",), {"black": "+tanh", "gray": "-tanh"}),
    ((), ("lstm",), {"black": "+lstm"}),
)


@pytest.mark.parametrize(("white", "black", "moved"), MOVES)
def test_lists_equal_paddles_with_what_the_user_moved(white, black, moved):
    lists = amp.AutoMixedPrecisionLists(set(white), set(black))
    for name, names, expected in zip(
        ("white", "black", "gray"), (lists.white_list, lists.black_list, lists.gray_list), defaults(), strict=True
    ):
        assert (names == expected) == (name not in moved)
        if move := moved.get(name):
            (expected.add if move[0] == "+" else expected.remove)(move[1:])
        assert names == expected
        assert (names != expected) is False


def test_lists_answer_to_paddles_names():
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["lookup_table", "lookup_table_v2"])
    interpolations = ("linear", "nearest", "bilinear", "bicubic", "trilinear")
    assert all(f"{name}_interp_v2" in lists.black_list for name in interpolations)
    assert "lookup_table_v2" in lists.white_list
    assert "lookup_table_v2" not in lists.black_list
    assert "conv2d" in lists.white_list.paddle()
    assert "Conv" in lists.white_list
    assert "no_such_operator" not in lists.white_list
    with pytest.raises(KeyError, match="conv2d"):
        lists.black_list.remove("conv2d")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_names_of_low_formats(dtype):
    amp.fp16_lists.check_amp_dtype(dtype)
    assert amp.fp16_lists.get_low_precision_dtypestr(dtype) == dtype


@pytest.mark.parametrize("function", [amp.fp16_lists.check_amp_dtype, amp.fp16_lists.get_low_precision_dtypestr])
def test_other_types_are_no_low_formats(function):
    with pytest.raises(ValueError, match="int64"):
        function("int64")


def bf16_program(low_guard):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        t = paddle.static.data("t", [3, 3], "float32")
        with low_guard():
            inside = paddle.add(t, t)
        outside = paddle.multiply(inside, t)
    return main, inside, outside


def test_bf16_rewrites_by_lists_and_as_a_whole():
    bf16 = amp.bf16
    lists = bf16.AutoMixedPrecisionListsBF16(custom_bf16_list={"elementwise_add"}, custom_fp32_list={"elementwise_mul"})
    for rewrite in (
        lambda program: bf16.rewrite_program_bf16(program, lists),
        lambda program: bf16.cast_model_to_bf16(program, None, lists, use_bf16_guard=True),
    ):
        program, inside, outside = bf16_program(bf16.bf16_guard)
        rewrite(program)
        (stats,) = amp.debugging._get_op_stats_list(program)
        assert (stats["elementwise_add"].bf16_calls, stats["elementwise_mul"].fp32_calls) == (1, 1)
        fed = np.full([3, 3], 3.2, np.float32)
        exe = paddle.static.Executor(paddle.CPUPlace())
        names = exe.run(program, feed={"t": fed}, fetch_list=[inside, outside])
        np.testing.assert_allclose(np.asarray(names[0], np.float32), 2 * fed, rtol=1e-2)
        np.testing.assert_allclose(np.asarray(names[1], np.float32), 2 * fed * fed, rtol=1e-2)


def test_bits_of_bfloat16():
    bits = amp.bf16.convert_float_to_uint16([1.0, 3.2, -2.7])
    assert bits.dtype == np.uint16
    back = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(back, [1.0, 3.2, -2.7], rtol=2**-8)


def test_decorate_bf16():
    optimizer = amp.bf16.decorate_bf16(paddle.optimizer.SGD(0.1), use_pure_bf16=True)
    assert (optimizer.options.level, optimizer.options.dtype, optimizer.options.use_guard) == ("O2", "bfloat16", True)
