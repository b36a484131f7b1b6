"""Schedules: the program's learning rate against Python's, Python's against Paddle's definitions and torch."""

import importlib.util
import logging
import math

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.optimizer import SGD, lr
from amp_transpiler.runtime.scope import scope_guard
from tests.paddle.optimizer.programs import gradient_fed

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed"
)


def warmup_then(value_at):
    return lambda e: 0.1 + 0.4 * e / 4 if e < 4 else value_at(e - 4)


def cycled(e):
    length = max(math.ceil(e / 5), 1) * 5
    return 0.49 * (1 - e / length) ** 2 + 0.01


# name -> (schedule, what its definition gives in epoch e)
SCHEDULES = {
    "noam": (lr.NoamDecay(64, 4, 2.0), lambda e: 2 * 64**-0.5 * min(e**-0.5 if e else 1, e * 4**-1.5)),
    "piecewise": (lr.PiecewiseDecay([3, 6], [0.5, 0.2, 0.1]), lambda e: 0.5 if e < 3 else 0.2 if e < 6 else 0.1),
    "natural-exp": (lr.NaturalExpDecay(0.5, 0.1), lambda e: 0.5 * math.exp(-0.1 * e)),
    "inverse-time": (lr.InverseTimeDecay(0.5, 0.1), lambda e: 0.5 / (1 + 0.1 * e)),
    "exponential": (lr.ExponentialDecay(0.5, 0.9), lambda e: 0.5 * 0.9**e),
    "polynomial": (lr.PolynomialDecay(0.5, 8, 0.01, 2.0), lambda e: 0.49 * (1 - min(e, 8) / 8) ** 2 + 0.01),
    "polynomial-root": (lr.PolynomialDecay(0.5, 7, 0.01, 0.5), lambda e: 0.49 * (1 - min(e, 7) / 7) ** 0.5 + 0.01),
    "polynomial-cycle": (lr.PolynomialDecay(0.5, 5, 0.01, 2.0, cycle=True), cycled),
    "warmup": (lr.LinearWarmup(0.5, 4, 0.1, 0.5), warmup_then(lambda _: 0.5)),
    "warmup-schedule": (
        lr.LinearWarmup(lr.ExponentialDecay(0.5, 0.9), 4, 0.1, 0.5),
        warmup_then(lambda e: 0.5 * 0.9**e),
    ),
    "warmup-epochs": (
        lr.LinearWarmup(lr.StepDecay(0.5, 1, 0.5, steps_per_epoch=3), 4, 0.1, 0.5),
        warmup_then(lambda e: 0.5 * 0.5 ** (e // 3)),
    ),
    "multi-step": (lr.MultiStepDecay(0.5, [2, 5], 0.2), lambda e: 0.5 * 0.2 ** ((e >= 2) + (e >= 5))),
    "step": (lr.StepDecay(0.5, 3, 0.2), lambda e: 0.5 * 0.2 ** (e // 3)),
    "cosine": (lr.CosineAnnealingDecay(0.5, 6, 0.1), lambda e: 0.1 + 0.4 * (1 + math.cos(math.pi * e / 6)) / 2),
    "linear": (lr.LinearLR(0.5, 5, 0.25, 0.5), lambda e: 0.5 * (0.25 + 0.25 * min(e, 5) / 5)),
    "cyclic-of-a-function": (
        lr.CyclicLR(0.1, 0.5, 2, 3, scale_fn=lambda cycle: 1.0 / cycle),
        lambda e: 0.1 + 0.4 * min(e % 5 / 2, (5 - e % 5) / 3) / (1 + e // 5),
    ),
    "constant": (lr.PiecewiseDecay([], [0.25]), lambda _: 0.25),
}
ROWS = [(schedule, want) for schedule, want in SCHEDULES.values()]


def rates_of_program(schedule, steps):
    """Return the rates of a program that counts its own steps."""
    schedule.steps_per_epoch = schedule.steps_per_epoch or 1
    ours = gradient_fed(SGD(schedule), {"w": np.zeros(1, "f")})
    g, rates_seen = np.ones(1, "f"), []
    for _ in range(steps):
        before = ours.scope["w"]
        (rate,) = ours.run({"g_w": g}, ["learning_rate_0"])
        np.testing.assert_allclose(before - ours.scope["w"], rate, rtol=1e-4, atol=1e-6)
        rates_seen.append(float(rate))
    assert ours.scope["@lr_step@_0"].dtype == np.int64
    assert ours.scope["@lr_step@_0"] == steps + schedule.initial_step
    return rates_seen


@pytest.mark.parametrize(("schedule", "want"), ROWS, ids=SCHEDULES)
def test_the_programs_rate_is_pythons_and_paddles(schedule, want):
    python = [schedule.lr_at(step) for step in range(12)]
    np.testing.assert_allclose(python, [want(step) for step in range(12)], rtol=1e-9)
    np.testing.assert_allclose(rates_of_program(schedule, 12), python, rtol=2e-5, atol=1e-7)
    assert schedule.get_lr() == SGD(schedule).get_lr() == python[0]


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("three_phase", [False, True])
def test_one_cycle_in_the_program(strategy, three_phase):
    schedule = lr.OneCycleLR(1.0, 12, 10.0, 0.001, 0.25, strategy, three_phase)
    python = [schedule.lr_at(step) for step in range(15)]
    np.testing.assert_allclose(rates_of_program(schedule, 15), python, rtol=1e-4, atol=1e-6)
    assert python[0] == pytest.approx(0.1)
    assert max(python) == python[2] == pytest.approx(1.0)
    assert python[11:] == pytest.approx([0.001] * 4)


TORCH = {
    "ExponentialLR": (lr.ExponentialDecay(0.5, 0.9), {"gamma": 0.9}),
    "MultiStepLR": (lr.MultiStepDecay(0.5, [2, 5], 0.2), {"milestones": [2, 5], "gamma": 0.2}),
    "StepLR": (lr.StepDecay(0.5, 3, 0.2), {"step_size": 3, "gamma": 0.2}),
    "CosineAnnealingLR": (lr.CosineAnnealingDecay(0.5, 9, 0.1), {"T_max": 9, "eta_min": 0.1}),
    "LinearLR": (lr.LinearLR(0.5, 6), {"total_iters": 6}),
    "CyclicLR": (
        lr.CyclicLR(0.1, 0.5, 3, 2, "triangular2"),
        {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3, "step_size_down": 2, "mode": "triangular2"},
    ),
    "CyclicLR ": (
        lr.CyclicLR(0.1, 0.5, 2, mode="exp_range", exp_gamma=0.9),
        {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 2, "mode": "exp_range", "gamma": 0.9},
    ),
    "CosineAnnealingWarmRestarts": (lr.CosineAnnealingWarmRestarts(0.5, 4, 1, 0.1), {"T_0": 4, "eta_min": 0.1}),
    "CosineAnnealingWarmRestarts ": (lr.CosineAnnealingWarmRestarts(0.5, 2, 2), {"T_0": 2, "T_mult": 2}),
    "PolynomialLR": (lr.PolynomialDecay(0.5, 7, 0.0, 2.0), {"total_iters": 7, "power": 2.0}),
    "OneCycleLR": (
        lr.OneCycleLR(0.5, 10, 10.0, 0.0005),
        {"max_lr": 0.5, "total_steps": 10, "div_factor": 10.0, "final_div_factor": 100.0},
    ),
}


@needs_torch
@pytest.mark.parametrize("name", TORCH)
def test_schedules_that_torch_has_too(name):
    import torch

    schedule, options = TORCH[name]
    oracle = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5, momentum=0.9)
    theirs = getattr(torch.optim.lr_scheduler, name.strip())(oracle, **options)
    for step in range(10):
        assert schedule.lr_at(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-6, abs=1e-9)
        oracle.step()
        if step < 9:
            theirs.step()


@pytest.mark.parametrize(
    "name", ["CyclicLR", "CyclicLR ", "CosineAnnealingWarmRestarts", "CosineAnnealingWarmRestarts "]
)
def test_schedules_that_go_up_again_in_the_program(name):
    schedule = TORCH[name][0]
    python = [schedule.lr_at(step) for step in range(32)]
    np.testing.assert_allclose(rates_of_program(schedule, 32), python, rtol=1e-4, atol=1e-5)


def _followed(schedule):
    ours = gradient_fed(SGD(schedule), {"w": np.zeros(1, "f")})

    def rate():
        before = ours.scope["w"]
        (fetched,) = ours.run({"g_w": np.ones(1, "f")}, ["learning_rate_0"])
        np.testing.assert_allclose(before - ours.scope["w"], fetched, rtol=1e-3)
        return float(fetched)

    return ours, rate


@needs_torch
def test_a_plateau_reduces_the_rate_as_torchs_does():
    import torch

    losses = [5.0, 4.0, 4.0, 4.1, 3.0, 3.0, 3.0, 3.0, 3.2, 3.1, 2.9999, 2.9999, 2.9999, 2.9999]
    oracle = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(oracle, factor=0.3, patience=1, min_lr=0.01)
    schedule = lr.ReduceOnPlateau(0.5, factor=0.3, patience=1, min_lr=0.01)
    _, rate = _followed(schedule)
    for loss in losses:
        schedule.step(np.array([loss], np.float32))
        theirs.step(float(np.float32(loss)))
        assert rate() == pytest.approx(oracle.param_groups[0]["lr"], rel=1e-6)
        assert schedule.get_lr() == pytest.approx(rate())
    assert rate() == pytest.approx(0.01)


def test_a_reduction_has_a_cooldown_in_which_nothing_counts():
    schedule = lr.ReduceOnPlateau(0.8, "max", 0.5, patience=0, threshold=0.1, threshold_mode="abs", cooldown=2)
    rates = []
    for value in [1.0, 1.05, 9.0, 9.0, 2.0, 2.05]:
        schedule.step(value)
        rates.append(schedule.get_lr())
    assert rates == [0.8, 0.4, 0.4, 0.4, 0.4, 0.2]
    with pytest.raises(InputError, match="one measured number"):
        schedule.step()


def test_functions_of_python_are_called_by_step():
    for schedule, want in (
        (lr.LambdaDecay(0.5, lambda e: 0.9 ** (e // 2)), [0.5 * 0.9 ** (e // 2) for e in range(6)]),
        (
            lr.MultiplicativeDecay(0.5, lambda e: 1.0 - 0.1 * e),
            [0.5 * math.prod(1 - 0.1 * n for n in range(1, e + 1)) for e in range(6)],
        ),
    ):
        _, rate = _followed(schedule)
        for value in want:
            assert rate() == pytest.approx(value)
            schedule.step()
        state = schedule.state_dict()
        schedule.step(0)
        assert rate() == 0.5
        schedule.set_state_dict(state)
        assert rate() == pytest.approx(state["last_lr"])


@pytest.mark.parametrize("kind", ["step", "warmup-schedule", "polynomial-cycle"])
def test_an_epoch_may_be_several_steps(kind):
    plain, want = SCHEDULES[kind]
    schedules = {
        "step": lambda n: lr.StepDecay(0.5, 3, 0.2, steps_per_epoch=n),
        "warmup-schedule": lambda n: lr.LinearWarmup(lr.ExponentialDecay(0.5, 0.9), 4, 0.1, 0.5, steps_per_epoch=n),
        "polynomial-cycle": lambda n: lr.PolynomialDecay(0.5, 5, 0.01, 2.0, cycle=True, steps_per_epoch=n),
    }[kind](3)
    python = [schedules.lr_at(step) for step in range(20)]
    np.testing.assert_allclose(python, [want(step // 3) for step in range(20)], rtol=1e-9)
    np.testing.assert_allclose(rates_of_program(schedules, 20), python, rtol=2e-5)
    assert python[3:] != [plain.lr_at(step) for step in range(3, 20)]


def test_a_schedule_says_its_rate_after_as_many_calls_of_step():
    schedule = lr.ExponentialDecay(0.5, 0.9)
    assert (schedule.last_lr, schedule.last_epoch) == (0.5, 0)
    for epoch in (1, 2):
        schedule.step()
        assert schedule.get_lr() == schedule() == schedule.last_lr == schedule.lr_at(epoch)
        assert schedule() == pytest.approx(0.5 * 0.9**epoch)
    assert schedule.last_epoch == 2
    schedule.step(7)
    assert (schedule.get_lr(), schedule.last_epoch) == (pytest.approx(0.5 * 0.9**7), 7)
    with pytest.raises(AttributeError, match="no attribute 'speed'"):
        _ = schedule.speed


def test_last_epoch_starts_later():
    schedule = lr.ExponentialDecay(0.5, 0.9, last_epoch=4, steps_per_epoch=2)
    np.testing.assert_allclose(rates_of_program(schedule, 3), [0.5 * 0.9**5, 0.5 * 0.9**5, 0.5 * 0.9**6], rtol=1e-5)
    assert schedule.get_lr() == pytest.approx(0.5 * 0.9**5)


def test_where_the_program_counts_step_says_that_it_changes_nothing(caplog):
    schedule = lr.StepDecay(0.5, 1, 0.5, steps_per_epoch=2)
    ours = gradient_fed(SGD(schedule), {"w": np.zeros(1, "f")})
    with caplog.at_level(logging.WARNING), scope_guard(ours.scope):
        for run in range(4):
            assert schedule.get_lr() == schedule() == 0.5 ** (1 + run // 2)  # what the next run uses
            ours.run({"g_w": np.ones(1, "f")})
            schedule.step()
    assert len(caplog.records) == 1
    assert "leave steps_per_epoch out" in caplog.text


def test_a_schedule_of_ones_own():
    class Halving(lr.LRScheduler):
        def rate(self, epoch):
            return self.base_lr / (1.0 + epoch) - 0.01 + 2.0 ** (0.0 - epoch) * 0.1

    schedule = Halving(0.5, steps_per_epoch=2)
    assert Halving(0.5).get_lr() == schedule.get_lr() == pytest.approx(0.59)
    np.testing.assert_allclose(rates_of_program(schedule, 6), [schedule.lr_at(s) for s in range(6)], rtol=1e-5)


def test_the_state_is_the_programs():
    ours = gradient_fed(SGD(lr.StepDecay(0.5, 3, steps_per_epoch=1)), {"w": np.zeros(1, "f")})
    assert ours.main.persistables["@lr_step@_0"].kind == "state"
    assert ours.main.value("@lr_step@_0").dtype == ir.DataType.INT64
    assert ours.main.updates["@lr_step@_0"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lr.LambdaDecay(0.5, 0.9), "lr_lambda must be a function"),
        (lambda: lr.LinearLR(0.5, 4, 0.0), "factors"),
        (lambda: lr.CyclicLR(0.1, 0.5, 3, mode="square"), "mode must be"),
        (lambda: lr.CyclicLR(0.1, 0.5, 3, scale_mode="epoch"), "scale_mode must be"),
        (lambda: lr.CosineAnnealingWarmRestarts(0.5, 0), "T_0"),
        (lambda: lr.ReduceOnPlateau(0.5, "least"), "mode must be"),
        (lambda: lr.ReduceOnPlateau(0.5, factor=1.0), "factor must be below 1"),
        (
            lambda: gradient_fed(
                SGD(lr.LinearWarmup(lr.ReduceOnPlateau(0.5), 4, 0.1, 0.5, steps_per_epoch=1)), {"w": np.zeros(1, "f")}
            ),
            "ReduceOnPlateau has no formula",
        ),
        (lambda: lr.StepDecay(0.5, 0), "step_size"),
        (lambda: lr.StepDecay(0.5, 3, steps_per_epoch=0), "steps_per_epoch"),
        (lambda: lr.PiecewiseDecay([1], [0.5]), "2 values"),
        (lambda: lr.PiecewiseDecay([3, 2], [0.5, 0.4, 0.3]), "must rise"),
        (lambda: lr.MultiStepDecay(0.5, [3, 3]), "milestones must rise"),
        (lambda: lr.LinearWarmup(0.5, 4, 0.5, 0.1), "end_lr"),
        (lambda: lr.OneCycleLR(1.0, 10, anneal_strategy="square"), "anneal_strategy"),
        (lambda: lr.OneCycleLR(1.0, 10, phase_pct=0.05), "must rise"),
        (lambda: lr.CosineAnnealingDecay(0.5, 0), "T_max"),
    ],
)
def test_arguments_without_a_meaning_are_refused(make, words):
    with pytest.raises(OptionError, match=words):
        make()
