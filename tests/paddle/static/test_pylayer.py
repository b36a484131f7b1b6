"""`static.nn.static_pylayer`: layers with a backward function of their own."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError
from amp_transpiler.paddle import optimizer, static

pytestmark = pytest.mark.usefixtures("fresh_programs")
X = np.array([[1.0, -2.0, 0.5]], np.float32)


def run(feed, *fetch):
    """Run the startup program, and the main one once."""
    executor = static.Executor("cpu")
    executor.run(static.default_startup_program())
    return executor.run(feed=feed, fetch_list=list(fetch))


def given(name="x", stop=False):
    inputs = static.data(name, [None, 3])
    inputs.stop_gradient = stop
    return inputs


def test_paddles_example():
    x = given()
    result = static.nn.static_pylayer(paddle.exp, [x], lambda dy: 2 * paddle.exp(dy))
    [slope] = static.gradients([result], x)
    value, slope_values = run({"x": X}, result, slope)
    np.testing.assert_allclose(value, np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(slope_values, np.full_like(X, 2 * np.e), rtol=1e-6)


def test_several_inputs_and_results_between_other_operators():
    x, y = given(), given("y")
    result = static.nn.static_pylayer(lambda a, b: (a * b, a + b), [x * 2, y], lambda da, db: [da * 10 + db, None])
    total = (result[0] * 3 + result[1] * x).sum() + x.sum()
    slopes = static.gradients([total], [x, y])
    assert slopes[1] is None
    value, slope_values = run({"x": X, "y": X + 1}, total, slopes[0])
    a, b = 2 * X, X + 1
    np.testing.assert_allclose(value, (3 * a * b + (a + b) * X).sum() + X.sum(), rtol=1e-6)
    np.testing.assert_allclose(slope_values, 2 * (30 + X) + (a + b) + 1, rtol=1e-6)


def test_one_layer_behind_another():
    x = given()
    inner = static.nn.static_pylayer(lambda a: a * 0 + 1, [x], lambda da: da * 5)
    outer = static.nn.static_pylayer(lambda a, b: a + b, [inner, x], lambda d: (d * 2, d * 7))
    [slope] = static.gradients([(outer * outer).sum()], [x])
    [slope_values] = run({"x": X}, slope)
    np.testing.assert_allclose(slope_values, (2 * 5 + 7) * 2 * (1 + X), rtol=1e-6)


@pytest.mark.parametrize(("level", "dtype"), [(None, None), ("O1", "float16"), ("O2", "float16"), ("O2", "bfloat16")])
def test_training_passes_through_it_at_every_level(level, dtype):
    """A straight-through estimator: signs forward, the gradient as it is backward."""
    x = given(stop=True)
    hidden = static.nn.fc(x, 4, weight_attr=paddle.ParamAttr(name="w"), bias_attr=False)
    signs = static.nn.static_pylayer(paddle.sign, [hidden], lambda dy: dy)
    loss = ((signs - 1.0) * (hidden.detach() * 0 + 2.0)).mean()
    inference = static.default_main_program().clone(for_test=True)
    rule = optimizer.SGD(0.5)
    if level:
        rule = static.amp.decorate(rule, level=level, dtype=dtype, init_loss_scaling=128.0)
    rule.minimize(loss)
    executor = static.Executor("cpu")
    executor.run(static.default_startup_program())
    if level:
        rule.amp_init(paddle.CPUPlace())
    before = np.asarray(static.global_scope()["w"], np.float32)
    executor.run(feed={"x": X}, fetch_list=[loss])
    after = np.asarray(static.global_scope()["w"], np.float32)
    np.testing.assert_allclose(before - after, np.broadcast_to(0.5 * 0.5 * X.T, (3, 4)), rtol=2e-2)
    for program in (inference, static.default_main_program().clone(for_test=True)):
        [again] = executor.run(program, {"x": X}, [signs])
        np.testing.assert_array_equal(np.abs(again.astype(np.float32)), 1.0)


def test_without_a_backward_function():
    result = static.nn.static_pylayer(lambda a: [a + 1], [given(stop=True)])
    np.testing.assert_array_equal(run({"x": X}, result[0])[0], X + 1)
    assert static.nn.static_pylayer(lambda a: None, [given("y", stop=True)]) is None
    with pytest.raises(InputError, match="without backward_fn: set stop_gradient of z to True"):
        static.nn.static_pylayer(paddle.exp, [given("z")])


def test_a_backward_function_returns_a_gradient_for_each_input():
    x = given()
    result = static.nn.static_pylayer(lambda a, b: a + b, [x, x * 2], lambda dy: dy)
    with pytest.raises(InputError, match="returns 1 gradients for 2 inputs"):
        static.gradients([result], [x])
