"""Scripts that step a schedule after each batch or each epoch: the rates are Paddle's, by its own definitions."""

import math

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import optimizer, static
from amp_transpiler.paddle.incubate.optimizer import GradientMergeOptimizer

BATCHES, EPOCHS = 4, 3
lr = optimizer.lr


class Own(lr.LRScheduler):
    """A subclass as Paddle's documentation shows one."""

    def __init__(self, learning_rate, size, last_epoch=-1, verbose=False):
        self.size = size
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self):
        return self.base_lr / (1 + self.last_epoch // self.size)


class OwnStep(lr.LRScheduler):
    """One that has a step and a state of its own."""

    def __init__(self, learning_rate):
        self.calls = 0
        super().__init__(learning_rate)

    def step(self, epoch=None):
        self.calls += 1
        super().step(epoch)

    def state_keys(self):
        self.keys = ["last_epoch", "last_lr", "calls"]

    def get_lr(self):
        return self.base_lr / self.calls


KINDS = {  # what makes one, and the rate of each epoch
    "piecewise": (lambda: lr.PiecewiseDecay([1, 2], [1.0, 0.5, 0.25]), lambda e: [1.0, 0.5, 0.25][min(e, 2)]),
    "step": (lambda: lr.StepDecay(1.0, 2, 0.5), lambda e: 0.5 ** (e // 2)),
    "exponential": (lambda: lr.ExponentialDecay(1.0, 0.9), lambda e: 0.9**e),
    "lambda": (lambda: lr.LambdaDecay(1.0, lambda e: 0.5**e), lambda e: 0.5**e),
    "product": (lambda: lr.MultiplicativeDecay(1.0, lambda e: 0.5), lambda e: 0.5**e),
    "cosine": (lambda: lr.CosineAnnealingDecay(1.0, 4), lambda e: (1 + math.cos(math.pi * e / 4)) / 2),
    "noam": (lambda: lr.NoamDecay(4, 2), lambda e: 0.5 * min(e**-0.5 if e else 1, e * 2**-1.5)),
    "warmup": (lambda: lr.LinearWarmup(0.5, 2, 0.1, 0.5), lambda e: 0.1 + 0.2 * e if e < 2 else 0.5),
    "warmup, lambda": (
        lambda: lr.LinearWarmup(lr.LambdaDecay(1.0, lambda e: 0.5**e), 2, 0.0, 1.0),
        lambda e: 0.5 * e if e < 2 else 0.5 ** (e - 2),
    ),
    "warmup, own": (
        lambda: lr.LinearWarmup(Own(1.0, 1), 1, 0.0, 1.0),
        lambda e: 0.0 if e < 1 else 1 / e,
    ),
    "warmup, plateau": (lambda: lr.LinearWarmup(lr.ReduceOnPlateau(0.7), 1, 0.0, 1.0), lambda e: 0.7 if e else 0.0),
    "later": (lambda: lr.StepDecay(1.0, 1, 0.5, last_epoch=1), lambda e: 0.5 ** (e + 2)),
    "own": (lambda: Own(1.0, 2), lambda e: 1 / (1 + e // 2)),
    "own step": (lambda: OwnStep(1.0), lambda e: 1 / (1 + e)),
}


def rates(schedule, *, each_batch, each_epoch, wrap=lambda chosen: chosen, amp=False):
    """Return how far each run of a script as Paddle documents it moved a weight, and what `get_lr` said."""
    main, startup, scope, seen, said = static.Program(), static.Program(), static.Scope(), [], []
    with static.program_guard(main, startup), static.scope_guard(scope), paddle.utils.unique_name.guard():
        weight = paddle.create_parameter([1], "float32", "w", default_initializer=paddle.nn.initializer.Constant(0.0))
        loss = paddle.sum(weight * static.data("x", [1]))
        chosen = wrap(optimizer.SGD(schedule))
        if amp:
            chosen = static.amp.decorate(chosen, level="O1", init_loss_scaling=4.0)
        chosen.minimize(loss)
        executor = static.Executor("cpu")
        executor.run(startup)
        for _ in range(EPOCHS):
            for _ in range(BATCHES):
                before = scope["w"]
                said.append(schedule.get_lr())
                executor.run(main, {"x": np.ones(1, np.float32)}, [loss])
                seen.append((before - scope["w"]).item())
                if each_batch:
                    schedule.step()
            if each_epoch:
                schedule.step()
    return seen, said


@pytest.mark.parametrize("each_batch", [True, False], ids=["a batch", "an epoch"])
@pytest.mark.parametrize("kind", KINDS)
def test_step_drives_the_rate(kind, each_batch):
    make, want = KINDS[kind]
    rates_seen, said = rates(make(), each_batch=each_batch, each_epoch=not each_batch)
    numbers = range(BATCHES * EPOCHS) if each_batch else [e for e in range(EPOCHS) for _ in range(BATCHES)]
    np.testing.assert_allclose(rates_seen, [want(number) for number in numbers], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(said, rates_seen, rtol=2e-5, atol=2e-6)


def test_without_step_the_rate_stays():
    rates_seen, said = rates(lr.StepDecay(1.0, 1, 0.5), each_batch=False, each_epoch=False)
    assert rates_seen == said == [1.0] * (BATCHES * EPOCHS)


def test_in_mixed_precision():
    rates_seen, said = rates(lr.ExponentialDecay(1.0, 0.5), each_batch=False, each_epoch=True, amp=True)
    assert rates_seen == said == [0.5**epoch for epoch in range(EPOCHS) for _ in range(BATCHES)]


def test_merged_gradients_use_the_rate_of_the_run_that_updates():
    merge = lambda plain: GradientMergeOptimizer(plain, k_steps=3)  # noqa: E731
    rates_seen, _ = rates(lr.ExponentialDecay(1.0, 0.5), each_batch=True, each_epoch=False, wrap=merge)
    want = [0.5**run if run % 3 == 2 else 0.0 for run in range(BATCHES * EPOCHS)]
    np.testing.assert_allclose(rates_seen, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("each_epoch", [True, False])
def test_a_program_may_count_its_own_steps(each_epoch):
    schedule = lr.ExponentialDecay(1.0, 0.5, steps_per_epoch=BATCHES)
    rates_seen, said = rates(schedule, each_batch=False, each_epoch=each_epoch)
    assert rates_seen == said == [0.5**epoch for epoch in range(EPOCHS) for _ in range(BATCHES)]


def test_two_optimizers_and_a_clone_follow_one_schedule():
    schedule, scope, main, startup = lr.StepDecay(1.0, 1, 0.5), static.Scope(), static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        for name in ("a", "b"):
            weight = paddle.create_parameter([1], "float32", name)
            optimizer.SGD(schedule, parameters=[weight]).minimize(paddle.sum(weight * static.data("x" + name, [1])))
    executor, feed = static.Executor("cpu"), {"xa": np.ones(1, np.float32), "xb": np.ones(1, np.float32)}
    executor.run(startup, scope=scope)
    for program in (main, main.clone()):
        before = scope["a"], scope["b"]
        executor.run(program, feed, scope=scope)
        moved = [(old - scope[name]).item() for name, old in zip("ab", before, strict=True)]
        np.testing.assert_allclose(moved, [schedule.get_lr()] * 2, rtol=1e-5)
        schedule.step()


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on(kind):
    schedule, other = KINDS[kind][0](), KINDS[kind][0]()
    for _ in range(3):
        schedule.step()
    other.set_state_dict(schedule.state_dict())
    assert (other(), other.last_epoch) == (schedule(), schedule.last_epoch)
    schedule.step()
    other.step()
    assert other() == schedule()


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(InputError, match="num_bad_epochs, last_epoch, last_lr, got last_epoch, last_lr: cooldown"):
        lr.ReduceOnPlateau(1.0).set_state_dict(lr.StepDecay(1.0, 1).state_dict())


def test_a_class_without_a_rule_is_refused():
    class Nothing(lr.LRScheduler):
        pass

    with pytest.raises(OptionError, match=r"defines get_lr\(\) or rate"):
        Nothing(1.0)


def test_verbose_prints_as_paddle_does(capsys):
    lr.StepDecay(0.5, 1, 0.5, verbose=True).step()
    assert capsys.readouterr().out.splitlines() == [
        "Epoch 0: StepDecay set learning rate to 0.5.",
        "Epoch 1: StepDecay set learning rate to 0.25.",
    ]
