"""The executor: what it says of bad feeds, what it keeps, and what an error leaves behind."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.errors import EnvironmentProblem, InputError
from amp_transpiler.paddle.nn import functional
from amp_transpiler.runtime.cuda import driver_device_count

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
    (feed(z=X), "has no input 'z'"),
    (feed(x=X[0]), r"got shape \[3\]"),
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


@pytest.mark.skipif(driver_device_count() > 0, reason="this machine has a CUDA device, so asking for one is no error")
def test_cuda_without_a_device_is_one_clear_error(net):
    main, _, loss, scope, _ = started(net)
    with pytest.raises(EnvironmentProblem, match="no NVIDIA device"):
        static.Executor(amp.CUDAPlace(0)).run(main, feed(), [loss], scope=scope)
