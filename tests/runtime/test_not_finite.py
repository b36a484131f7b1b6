"""Runs that stop, or skip their updates, where something is not finite; and the node that is named."""

import logging

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import CPUPlace, decorate, optimizer, paddle, static, tensor
from amp_transpiler.errors import NotFiniteError, OptionError
from amp_transpiler.graph.origins import BUILT_BY_KEY
from amp_transpiler.graph.roles import role_of
from amp_transpiler.paddle.nn import functional

X = np.linspace(0.5, 2.0, 12, dtype=np.float32).reshape(4, 3)
ZERO = X * (X > 0.6)
NAN = np.where(ZERO == 0, np.float32("nan"), X)
DECORATED = {
    "fp32": None,
    "bf16 O1": {"level": "O1", "dtype": "bfloat16"},
    "bf16 O2": {"level": "O2", "dtype": "bfloat16"},
}


class Net:
    """A step of Adam on `mean(fc(fc(log(x))))`, started."""

    def __init__(self, change=tensor.log, amp_options=None, dropout=False):
        self.main, startup, self.scope = static.Program(), static.Program(), static.Scope()
        with amp.utils.unique_name.guard(), static.program_guard(self.main, startup):
            x = static.data("x", [None, 3])
            hidden = static.nn.fc(change(x), 4)
            if dropout:
                hidden = functional.dropout(hidden, 0.5)
            self.loss = tensor.mean(static.nn.fc(hidden, 1))
            adam = optimizer.Adam(0.01)
            if amp_options:
                adam = decorate(adam, **amp_options)
            adam.minimize(self.loss, startup)
        self.executor = static.Executor(CPUPlace())
        self.executor.run(startup, scope=self.scope)
        if amp_options:
            adam.amp_init(CPUPlace(), self.scope)

    def run(self, x, fetch=(), **options):
        return self.executor.run(self.main, {"x": x}, list(fetch), scope=self.scope, **options)

    def values(self):
        return {name: self.scope[name] for name in self.scope}


def same(before, after):
    return before.keys() == after.keys() and all(np.array_equal(before[n], after[n], equal_nan=True) for n in before)


@pytest.fixture
def flag():
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    yield
    paddle.set_flags({"FLAGS_check_nan_inf": False})


@pytest.mark.parametrize("how", DECORATED.values(), ids=DECORATED)
def test_a_run_stops_at_the_first_node_that_is_not_finite_and_changes_nothing(flag, how):
    net = Net(amp_options=how)
    net.run(X)
    before = net.values()
    with pytest.raises(NotFiniteError) as raised:
        net.run(ZERO)
    text = str(raised.value)
    assert "Log 'Log'" in text
    assert "forward pass" in text
    assert "1 of 12 numbers, the first -inf at [0, 0]" in text
    assert "it reads 'x' from 0 to 2" in text
    assert same(before, net.values())
    net.run(X)
    assert not same(before, net.values())


def test_without_the_flag_a_run_goes_on_as_before():
    net = Net()
    net.run(ZERO)
    assert any(np.isnan(value).any() for value in net.values().values())


def test_the_function_that_built_the_node_is_named(flag):
    net = Net(lambda x: functional.cross_entropy(x, x, soft_label=True, use_softmax=False, reduction="none"))
    with pytest.raises(
        NotFiniteError, match=r"Log 'Log\w*' \(built by nn\.functional\.cross_entropy at \S+:\d+, forward pass\)"
    ):
        net.run(ZERO)


def test_a_gradient_that_is_not_finite_is_found_in_the_backward_pass(flag):
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        weight = static.nn.create_parameter([3], "float32", name="w")
        # The slope of the root is infinite at 0, and the root is not.
        loss = tensor.mean(tensor.sqrt(static.data("x", [None, 3]) * weight * weight))
        optimizer.SGD(0.1).minimize(loss, startup)
    executor = static.Executor(CPUPlace())
    executor.run(startup, scope=scope)
    before = scope["w"]
    with pytest.raises(NotFiniteError, match=r"backward pass"):
        executor.run(main, {"x": ZERO}, [loss], scope=scope)
    assert (scope["w"] == before).all()


def test_a_gradient_is_marked_as_what_built_its_node():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        scores = static.nn.fc(static.data("x", [None, 3]), 3)
        loss = functional.cross_entropy(scores, static.data("y", [None, 1], "int64"))
        optimizer.SGD(0.1).minimize(loss, startup)
    marks = {(role_of(node), node.metadata_props.get(BUILT_BY_KEY, "")) for node in main.model.graph}
    assert {("forward", "cross_entropy"), ("backward", "cross_entropy"), ("backward", "linear")} <= marks
    assert {function for role, function in marks if role == "optimize"} == {""}


def test_what_was_fed_and_what_is_in_the_scope_are_named(flag):
    net = Net(lambda x: x * 1.0)
    with pytest.raises(
        NotFiniteError, match=r"'x' is not finite before the run: 1 of 12 numbers, the first nan at \[0, 0"
    ):
        net.run(NAN)
    weight = net.scope["fc_0.w_0"]
    weight[1, 2] = np.inf
    net.scope["fc_0.w_0"] = weight
    with pytest.raises(NotFiniteError, match=r"'fc_0.w_0' is not finite before the run: .* the first inf at \[1, 2\]"):
        net.run(X)


def test_large_finite_numbers_are_not_blamed(flag):
    net = Net(lambda x: x)
    net.scope["fc_0.w_0"] = np.full_like(net.scope["fc_0.w_0"], 3e38)  # the sum of these overflows, they do not
    with pytest.raises(
        NotFiniteError, match=r"is MatMul 'MatMul' \(built by nn.functional.linear at \S+:\d+, forward pass\)"
    ):
        net.run(X)


@pytest.mark.parametrize("how", DECORATED.values(), ids=DECORATED)
def test_skipped_steps_change_nothing_and_are_counted(how, caplog):
    net, control = Net(amp_options=how), Net(amp_options=how)
    with caplog.at_level(logging.WARNING, "amp_transpiler.runtime.executor"):
        for x in (X, ZERO, X, ZERO, NAN, X):
            loss = net.run(x, [net.loss], not_finite="skip")[0]
            assert np.isfinite(loss) == (x is X)
    for _ in range(3):
        control.run(X)
    assert same(net.values(), control.values())
    assert [message.split(" the ")[1].split(" so far")[0] for message in caplog.messages] == ["1.", "2.", "3."]
    assert "Log 'Log'" in caplog.messages[0]


def test_a_mask_of_minus_infinity_that_ends_in_finite_numbers_is_no_reason_to_stop(flag):
    Net(lambda x: functional.softmax(tensor.where(x > 1.9, -np.inf, x))).run(X)


def test_a_mask_is_not_blamed_for_what_happens_behind_it(flag):
    net = Net(lambda x: tensor.log(functional.relu(functional.softmax(tensor.where(x > 1.9, -np.inf, x)) - 0.5)))
    with pytest.raises(NotFiniteError, match=r"is Log 'Log'"):
        net.run(X)


def test_a_loss_scale_keeps_its_own_steps_that_overflow(flag):
    net = Net(lambda x: x, {"level": "O1", "dtype": "float16", "init_loss_scaling": 2.0**30})
    before = net.scope["fc_0.w_0"]
    net.run(X)
    assert (net.scope["fc_0.w_0"] == before).all()  # Adam skips, and the scale shrinks
    assert net.scope["loss_scaling_0"] == 2.0**29


def test_dropout_draws_the_same_again_when_it_is_explained(flag):
    net = Net(dropout=True)
    with pytest.raises(NotFiniteError, match="Log 'Log'"):
        net.run(ZERO)


def test_startup_and_evaluation_programs_run_with_the_flag(flag):
    net = Net()
    values = net.executor.run(net.main.clone(for_test=True), {"x": X}, [net.loss.name], scope=net.scope)
    assert np.isfinite(values[0])
    with pytest.raises(NotFiniteError, match="Log 'Log'"):
        net.executor.run(net.main.clone(for_test=True), {"x": ZERO}, [net.loss.name], scope=net.scope)


def test_an_unknown_word_is_refused():
    with pytest.raises(OptionError, match="'allow', 'skip', 'stop', got 'halt'"):
        Net().run(X, not_finite="halt")


def test_a_run_may_allow_what_the_flag_forbids(flag):
    Net().run(ZERO, not_finite="allow")


def test_paddles_tensor_checker_sets_the_flag():
    debugging = amp.debugging
    try:
        debugging.enable_tensor_checker(debugging.TensorCheckerConfig(enable=True))
        with pytest.raises(NotFiniteError):
            Net().run(ZERO)
        debugging.disable_tensor_checker()
        Net().run(ZERO)
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})
