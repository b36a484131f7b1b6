"""Averages of parameters, gradients summed over runs, LookAhead: against numpy, in fp32 and mixed precision."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import nn, static
from amp_transpiler.paddle.framework.programs import data, program_guard
from amp_transpiler.paddle.incubate import LookAhead, ModelAverage
from amp_transpiler.paddle.incubate.optimizer import GradientMergeOptimizer, LarsMomentumOptimizer
from amp_transpiler.paddle.optimizer import SGD, Adam, LarsMomentum, Momentum, lr
from amp_transpiler.paddle.static.amp import decorate
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope

RANDOM = np.random.default_rng(6)
BATCHES = [(RANDOM.normal(size=(4, 3)).astype("f"), RANDOM.normal(size=(4, 2)).astype("f")) for _ in range(12)]


class Trained:
    """A linear model in a scope of its own; `make` minimizes its loss in the current program."""

    def __init__(self, make, rows=4):
        self.main, self.startup, self.scope = Program(), Program(), Scope()
        with program_guard(self.main, self.startup), unique_name.guard():
            x, y = data("x", [rows, 3]), data("y", [rows, 2])
            layer = nn.Linear(3, 2, bias_attr=False, weight_attr=nn.initializer.Constant(0.5))
            self.loss = nn.MSELoss()(layer(x), y)
            self.made = make(self.loss)
        self.executor = Executor(CPUPlace())
        self.executor.run(self.startup, scope=self.scope)

    def step(self, x, y):
        return self.executor.run(self.main, {"x": x, "y": y}, [self.loss], scope=self.scope)[0]

    @property
    def weight(self):
        name = next((n for n in self.scope if n.endswith("fp32_master_0")), "linear_0.w_0")
        return np.array(self.scope[name], np.float32)


def _minimized(optimizer):
    def make(loss):
        optimizer.minimize(loss)
        return optimizer

    return make


def test_an_exponential_average_is_applied_and_taken_back():
    def make(loss):
        SGD(0.1).minimize(loss)
        ema = static.ExponentialMovingAverage(0.9)
        ema.update()
        with pytest.raises(InputError, match="called before"):
            ema.update()
        return ema

    ours, average = Trained(make), np.zeros((3, 2))
    with pytest.raises(InputError, match="no step was averaged"), ours.made.apply(scope=ours.scope):
        pass
    for x, y in BATCHES[:5]:
        ours.step(x, y)
        average = 0.9 * average + 0.1 * ours.weight
    before = ours.weight
    with ours.made.apply(ours.executor, scope=ours.scope):
        np.testing.assert_allclose(ours.weight, average / (1 - 0.9**5), rtol=1e-5)
        with pytest.raises(InputError, match="applied already"), ours.made.apply(scope=ours.scope):
            pass
    np.testing.assert_array_equal(ours.weight, before)
    with ours.made.apply(need_restore=False, scope=ours.scope):
        pass
    assert not np.array_equal(ours.weight, before)
    ours.made.restore(scope=ours.scope)
    np.testing.assert_array_equal(ours.weight, before)


def test_the_decay_may_follow_the_steps():
    def make(loss):
        SGD(0.1).minimize(loss)
        steps = static.create_global_var([1], 0.0, "float32", name="steps")
        steps.program.updates["steps"] = (steps + 1.0).name
        ema = static.ExponentialMovingAverage(0.5, thres_steps=steps, name="slow_")
        ema.update()
        return ema

    ours, average, product = Trained(make), np.zeros((3, 2)), 1.0
    for number, (x, y) in enumerate(BATCHES[:7]):
        ours.step(x, y)
        decay = min(0.5, (1 + number) / (10 + number))
        average, product = decay * average + (1 - decay) * ours.weight, product * decay
    with ours.made.apply(scope=ours.scope):
        np.testing.assert_allclose(ours.weight, average / (1 - product), rtol=1e-5)


def test_a_plain_average_restarts_its_window():
    def make(loss):
        SGD(0.1).minimize(loss)
        return ModelAverage(1.0, min_average_window=2, max_average_window=3)

    ours, window, current = Trained(make), [], []
    for x, y in BATCHES[:8]:
        ours.step(x, y)
        current.append(ours.weight)
        if len(current) >= 3 or (len(current) >= 2 and len(window) == 0):
            window, current = current, []
    with ours.made.apply(scope=ours.scope):
        np.testing.assert_allclose(ours.weight, np.mean([*window, *current], axis=0), rtol=1e-5)


@pytest.mark.parametrize("make", [lambda: SGD(0.1), lambda: Momentum(0.1, 0.9), lambda: Adam(0.05)])
@pytest.mark.parametrize("avg", [True, False])
def test_merged_gradients_are_those_of_one_large_batch(make, avg):
    merged = Trained(_minimized(GradientMergeOptimizer(make(), k_steps=3, avg=avg)))
    whole = Trained(lambda loss: make().minimize(loss if avg else loss * 3.0), rows=12)
    for number in range(4):
        before = merged.weight
        parts = BATCHES[3 * number : 3 * number + 3]
        for place, (x, y) in enumerate(parts):
            merged.step(x, y)
            assert np.array_equal(merged.weight, before) == (place < 2)
        whole.step(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        np.testing.assert_allclose(merged.weight, whole.weight, rtol=2e-5, atol=1e-6)


def test_a_schedule_counts_merged_steps():
    merged = Trained(_minimized(GradientMergeOptimizer(SGD(lr.StepDecay(0.1, 1, 0.5, steps_per_epoch=1)), 2)))
    for x, y in BATCHES[:4]:
        merged.step(x, y)
    assert merged.scope["@lr_step@_0"] == 2


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_merging_in_mixed_precision_skips_a_bad_sum_and_then_shrinks_the_scale(level):
    decorated = decorate(Adam(0.05), level=level, dtype="float16", init_loss_scaling=1024.0)
    merged = Trained(_minimized(GradientMergeOptimizer(decorated, 2)))
    if level == "O2":
        decorated.amp_init(CPUPlace(), merged.scope)
    state = lambda: decorated.state_dict(merged.scope)  # noqa: E731
    before = merged.weight
    merged.step(*BATCHES[0])
    assert state()["_growth_tracker"] == 0
    merged.step(*BATCHES[1])
    assert state()["_growth_tracker"] == 1
    moved = merged.weight
    assert np.abs(moved - before).max() > 0.01
    bad = np.full((4, 3), 6e4, np.float32)
    merged.step(bad, BATCHES[0][1])
    assert state()["scale"] == 1024.0
    merged.step(*BATCHES[1])
    assert state()["scale"] == 512.0
    np.testing.assert_array_equal(merged.weight, moved)
    merged.step(*BATCHES[2])
    merged.step(*BATCHES[3])
    assert not np.array_equal(merged.weight, moved)


@pytest.mark.parametrize("k", [1, 3])
def test_lookahead_as_paddles_formula(k):
    ours, plain = Trained(_minimized(LookAhead(SGD(0.1), 0.4, k))), Trained(_minimized(SGD(0.1)))
    slow = None
    for number, (x, y) in enumerate(BATCHES, start=1):
        ours.step(x, y)
        plain.step(x, y)
        fast = plain.weight
        slow = fast if slow is None else slow
        if number % k == 0:
            slow = slow + 0.4 * (fast - slow)
            plain.scope["linear_0.w_0"] = slow.astype("f")
        np.testing.assert_allclose(ours.weight, plain.weight, rtol=1e-5, atol=1e-6)


def test_lookahead_keeps_masters():
    decorated = decorate(Adam(0.05), level="O2", dtype="float16")
    ours = Trained(_minimized(LookAhead(decorated, 0.5, 2)))
    decorated.amp_init(CPUPlace(), ours.scope)
    for x, y in BATCHES[:6]:
        ours.step(x, y)
        held = ours.scope["linear_0.w_0"]
        assert held.dtype == np.float16
        np.testing.assert_array_equal(held, ours.weight.astype(np.float16))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GradientMergeOptimizer(SGD(0.1), 0), "k_steps must be"),
        (lambda: GradientMergeOptimizer(3), "must be an optimizer"),
        (lambda: LookAhead(SGD(0.1), 2.0), "alpha must be"),
        (lambda: static.ExponentialMovingAverage(1.0), "decay must be"),
    ],
)
def test_arguments_without_a_meaning_are_refused(make, words):
    with pytest.raises(OptionError, match=words):
        make()


def test_names_of_incubate():
    assert LarsMomentumOptimizer is LarsMomentum
