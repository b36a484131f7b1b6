"""The executor: what it says of bad feeds, what it keeps, and what an error leaves behind."""

from __future__ import annotations

import gc
import logging
import weakref

import numpy as np
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static, tensor
from amp_transpiler.errors import EnvironmentProblem, InputError, OptionError
from amp_transpiler.paddle.nn import functional
from amp_transpiler.runtime import cuda

X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def net():
    """(main, startup, loss, scope, executor) of one linear layer, not yet started."""
    main, startup = static.Program(), static.Program()
    with amp.utils.unique_name.guard(), static.program_guard(main, startup):
        x, y = static.data("x", [None, 3]), static.data("y", [None, 1])
        loss = functional.mse_loss(static.nn.fc(x, size=1), y)
        optimizer.SGD(0.001).minimize(loss, startup)
    return main, startup, loss, static.Scope(), static.Executor(amp.CPUPlace())


def feed(rows=4, **changed):
    return {"x": X[:rows], "y": np.ones((rows, 1), np.float32), **changed}


def started(net):
    net[4].run(net[1], scope=net[3])
    return net


BAD_FEEDS = [
    ({"x": X}, "y"),
    ({"xs": X, "y": np.ones((4, 1), np.float32)}, "has no input 'xs'.*did you mean 'x'"),
    (feed(x=X[None]), r"got shape \[1, 4, 3\]"),
    (feed(x=X[0]), "'y' is fed with batch = 4, but 'x' with 1"),  # one row is a batch of one
    (feed(x=np.ones((4, 5), np.float32)), "x"),
    (feed(x=np.ones((4, 3), np.int64)), "int64"),
    (feed(y=np.ones((3, 1), np.float32)), "'y' is fed with batch = 3, but 'x' with 4"),
]


@pytest.mark.parametrize(("feeds", "message"), BAD_FEEDS)
def test_a_bad_feed_is_one_clear_error_and_changes_nothing(net, feeds, message):
    main, _, loss, scope, executor = started(net)
    before = {name: scope[name] for name in scope}
    with pytest.raises(InputError, match=message):
        executor.run(main, feeds, [loss], scope=scope)
    assert all((scope[name] == before[name]).all() for name in before)


def test_a_program_run_before_its_startup_program_says_so(net):
    main, _, loss, scope, executor = net
    with pytest.raises(InputError, match="run the startup program first"):
        executor.run(main, feed(), [loss], scope=scope)


def test_a_fetch_that_does_not_exist_is_named(net):
    main, _, _, scope, executor = started(net)
    with pytest.raises(InputError, match="'nonsense'"):
        executor.run(main, feed(), ["nonsense"], scope=scope)


def test_another_batch_size_is_another_session_and_the_same_state(net):
    main, _, loss, scope, executor = started(net)
    first = executor.run(main, feed(4), [loss], scope=scope)[0]
    executor.run(main, feed(2), [loss], scope=scope)
    assert executor.run(main, feed(4), [loss], scope=scope)[0] < first


def test_a_parameter_is_fetched_as_it_is_after_the_run(net):
    main, _, loss, scope, executor = started(net)
    before = scope["fc_0.w_0"]
    (value,) = executor.run(main, feed(), ["fc_0.w_0"], scope=scope)
    assert (value == scope["fc_0.w_0"]).all()
    assert not (value == before).all()
    executor.run(main, feed(), [loss.name], scope=scope)
    assert not (value == scope["fc_0.w_0"]).all()  # what was handed out is not what later runs write to


def test_running_the_startup_program_again_resets(net):
    main, startup, loss, scope, executor = started(net)
    first = executor.run(main, feed(), [loss], scope=scope)[0]
    executor.run(startup, scope=scope)
    assert executor.run(main, feed(), [loss], scope=scope)[0] == first


def test_nothing_asked_for_is_nothing_run():
    assert static.Executor(amp.CPUPlace()).run(static.Program()) == []


def test_a_value_of_another_precision_is_converted_and_said(net, caplog):
    main, _, loss, scope, executor = started(net)
    scope["fc_0.w_0"] = scope["fc_0.w_0"].astype(np.float16)
    with caplog.at_level(logging.INFO):
        executor.run(main, feed(), [loss], scope=scope)
    assert scope["fc_0.w_0"].dtype == np.float32
    assert "'fc_0.w_0' is FLOAT16 in the scope" in caplog.text


def test_cuda_without_a_device_is_one_clear_error(net, monkeypatch):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: 0)
    monkeypatch.setattr(cuda, "cuda_problem", cuda.cuda_problem.__wrapped__)  # without what it remembers
    main, _, loss, scope, _ = started(net)
    with pytest.raises(EnvironmentProblem, match="no NVIDIA device"):
        static.Executor(amp.CUDAPlace(0)).run(main, feed(), [loss], scope=scope)


# ---- sessions that are kept ----


@pytest.fixture
def sessions(monkeypatch):
    """Lists the outputs of every session that ONNX Runtime opens."""
    opened, plain = [], onnxruntime.InferenceSession

    class Counted(plain):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            opened.append({output.name for output in self.get_outputs()})

    monkeypatch.setattr(onnxruntime, "InferenceSession", Counted)
    return opened


def test_alternating_fetches_and_shapes_open_a_session_each_and_no_more(net, sessions):
    main, _, loss, scope, executor = started(net)
    del sessions[:]
    runs = [(feed(4), [loss]), (feed(4), []), (feed(2), [loss]), (feed(4), [loss, "fc_0.w_0"])]
    for _ in range(3):
        for feeds, fetch in runs:
            executor.run(main, feeds, fetch, scope=scope)
    assert len(sessions) == len(runs)
    executor.close()
    executor.run(main, feed(4), [loss], scope=scope)
    assert len(sessions) == len(runs) + 1, "closing closes them all"


@pytest.mark.slow
def test_a_closed_executor_lets_its_programs_go(net):
    main, _, loss, scope, executor = started(net)
    program = main.clone()
    held = weakref.ref(program)
    executor.run(program, feed(), [loss.name], scope=scope)
    del program
    gc.collect()
    assert held() is not None, "its id stands for it"
    executor.close()
    gc.collect()
    assert held() is None


def test_programs_alternate_too(net, sessions):
    main, startup, loss, scope, executor = started(net)
    del sessions[:]
    for _ in range(3):
        executor.run(startup, scope=scope)
        executor.run(main, feed(), [loss], scope=scope)
    assert len(sessions) == 1, "the startup program's session is still there"


def test_a_changed_program_opens_a_new_session_and_the_old_ones_go(net, sessions):
    main, _, loss, scope, executor = started(net)
    executor.run(main, feed(), [loss], scope=scope)
    with static.program_guard(main, net[1]):
        twice = tensor.add(loss, loss)
    del sessions[:]
    before = executor.run(main, feed(), [loss, twice], scope=scope)
    assert before[1] == 2 * before[0]
    executor.run(main, feed(), [loss, twice], scope=scope)
    assert len(sessions) == 1
    keys = [key for key in executor._steps._steps if key[0] == id(main)]
    assert len(keys) == 1, "a session of the program as it was would hold its memory for nothing"


# ---- what is fed and what is held ----


@pytest.mark.parametrize("name", ["fc_0.w_0", "fc_0.b_0"])
def test_a_persistable_value_cannot_be_fed(net, name):
    main, _, loss, scope, executor = started(net)
    before = {held: scope[held] for held in scope}
    with pytest.raises(InputError, match=f"the program has no input '{name}'"):
        executor.run(main, feed(**{name: np.zeros_like(scope[name])}), [loss], scope=scope)
    assert all((scope[held] == before[held]).all() for held in before)


def test_a_feed_that_the_fetched_values_do_not_need_may_be_left_out(net):
    main, scope, executor = static.Program(), net[3], net[4]
    with static.program_guard(main, static.Program()):
        x, z = static.data("x", [None, 3]), static.data("z", [None, 3])
        y, unused = tensor.add(x, x), tensor.add(z, z)
    (value,) = executor.run(main, {"x": X}, [y], scope=scope)
    np.testing.assert_array_equal(value, 2 * X)
    (value,) = executor.run(main, {"x": X, "z": X}, [y], scope=scope)
    np.testing.assert_array_equal(value, 2 * X)
    with pytest.raises(InputError, match="'z'"):
        executor.run(main, {"x": X}, [unused], scope=scope)


def test_a_value_of_another_kind_is_refused(net):
    main, _, loss, scope, executor = started(net)
    scope["fc_0.w_0"] = scope["fc_0.w_0"].astype(np.int64)
    with pytest.raises(InputError, match=r"'fc_0.w_0' is INT64 in the scope, but the program wants FLOAT"):
        executor.run(main, feed(), [loss], scope=scope)
    assert scope["fc_0.w_0"].dtype == np.int64


def test_fetches_come_in_the_order_in_which_they_are_named_even_twice(net):
    main, _, loss, scope, executor = started(net)
    weight, first, bias, again = executor.run(main, feed(), ["fc_0.w_0", loss, "fc_0.b_0", "fc_0.w_0"], scope=scope)
    np.testing.assert_array_equal(weight, scope["fc_0.w_0"])
    np.testing.assert_array_equal(bias, scope["fc_0.b_0"])
    np.testing.assert_array_equal(again, weight)
    assert first.shape == ()


def test_a_run_that_fails_leaves_the_scope_as_it_was(net, monkeypatch):
    main, _, loss, scope, executor = started(net)
    executor.run(main, feed(), [loss], scope=scope)
    before = {name: scope[name] for name in scope}

    def fail(*_):
        raise onnxruntime.capi.onnxruntime_pybind11_state.Fail("planted")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", fail)
    with pytest.raises(Exception, match="planted"):
        executor.run(main, feed(), [loss], scope=scope)
    assert all((scope[name] == before[name]).all() for name in before)


def test_the_session_that_was_unused_for_longest_is_closed(net):
    main, startup, loss, scope, _ = net
    with static.Executor(amp.CPUPlace(), max_sessions=2) as executor:
        executor.run(startup, scope=scope)
        for rows in (1, 2, 1, 3):
            executor.run(main, feed(rows), [loss], scope=scope)
        sizes = [dict(key[3])["x"][0] for key in executor._steps._steps]
        assert sizes == [1, 3]
    assert not executor._steps._steps


def test_a_program_without_a_session_is_let_go(net):
    main, startup, loss, scope, _ = started(net)
    executor = static.Executor(amp.CPUPlace(), max_sessions=1)
    executor.run(main, feed(), [loss], scope=scope)
    assert list(executor._steps._programs.values()) == [main]
    executor.run(startup, scope=scope)
    assert list(executor._steps._programs.values()) == [startup]


def test_an_executor_keeps_at_least_one_session():
    with pytest.raises(OptionError, match="max_sessions must be 1 or more, got 0"):
        static.Executor(amp.CPUPlace(), max_sessions=0)
