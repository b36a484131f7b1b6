"""Weights that were trained elsewhere reach the parameters and their masters, whenever they are set."""

import logging

import numpy as np
import pytest

from amp_transpiler import optimizer, static
from amp_transpiler.errors import InputError
from tests.paddle import nets

LEVELS = [{"use_pure_fp16": True}, {"level": "O2", "dtype": "bfloat16"}]
PRETRAINED = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4) + np.float32(1e-5)


def net_of(decorated, started=False):
    net = nets.one_layer(optimizer.SGD(0.25, multi_precision=True), start=False, **decorated)
    net.executor.run(net.startup, scope=net.scope)
    if started:
        net.optimizer.amp_init(nets.CPU, net.scope)
    return net


def stays(net, low_then=None):
    """One step at a rate of 0 leaves what was set."""
    net.optimizer.set_lr(0.0, net.scope)
    net.run(1.0)
    np.testing.assert_array_equal(net.scope[net.master], PRETRAINED if low_then is None else low_then)
    low = net.scope["w"].dtype
    np.testing.assert_array_equal(net.scope["w"], net.scope[net.master].astype(low))


def set_in_scope(net, tmp_path):
    net.scope["w"] = PRETRAINED


def set_by_state(net, tmp_path):
    static.set_program_state(net.main, {"w": PRETRAINED}, net.scope)


def set_from_file(net, tmp_path):
    net.scope["w"] = PRETRAINED
    static.save(net.main, tmp_path / "pretrained", net.scope)
    net.scope["w"] = np.zeros((4, 4), np.float32)
    static.load(net.main, tmp_path / "pretrained", net.scope)


@pytest.mark.parametrize("decorated", LEVELS, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("given", [set_in_scope, set_by_state, set_from_file])
def test_weights_set_before_amp_init_are_the_masters(given, decorated, tmp_path):
    net = net_of(decorated)
    given(net, tmp_path)
    net.optimizer.amp_init(nets.CPU, net.scope)
    stays(net)


@pytest.mark.parametrize("decorated", LEVELS, ids=["float16", "bfloat16"])
def test_a_state_set_after_amp_init_counts_at_once(decorated):
    net = net_of(decorated, started=True)
    static.set_program_state(net.main, {"w": PRETRAINED}, net.scope)
    stays(net)


def test_low_weights_become_masters_as_they_are():
    net = net_of(LEVELS[0])
    net.scope["w"] = PRETRAINED.astype(np.float16)
    net.optimizer.amp_init(nets.CPU, net.scope)
    stays(net, PRETRAINED.astype(np.float16).astype(np.float32))


def test_masters_stay_where_parameters_come_from_them(caplog):
    """amp_init again after training, and rounded parameters of a checkpoint in float32, change no master."""
    net = net_of(LEVELS[0])
    net.scope["w"] = PRETRAINED
    net.optimizer.amp_init(nets.CPU, net.scope)
    caplog.clear()
    for _ in range(3):
        net.run(1.0)
    before = net.scope[net.master]
    assert (before != before.astype(np.float16)).any()
    with caplog.at_level(logging.INFO):
        net.optimizer.amp_init(nets.CPU, net.scope)
        net.scope["w"] = net.scope["w"].astype(np.float32)
        net.optimizer.amp_init(nets.CPU, net.scope)
    np.testing.assert_array_equal(net.scope[net.master], before)
    assert "takes over" not in caplog.text


def test_the_log_says_which_master_took_over(caplog):
    net = net_of(LEVELS[0])
    net.scope["w"] = PRETRAINED
    with caplog.at_level(logging.INFO):
        net.optimizer.amp_init(nets.CPU, net.scope)
    assert f"'w' was set since its master weight '{net.master}' was made" in caplog.text


def test_rewritten_masters_are_the_rounded_weights():
    net = net_of(LEVELS[0])
    net.scope["w"] = PRETRAINED
    net.optimizer.amp_init(nets.CPU, net.scope, rewrite_master_weight=True)
    stays(net, PRETRAINED.astype(np.float16).astype(np.float32))


def test_a_checkpoint_with_masters_keeps_its_own(tmp_path):
    net = net_of(LEVELS[0], started=True)
    net.run(1.0)
    static.save(net.main, tmp_path / "m", net.scope)
    state = static.load_program_state(tmp_path / "m")
    other = net_of(LEVELS[0])
    static.set_program_state(other.main, state, other.scope)
    other.optimizer.amp_init(nets.CPU, other.scope)
    np.testing.assert_array_equal(other.scope[other.master], net.scope[net.master])


def test_what_a_state_lacks_stays_and_what_it_has_beyond_is_named(caplog):
    net = net_of({"level": "O1"})
    before = {name: value for name, value in net.state().items() if name != "w"}
    static.set_program_state(net.main, {"w": PRETRAINED, "head": PRETRAINED}, net.scope)
    assert "the program has no head" in caplog.text
    for name, value in before.items():
        np.testing.assert_array_equal(net.scope[name], value)
    np.testing.assert_array_equal(net.scope["w"], PRETRAINED)


@pytest.mark.parametrize(
    ("state", "scope", "message"),
    [
        ({"w": np.zeros((4, 5), np.float32)}, None, r"'w' has shape \[4, 5\], the program wants \[4, 4\]"),
        ({"w": np.zeros((4, 4), np.int64)}, None, "'w' is INT64"),
        ({"w": PRETRAINED}, static.Scope(), "run the startup program first"),
    ],
    ids=["shape", "kind", "no startup"],
)
def test_a_state_that_does_not_fit_changes_nothing(state, scope, message):
    net = net_of(LEVELS[0])
    before = net.state()
    with pytest.raises(InputError, match=message):
        static.set_program_state(net.main, state, net.scope if scope is None else scope)
    for name, value in before.items():
        np.testing.assert_array_equal(net.scope[name], value)


def test_some_values_of_a_file_are_read_by_variable_or_name(tmp_path):
    net = net_of(LEVELS[0])
    static.save(net.main, tmp_path / "m", net.scope)
    state = static.load_program_state(tmp_path / "m", [net.main.var("w"), net.master])
    assert list(state) == ["w", net.master]
    with pytest.raises(InputError, match="has no value for head"):
        static.load_program_state(tmp_path / "m", ["head"])
    other = nets.one_layer(optimizer.Momentum(0.1, multi_precision=True), start=False, use_pure_fp16=True)
    with pytest.raises(InputError, match="set_program_state"):
        static.load(other.main, tmp_path / "m", other.scope)
