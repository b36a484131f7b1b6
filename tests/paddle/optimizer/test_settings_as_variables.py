"""Decay rates and epsilon of Adam and AdamW as variables; and how exact a first step is."""

import numpy as np
import pytest

from amp_transpiler import CPUPlace, paddle, static
from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.optimizer import Adam, Adamax, AdamW, Lamb, NAdam
from tests.paddle.optimizer.programs import gradient_fed

NUMBERS = {"beta1": 0.85, "beta2": 0.95, "epsilon": 1e-4}
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Training:
    """Steps of a small net, whose optimizer has numbers or variables."""

    def __init__(self, kind, level, *, variables):
        self.main, startup, self.scope = static.Program(), static.Program(), static.Scope()
        self.exe = static.Executor(CPUPlace())
        with static.program_guard(self.main, startup), paddle.utils.unique_name.guard():
            paddle.seed(3)
            out = static.nn.fc(static.nn.fc(static.data("x", [None, 4]), 5, activation="tanh"), 2)
            self.loss = paddle.mean(out * out)
            settings = NUMBERS
            if variables:
                settings = {
                    name: static.create_global_var([1], number, "float32", name=name)
                    for name, number in settings.items()
                }
            adam = kind(0.05, **settings, multi_precision=level == "O2")
            if level == "O2":
                adam = static.amp.decorate(adam, level="O2", init_loss_scaling=8.0)
            adam.minimize(self.loss, startup)
        self.exe.run(startup, scope=self.scope)
        if level == "O2":
            adam.amp_init(CPUPlace(), self.scope)

    def step(self):
        return float(self.exe.run(self.main, {"x": X}, [self.loss], scope=self.scope)[0])


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("level", ["float32", "O2"])
def test_variables_do_what_numbers_do(kind, level):
    ours, theirs = (Training(kind, level, variables=variables) for variables in (True, False))
    losses = [ours.step() for _ in range(5)]
    np.testing.assert_allclose(losses, [theirs.step() for _ in range(5)], rtol=1e-6 if level == "float32" else 2e-3)
    assert losses[-1] < losses[0]
    powers = [name for name in ours.scope if name.endswith("_beta1_pow_acc_0")]
    assert len(powers) == 4
    for name in powers:
        np.testing.assert_allclose(ours.scope[name], 0.85**6, rtol=1e-5)


def test_a_variable_is_read_in_every_step():
    ours, constant = Training(Adam, "float32", variables=True), Training(Adam, "float32", variables=False)
    assert ours.step() == pytest.approx(constant.step(), rel=1e-6)
    moments = [name for name in ours.scope if name.endswith("_moment1_0")]
    before = {name: np.array(ours.scope[name]) for name in moments}
    ours.scope["beta1"] = np.ones(1, np.float32)  # nothing of the gradient comes in any more
    ours.step()
    assert len(moments) == 4
    for name in moments:
        np.testing.assert_array_equal(ours.scope[name], before[name])


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: static.create_global_var([2], 0.9, "float32"),
        lambda: static.create_global_var([1], 0, "int64"),
        lambda: static.data("rate", [1], "float32"),
    ],
    ids=["two", "int64", "fed"],
)
def test_a_variable_of_another_kind_is_refused(name, make):
    with (
        static.program_guard(static.Program(), static.Program()),
        pytest.raises(OptionError, match=rf"Adam: {name} must be a number, or a float32 variable with one element"),
    ):
        Adam(**{name: make()})


@pytest.mark.parametrize("kind", [Lamb, Adamax])
def test_other_optimizers_take_numbers(kind):
    with (
        static.program_guard(static.Program(), static.Program()),
        pytest.raises(TypeError, match=f"{kind.__name__} .*beta1 must be a number"),
    ):
        kind(0.1, beta1=static.create_global_var([1], 0.9, "float32"))


@pytest.mark.parametrize("kind", [Adam, AdamW, NAdam])
def test_what_a_first_step_takes_does_not_hang_on_the_rounding_of_beta(kind):
    """The averages and their corrections hold `1 - beta`, which must be the same number in both."""
    g = np.array([1.0, -3.0, 0.25], np.float32)
    ours = gradient_fed(kind(0.5), {"w": np.zeros(3, np.float32)})
    ours.run({"g_w": g})
    if kind is NAdam:
        second = np.array(ours.state("_moment2_0"), np.float64) / (1 - np.float64(np.float32(0.999)))
        np.testing.assert_allclose(second, g.astype(np.float64) ** 2, rtol=3e-7)
    else:
        np.testing.assert_allclose(ours.scope["w"], -0.5 * np.sign(g), rtol=3e-7)
