"""Dropout and random numbers in bodies of control flow.

The gradient of a sum of values that are dropped tells which ones were kept: it must be those of the forward pass.
"""

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import ModelError
from amp_transpiler.paddle import static

LEVELS = [("O0", "float32"), ("O1", "float16"), ("O2", "bfloat16")]
SHAPE = (4, 8)
P = 0.25


def drop(x):
    return F.dropout(x, P)


def counted(count, body, *states):
    return static.nn.while_loop(
        lambda i, *_: i < count, lambda i, *values: [i + 1, *body(*values)], [paddle.zeros([1], "int64"), *states]
    )[1:]


def in_cond(x, on):
    return static.nn.cond(on, lambda: drop(x), lambda: x * 3.0)


def in_both_branches(x, on):
    return static.nn.cond(on, lambda: drop(x) * 2.0, lambda: drop(x))


def in_case(x, on):
    return static.nn.case([(on, lambda: drop(x)), (paddle.logical_not(on), lambda: x)])


def in_while(x, on):
    return counted(3, lambda h: [drop(h)], x)[0]


def beside_a_state(x, on):
    return counted(2, lambda h, s: [h * 1.0, s + drop(h)], x, paddle.zeros_like(x))[1]


def while_in_while(x, on):
    return counted(2, lambda h: [counted(2, lambda g: [drop(g)], h)[0]], x)[0]


def while_in_cond(x, on):
    return static.nn.cond(on, lambda: counted(2, lambda h: [drop(h)], x)[0], lambda: x)


def cond_in_while(x, on):
    return counted(2, lambda h: [static.nn.cond(on, lambda: drop(h), lambda: h)], x)[0]


def by_channels(x, on):
    return static.nn.cond(on, lambda: F.dropout(x, P, axis=1), lambda: x)


def by_a_random_mask(x, on):
    return counted(2, lambda h: [h * paddle.cast(paddle.rand(SHAPE) > P, h.dtype)], x)[0]


FORMS = {
    form.__name__: form
    for form in (
        in_cond,
        in_both_branches,
        in_case,
        in_while,
        beside_a_state,
        while_in_while,
        while_in_cond,
        cond_in_while,
        by_channels,
        by_a_random_mask,
    )
}


def build(form, level="O0", dtype="float32"):
    """A program whose gradient by `b`, for an `x` of zeros and `b` of ones, is what the body lets pass."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x, on = static.data("x", SHAPE), static.data("on", [1], "bool")
        ones = paddle.nn.initializer.Constant(1.0)
        b = paddle.create_parameter(SHAPE, "float32", name="b", default_initializer=ones)
        y = FORMS[form](x + b, on)
        loss = paddle.sum(y)
        optimizer = paddle.optimizer.SGD(1.0, multi_precision=True)
        if level != "O0":
            optimizer = static.amp.decorate(optimizer, level=level, dtype=dtype, init_loss_scaling=4.0)
        optimizer.minimize(loss)
    scope, executor = static.Scope(), static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    if level != "O0":
        optimizer.amp_init(paddle.CPUPlace(), scope)
    return main, y, scope, executor


def feed(on=True):
    return {"x": np.zeros(SHAPE, np.float32), "on": np.array([on])}


def reset(scope):
    for name in scope:
        if scope[name].shape == SHAPE:
            scope[name] = np.ones(SHAPE, scope[name].dtype)


@pytest.mark.parametrize("level", LEVELS, ids="-".join)
@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_drops_what_the_forward_pass_drops(form, level):
    main, y, scope, executor = build(form, *level)
    dropped = []
    for on in (True, False, True):
        reset(scope)
        (passed,) = executor.run(main, feed(on), [y], scope=scope)
        np.testing.assert_allclose(1 - np.array(scope["b"], np.float32), np.array(passed, np.float32), rtol=2e-2)
        dropped.append(np.array(passed, np.float32) != 0)
    assert not dropped[0].all()
    assert not np.array_equal(dropped[0], dropped[2]), "each step draws anew"


def test_each_turn_draws_anew():
    with static.program_guard(static.Program(), static.Program()), static.scope_guard(static.Scope()):
        x = paddle.ones(SHAPE)

        def rows(s, new):
            return [paddle.concat([s[1:], paddle.unsqueeze(new, 0)], 0)]

        first = paddle.zeros([4, *SHAPE])
        dropped = counted(4, lambda s: rows(s, drop(x)), first)[0]
        drawn = counted(2, lambda s: counted(2, lambda t: rows(t, paddle.rand(SHAPE)), s), first)[0]
        executor = static.Executor(paddle.CPUPlace())
        executor.run(static.default_startup_program())
        for numbers in executor.run(fetch_list=[dropped, drawn]):
            flat = numbers.reshape(4, -1)
            assert len({row.tobytes() for row in flat}) == 4
            assert np.abs(np.corrcoef(flat) - np.eye(4)).max() < 0.6


@pytest.mark.parametrize("form", FORMS)
def test_the_test_program_drops_nothing(form):
    main, y, scope, executor = build(form)
    test = main.clone(for_test=True)
    assert not test.updates
    (passed,) = executor.run(test, feed(), [y.name], scope=scope)
    expected = {"in_both_branches": 2.0, "beside_a_state": 2.0}.get(form, 1.0)
    if form != "by_a_random_mask":
        np.testing.assert_array_equal(passed, np.full(SHAPE, expected, np.float32))


@pytest.mark.parametrize("form", ["in_cond", "in_while", "while_in_while"])
def test_a_saved_step_drops_the_same(form, tmp_path):
    main, y, scope, executor = build(form)
    static.save_training_program(main, tmp_path / "step", fetch_list=[y], scope=scope)
    session = onnxruntime.InferenceSession(str(tmp_path / "step.onnx"), providers=["CPUExecutionProvider"])
    feeds = {**load_file(tmp_path / "step.state.safetensors"), **feed()}
    names = {value.name for value in session.get_inputs()}
    results = session.run(None, {name: value for name, value in feeds.items() if name in names})
    (passed,) = executor.run(main, feed(), [y], scope=scope)
    assert any(np.array_equal(each, passed) for each in results)
    assert any(np.array_equal(each, np.array(scope["b"])) for each in results)
    with pytest.raises(ModelError, match="save_training_program"):
        main.to_onnx()
