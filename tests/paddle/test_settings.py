"""Names of Paddle's that compute nothing in a program: types, numbers, states of generators, settings."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import amp, metric, optimizer, static

WIDTHS = {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "uint32": 4, "uint64": 8}
FLOATS = {"float16": 2, "half": 2, "float": 4, "double": 8}


@pytest.mark.parametrize(("name", "width"), (WIDTHS | FLOATS).items())
def test_types_are_of_paddles_width(name, width):
    member = getattr(paddle, name)
    assert isinstance(member, paddle.dtype)
    assert np.dtype(member).itemsize == width


def test_a_variable_takes_each_type(fresh_programs):
    x = static.data("x", [2, 3])
    assert isinstance(x, paddle.Tensor)
    casts = {name: x.astype(getattr(paddle, name)) for name in (*WIDTHS, "double", "bool")}
    values = np.array([[0, 1, 2], [3, 100, 7]], np.float32)
    cast_values = static.Executor(paddle.CPUPlace()).run(x.program, {"x": values}, list(casts.values()))
    for name, value in zip(casts, cast_values, strict=True):
        wanted = values.astype(np.dtype(name if name != "double" else "float64"))
        assert value.dtype == wanted.dtype
        np.testing.assert_array_equal(value, wanted)


def test_numbers_and_places():
    assert np.isnan(paddle.nan)
    assert paddle.CUDAPlace(0) != paddle.CPUPlace()
    assert paddle.CPUPlace() == paddle.CPUPlace()


def test_shapes_that_meet(fresh_programs):
    assert paddle.broadcast_shape([8, 1, 6], [7, 1]) == [8, 7, 6]
    assert paddle.broadcast_shapes([4, 1], [3], [2, 1, 1]) == [2, 4, 3]
    with pytest.raises(InputError, match="broadcast"):
        paddle.broadcast_shape([2], [3])
    paddle.check_shape([2, -1, static.data("n", [1], "int32")])
    with pytest.raises(InputError, match="a shape consists of whole numbers"):
        paddle.check_shape([2.5])


def _drawn():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), static.scope_guard(static.Scope()):
        parameter = paddle.create_parameter([4], "float32", attr=paddle.ParamAttr(name="drawn"))
        noise = paddle.standard_normal([1000])
        executor = static.Executor(paddle.CPUPlace())
        executor.run(startup)
        return executor.run(main, {}, [parameter, noise])


@pytest.mark.parametrize("set_seed", [paddle.seed, paddle.manual_seed])
def test_what_is_drawn_goes_by_the_seed(set_seed):
    set_seed(3)
    first = _drawn()
    set_seed(4)
    other = _drawn()
    set_seed(3)
    again = _drawn()
    for value, two, three in zip(first, other, again, strict=True):
        np.testing.assert_array_equal(value, three)
        assert not np.array_equal(value, two)
    assert first[1].mean() == pytest.approx(0, abs=0.2)
    assert first[1].std() == pytest.approx(1, abs=0.1)


def test_the_state_of_the_generator_of_a_device_is_the_generators():
    state = paddle.get_cuda_rng_state()
    first = _drawn()
    paddle.set_cuda_rng_state(state)
    np.testing.assert_array_equal(first[1], _drawn()[1])


def test_how_arrays_are_printed():
    with np.printoptions():
        paddle.set_printoptions(precision=2, threshold=5, edgeitems=1)
        assert str(np.array([1 / 3, 0.5])) == "[0.33 0.5 ]"
        assert "..." in str(np.arange(10))


def test_settings_of_dynamic_mode_have_their_defaults():
    assert not paddle.is_autocast_enabled()
    assert (paddle.get_autocast_cpu_dtype(), paddle.get_autocast_gpu_dtype()) == ("bfloat16", "float16")
    assert paddle.get_autocast_dtype("cpu") == amp.get_autocast_dtype("cpu") == "bfloat16"
    assert amp.get_autocast_cpu_dtype() == "bfloat16"
    assert amp.get_autocast_gpu_dtype() == paddle.get_autocast_dtype("cuda") == "float16"
    assert not amp.is_autocast_enabled()
    with pytest.raises(OptionError, match="there is no eager mode"), paddle.autocast():
        pass
    assert paddle.disable_signal_handler() is None


def test_batches_of_a_reader():
    assert list(paddle.batch(lambda: iter(range(7)), 3)()) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(paddle.batch(lambda: iter(range(7)), 3, drop_last=True)()) == [[0, 1, 2], [3, 4, 5]]


def test_arrays_are_saved_and_loaded(tmp_path):
    paddle.save({"w": np.arange(3.0)}, str(tmp_path / "w.pdparams"))
    np.testing.assert_array_equal(paddle.load(str(tmp_path / "w.pdparams"))["w"], np.arange(3.0))


def test_base_classes_are_those_of_the_others():
    for name in ("Adam", "SGD", "Lamb"):
        assert issubclass(getattr(optimizer, name), optimizer.Optimizer)
    assert issubclass(metric.Accuracy, metric.Metric)
    assert issubclass(paddle.io.SequenceSampler, paddle.io.Sampler)
    assert paddle.nn.Module is paddle.nn.Layer
    assert paddle.nn.ModuleDict is paddle.nn.LayerDict
    assert paddle.nn.ModuleList is paddle.nn.LayerList
