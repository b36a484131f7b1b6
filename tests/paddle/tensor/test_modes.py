"""Names in place, and what scripts say about the mode they run in."""

from __future__ import annotations

import math

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import OptionError
from amp_transpiler.paddle import static
from amp_transpiler.paddle.tensor import in_place


@pytest.fixture
def x():
    with static.program_guard(static.Program(), static.Program()):
        input_of = static.data("x", [2, 3])
        input_of.stop_gradient = False
        yield input_of


@pytest.mark.parametrize("name", in_place.__all__)
def test_a_name_in_place_is_the_function_without_the_line(name):
    assert getattr(paddle, name) is getattr(paddle, name[:-1])


def test_what_is_built_under_no_grad_passes_no_gradient(x):
    with paddle.no_grad():
        still = x * 2.0
    [gradient] = static.gradients([still * x], [x])
    [value] = static.Executor(paddle.CPUPlace()).run(x.program, {"x": np.full((2, 3), 3, np.float32)}, [gradient])
    np.testing.assert_array_equal(value, 6.0)  # not 12, the slope of 2 x^2


def test_a_function_under_no_grad(x):
    @paddle.no_grad()
    def double(value):
        return value * 2.0

    assert static.gradients([double(x) + 1.0], [x]) == [None]
    with paddle.set_grad_enabled(True), paddle.enable_grad():
        assert static.gradients([x * 2.0], [x])[0] is not None


def test_gradients_of_values_are_refused():
    with pytest.raises(OptionError, match=r"static\.gradients"):
        paddle.grad([], [])


@pytest.fixture
def dynamic():
    """As in a script that has left static mode, outside of all program guards."""
    paddle.disable_static()
    yield
    paddle.enable_static()


BUILDING = {
    "data": lambda: static.data("x", [2]),
    "a constant": lambda: paddle.ones([2]),
    "a layer": lambda: paddle.nn.Linear(2, 3),
}


@pytest.mark.parametrize("build", BUILDING)
def test_building_after_static_mode_was_left_is_refused(build, dynamic):
    assert paddle.in_dynamic_mode()
    assert paddle.framework.in_dynamic_or_pir_mode()
    assert not paddle.framework.in_pir_mode()
    with pytest.raises(OptionError, match=r"there is no dynamic mode here: call paddle\.enable_static\(\)"):
        BUILDING[build]()
    paddle.enable_static()
    assert not paddle.in_dynamic_mode()
    assert static.default_main_program() is static.default_main_program()


def test_a_program_is_built_and_run_though_static_mode_was_left(dynamic):
    with static.program_guard(static.Program(), static.Program()):
        doubled = static.data("x", [2]) * 2.0
    [value] = static.Executor(paddle.CPUPlace()).run(doubled.program, {"x": np.ones(2, np.float32)}, [doubled])
    np.testing.assert_array_equal(value, 2.0)


def test_types_modes_and_numbers(x):
    assert (paddle.in_dynamic_mode(), paddle.is_grad_enabled()) == (False, True)
    assert (paddle.pi, paddle.e, paddle.inf, paddle.newaxis) == (math.pi, math.e, math.inf, None)
    assert x.dtype == paddle.float32
    assert x.astype(paddle.bfloat16).dtype == paddle.bfloat16
    assert paddle.finfo(paddle.bfloat16).max > 3e38
    assert paddle.iinfo("int8").min == -128
    assert paddle.is_tensor(x)
    assert paddle.is_floating_point(x)
    assert not paddle.is_integer(x)
    assert not paddle.is_complex(x)


def test_the_default_type_of_floats(x):
    try:
        paddle.set_default_dtype("float16")
        assert paddle.get_default_dtype() == "float16"
        assert paddle.zeros([2]).dtype == "float16"
        assert paddle.to_tensor([1.5]).dtype == "float16"
    finally:
        paddle.set_default_dtype("float32")
    assert paddle.ones([2]).dtype == "float32"
    with pytest.raises(OptionError, match="expected float16"):
        paddle.set_default_dtype("int32")


def test_bfloat16_where_onnx_has_none():
    """Sines, sorting and einsum compute in float32 for it, and give bfloat16 back."""
    values = np.array([[0.5, -1.5, 2.0]], np.float32)
    with static.program_guard(static.Program(), static.Program()):
        low = static.data("x", [1, 3]).astype("bfloat16")
        results = [low.sin(), low.round(), low.sort(), paddle.einsum("ij,ij->i", low, low)]
        assert [variable.dtype for variable in results] == ["bfloat16"] * 4
        values_of = static.Executor(paddle.CPUPlace()).run(low.program, {"x": values}, results)
    wanted = [np.sin(values), np.round(values), np.sort(values), (values**2).sum(1)]
    for got, want in zip(values_of, wanted, strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want, rtol=1e-2)


def test_inputs_of_several_types_that_are_made_low_together():
    """Casts of one shape are joined; those of integers are not joined with those of floats."""
    values = np.arange(3)
    with static.program_guard(static.Program(), static.Program()):
        floats = [static.data(f"x{i}", [3]) for i in range(5)]
        whole = [static.data(f"i{i}", [3], "int64") for i in range(5)]
        total = paddle.add_n([x.astype("float16") for x in (*floats, *whole)])
        for x in floats:
            x.stop_gradient = False
        [gradient] = static.gradients([total], [floats[0]])
        feeds = {x.name: values.astype(x.dtype) for x in (*floats, *whole)}
        slopes = static.Executor(paddle.CPUPlace()).run(total.program, feeds, [total, gradient])
    np.testing.assert_array_equal(slopes[0], values * 10)
    np.testing.assert_array_equal(slopes[1], 1.0)
