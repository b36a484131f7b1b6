"""Decorated optimizers at their edges: numbers no scale can live by, a scale of nothing, optimizers used twice."""

import logging
import re

import numpy as np
import pytest

from amp_transpiler import optimizer, static
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.training_log import TrainingLog
from tests.paddle import nets

BAD = 60000.0  # times the weights of `one_layer`, it leaves float16
SCALERS = ["paddle", "torch", "mxnet"]


def plain_loss():
    """`mean((x @ w)^2)` in programs of its own."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        y = static.nn.fc(static.data("x", [None, 4]), 3)
        loss = static.Variable(main, main.builder().mean((y * y).value, keepdims=False).name)
    return main, startup, loss


# ---- an optimizer is its own again after `minimize` ----


@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize("made", [lambda: optimizer.SGD(0.1), lambda: optimizer.Adam(0.01)], ids=["SGD", "Adam"])
def test_an_optimizer_can_be_used_plainly_after_it_was_decorated(made, scaler):
    decorated = made()
    nets.one_layer(decorated, scaler=scaler, master_weight=False)
    assert (decorated.found_inf, decorated.always_skips, decorated.inverse_scale) == (None, False, None)
    main, startup, loss = plain_loss()
    with static.program_guard(main, startup):
        decorated.minimize(loss, startup)
    scope, executor = static.Scope(), static.Executor(nets.CPU)
    executor.run(startup, scope=scope)
    feed = {"x": np.ones((2, 4), np.float32)}
    first, second = (executor.run(main, feed=feed, fetch_list=[loss], scope=scope)[0] for _ in range(2))
    assert second < first


def test_an_optimizer_is_its_own_again_after_an_error():
    sgd = optimizer.SGD(0.1)
    wrapped = static.amp.decorate(sgd, scaler="torch")
    main, startup, loss = plain_loss()
    with static.program_guard(main, startup):
        pairs = wrapped.backward(loss, startup)
        wrapped.apply_gradients(pairs)
        with pytest.raises(InputError, match="updated by this program already"):
            wrapped.apply_gradients(pairs)
    assert (sgd.found_inf, sgd.always_skips, sgd.inverse_scale) == (None, False, None)


@pytest.mark.parametrize("scaler", SCALERS)
def test_the_log_still_finds_the_flag_of_the_decorated_one(scaler):
    net = nets.one_layer(optimizer.SGD(0.1), scaler=scaler, init_loss_scaling=64.0, level="O2")
    log = TrainingLog(net.optimizer)
    for x in (1.0, BAD):
        loss, *fetched = net.run(x, fetch=[net.loss, *log.fetch_list])
        log.record(loss, fetched)
    assert (log.skipped, len(log)) == (1, 2)


# ---- numbers ----

WRONG = {
    "init_loss_scaling": [0, -1, float("nan"), float("inf"), 1e39, 1e-60, "x", True],
    "incr_every_n_steps": [0, -3, 2.5, 2.0, 2**31, "x", True],
    "decr_every_n_nan_or_inf": [0, 1.5, 2**31],
    "decr_ratio": [0, -1, float("nan"), float("inf"), 1e-60, "x"],
    "incr_ratio": [0, -1, float("nan"), float("inf"), 1e39, "x"],
}


@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
@pytest.mark.parametrize("overload", [{}, {"use_pure_fp16": True}], ids=["common", "fp16 only"])
def test_a_number_that_no_scale_can_live_by_is_refused(overload, key, value, scaler):
    with pytest.raises(OptionError, match=f"{key} must be .*got {re.escape(repr(value))}\n"):
        static.amp.decorate(optimizer.SGD(0.1), scaler=scaler, **{key: value}, **overload)


TAKEN = {
    "the least": {"incr_every_n_steps": 1, "decr_every_n_nan_or_inf": 1, "init_loss_scaling": 2.0**-20},
    "the most": {"incr_every_n_steps": 2**31 - 1, "init_loss_scaling": 2.0**127},
    "numpy's": {"incr_every_n_steps": np.int64(5), "incr_ratio": np.float32(2), "init_loss_scaling": np.float64(8)},
    "whole ratios and scales": {"incr_ratio": 2, "init_loss_scaling": 1024},
}


@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize("name", TAKEN)
def test_numbers_at_the_edge_are_taken(name, scaler):
    settings = TAKEN[name]
    options = static.amp.decorate(optimizer.SGD(0.1), scaler=scaler, **settings).options
    assert options.init_loss_scaling == settings["init_loss_scaling"]
    assert options.rule.incr_every_n_steps == settings.get("incr_every_n_steps", 2000)
    assert (type(options.rule.incr_every_n_steps), type(options.rule.incr_ratio)) == (int, float)


def test_paddle_takes_ratios_that_do_not_move_the_scale():
    rule = static.amp.decorate(optimizer.SGD(0.1), incr_ratio=1.0, decr_ratio=1.0, decr_every_n_nan_or_inf=7)
    assert (rule.options.rule.incr_ratio, rule.options.rule.decr_ratio) == (1.0, 1.0)


# ---- a scale of nothing ----


@pytest.mark.parametrize("scaler", ["torch", "mxnet"])
def test_a_scale_that_went_to_nothing_is_a_state_like_any_other(scaler, caplog):
    options = {"level": "O2", "scaler": scaler, "init_loss_scaling": 1e-30, "decr_ratio": 1e-20}
    net = nets.one_layer(optimizer.SGD(0.1), **options)
    for _ in range(4):
        net.run(BAD)
    state = net.optimizer.state_dict(net.scope)
    assert state["scale"] == 0.0
    other = nets.one_layer(optimizer.SGD(0.1), **options)
    with caplog.at_level(logging.WARNING):
        other.optimizer.load_state_dict(state, other.scope)
    assert "scale is 0" in caplog.text
    assert other.optimizer.state_dict(other.scope) == state
    other.optimizer.update_scale(16.0, other.scope)
    assert other.optimizer.state_dict(other.scope)["scale"] == 16.0


@pytest.mark.parametrize(
    "options",
    [{"scaler": "paddle"}, {"scaler": "torch", "use_dynamic_loss_scaling": False}],
    ids=["a floor", "a scale that stays"],
)
def test_a_scale_that_cannot_go_to_nothing_is_not_loaded_as_nothing(options):
    net = nets.one_layer(optimizer.SGD(0.1), init_loss_scaling=64.0, **options)
    state = net.optimizer.state_dict(net.scope)
    with pytest.raises(InputError, match="positive number"):
        net.optimizer.load_state_dict({**state, "scale": 0.0}, net.scope)
    assert net.optimizer.state_dict(net.scope) == state


# ---- before the startup program ----


@pytest.mark.parametrize("scaler", SCALERS)
def test_a_scale_set_before_the_startup_program_is_refused(scaler):
    started = nets.one_layer(optimizer.SGD(0.1), scaler=scaler)
    state = started.optimizer.state_dict(started.scope)
    net = nets.one_layer(optimizer.SGD(0.1), scaler=scaler, start=False)
    with pytest.raises(InputError, match=r"load_state_dict: .*run the startup program first"):
        net.optimizer.load_state_dict(state, net.scope)
    with pytest.raises(InputError, match=r"update_scale: .*run the startup program first"):
        net.optimizer.update_scale(8.0, net.scope)
    assert len(net.scope) == 0
    net.start()
    net.optimizer.load_state_dict({**state, "scale": 32.0}, net.scope)
    assert net.optimizer.state_dict(net.scope)["scale"] == 32.0
