"""Paddle's older names of what static programs use: `base`, `fluid`, `DataFeeder`, readers, places and devices."""

import importlib
import random

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.base import core


def test_fluid_is_base():
    assert importlib.import_module("amp_transpiler.paddle.fluid") is importlib.import_module(
        "amp_transpiler.paddle.base"
    )
    assert importlib.import_module("amp_transpiler.paddle.fluid.core") is core
    assert paddle.fluid.Program is paddle.static.Program
    assert paddle.base.core is core
    assert paddle.base.Executor is paddle.static.Executor


def test_a_program_by_the_older_names():
    fluid = paddle.fluid
    main, startup = fluid.Program(), fluid.Program()
    with fluid.scope_guard(core.Scope()), fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [-1, 3], "float32")
        loss = paddle.mean(paddle.static.nn.fc(x, 2))
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        (value,) = exe.run(main, feed={"x": np.ones([2, 3], np.float32)}, fetch_list=[loss])
        assert np.isfinite(value).all()
        assert fluid.global_scope().find_var("fc_0.b_0").get_tensor()._dtype() == "float32"


@pytest.mark.parametrize(
    ("vartype", "name"), [("FP16", "float16"), ("BF16", "bfloat16"), ("FP32", "float32"), ("INT64", "int64")]
)
def test_var_types_are_element_types(vartype, name):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        assert paddle.static.data("x", [2], getattr(core.VarDesc.VarType, vartype)).dtype == name


@pytest.mark.parametrize("dtype", ["uint16", np.uint16, np.dtype(np.uint16)])
def test_uint16_declares_bfloat16(dtype):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        assert paddle.static.data("x", [2], dtype).dtype == "bfloat16"


def test_what_the_core_says_of_this_machine():
    assert core.supports_bfloat16()
    assert core.is_float16_supported(paddle.CPUPlace())
    assert core.is_bfloat16_supported(paddle.CPUPlace())
    assert not core.is_compiled_with_xpu()
    assert core.is_compiled_with_cuda() == paddle.is_compiled_with_cuda()
    assert paddle.get_device().partition(":")[0] in ("cpu", "gpu")
    assert "cpu" in paddle.device.get_all_device_type()
    paddle.set_device("cpu")
    for device in ("npu", "gpu:x", f"gpu:{paddle.device.cuda.device_count()}"):
        with pytest.raises(OptionError, match=device):
            paddle.set_device(device)


def feeder():
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        image = paddle.static.data("image", [-1, 3, 2], "float32")
        label = paddle.static.data("label", [-1, 1], "int64")
        return paddle.base.DataFeeder(place=paddle.CPUPlace(), feed_list=[image, "label"]), label


def test_a_feeder_stacks_samples():
    batch = feeder()[0].feed([(np.full([3, 2], i), i) for i in range(4)])
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "image": ("float32", (4, 3, 2)),
        "label": ("int64", (4, 1)),
    }
    np.testing.assert_array_equal(batch["label"][:, 0], range(4))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([], "no samples"),
        ([(1,)], "sample 0 has 1 fields, expected 2: image, label"),
        (
            [(np.ones([3, 2]), 1), (np.ones([3, 3]), 1)],
            r"'image' have the shapes \[3, 2\], \[3, 3\], expected \[3, 2\]",
        ),
        ([(np.ones([4]), 1)], r"'image' have the shapes \[4\], expected \[3, 2\]"),
    ],
)
def test_a_batch_that_does_not_fit_is_named(batch, message):
    with pytest.raises(InputError, match=message):
        feeder()[0].feed(batch)


def numbers(count):
    return lambda: iter(range(count))


READERS = (
    (paddle.batch(numbers(5), 2), [[0, 1], [2, 3], [4]]),
    (paddle.batch(numbers(5), 2, drop_last=True), [[0, 1], [2, 3]]),
    (paddle.reader.firstn(numbers(9), 3), [0, 1, 2]),
    (paddle.reader.chain(numbers(2), numbers(2)), [0, 1, 0, 1]),
    (
        paddle.reader.compose(numbers(2), paddle.reader.map_readers(lambda x: (x, -x), numbers(2))),
        [(0, 0, 0), (1, 1, -1)],
    ),
    (paddle.reader.map_readers(lambda x, y: x + y, numbers(3), numbers(3)), [0, 2, 4]),
    (paddle.reader.cache(numbers(3)), [0, 1, 2]),
)


@pytest.mark.parametrize(("reader", "expected"), READERS)
def test_readers(reader, expected):
    assert list(reader()) == expected
    assert list(reader()) == expected  # each call starts again


def test_a_shuffled_reader_has_the_same_samples():
    random.seed(0)
    shuffled = list(paddle.reader.shuffle(numbers(20), 8)())
    assert sorted(shuffled) == list(range(20))
    assert sorted(shuffled[:8]) == list(range(8))
    assert shuffled != sorted(shuffled)


def test_a_batch_has_samples():
    with pytest.raises(OptionError, match="batch_size must be 1 or more, got 0"):
        paddle.batch(numbers(1), 0)


def test_readers_that_end_apart():
    with pytest.raises(ValueError, match="longer"):
        list(paddle.reader.compose(numbers(2), numbers(3))())
    assert list(paddle.reader.compose(numbers(2), numbers(3), check_alignment=False)()) == [(0, 0), (1, 1)]


def test_where_older_scripts_find_programs_types_and_role_makers():
    from amp_transpiler.paddle import base, distributed
    from amp_transpiler.paddle.base import backward, core, framework
    from amp_transpiler.paddle.distributed.fleet.base import role_maker

    assert framework.Program is base.Program
    assert backward.append_backward is base.append_backward
    assert core.DataType.FLOAT16 == core.VarDesc.VarType.FP16
    assert not core.is_compiled_with_mkldnn()
    assert role_maker.PaddleCloudRoleMaker is distributed.fleet.PaddleCloudRoleMaker
