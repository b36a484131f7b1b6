"""The optimizers beside SGD, Momentum and Adam, against torch's or their formulas; master weights; skipped steps."""

import functools

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.optimizer import ASGD, Adadelta, Adagrad, LarsMomentum, NAdam, RAdam, RMSProp, Rprop
from tests.paddle.optimizer.programs import gradient_fed
from tests.paddle.optimizer.test_optimizers import draw, needs_torch

Lars = functools.partial(LarsMomentum, momentum=0.9)
ALL = [
    RMSProp,
    functools.partial(RMSProp, momentum=0.9, centered=True),
    Adagrad,
    Adadelta,
    NAdam,
    RAdam,
    Rprop,
    ASGD,
    Lars,
]
TORCH = {
    "adagrad": (Adagrad(0.05, 1e-6), "Adagrad", {"lr": 0.05, "eps": 1e-6}),
    "adagrad-initial": (
        Adagrad(0.05, 1e-6, initial_accumulator_value=0.5, weight_decay=0.1),
        "Adagrad",
        {"lr": 0.05, "eps": 1e-6, "initial_accumulator_value": 0.5, "weight_decay": 0.1},
    ),
    "adadelta": (Adadelta(0.5, 1e-5, 0.9), "Adadelta", {"lr": 0.5, "eps": 1e-5, "rho": 0.9}),
    "nadam": (NAdam(0.02), "NAdam", {"lr": 0.02}),
    "nadam-options": (
        NAdam(0.02, 0.8, 0.95, 1e-4, 0.1, weight_decay=0.1),
        "NAdam",
        {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-4, "momentum_decay": 0.1, "weight_decay": 0.1},
    ),
    "radam": (RAdam(0.02), "RAdam", {"lr": 0.02}),
    "radam-options": (RAdam(0.02, 0.8, 0.9), "RAdam", {"lr": 0.02, "betas": (0.8, 0.9)}),
    "rprop": (Rprop(0.02, (1e-3, 0.1)), "Rprop", {"lr": 0.02, "step_sizes": (1e-3, 0.1)}),
}


@needs_torch
@pytest.mark.parametrize(("optimizer", "theirs", "options"), TORCH.values(), ids=TORCH)
def test_twelve_steps_as_torch(optimizer, theirs, options):
    import torch

    w = draw(4, 3, seed=1)
    ours = gradient_fed(optimizer, {"w": w})
    weight = torch.nn.Parameter(torch.tensor(w, dtype=torch.float64))
    oracle = getattr(torch.optim, theirs)([weight], **options)
    for step in range(12):
        g = draw(4, 3, seed=10 + step)
        ours.run({"g_w": g})
        weight.grad = torch.tensor(g, dtype=torch.float64)
        oracle.step()
        np.testing.assert_allclose(ours.scope["w"], weight.detach().numpy(), rtol=3e-5, atol=3e-6)
    assert np.abs(ours.scope["w"] - w).max() > 0.01


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop_as_paddles_formula(centered, momentum):
    w = draw(4, 3).astype(np.float64)
    ours = gradient_fed(RMSProp(0.01, 0.9, 1e-4, momentum, centered), {"w": w.astype(np.float32)})
    square, mean, velocity = (np.zeros((4, 3)) for _ in range(3))
    for step in range(8):
        g = draw(4, 3, seed=step + 1)
        ours.run({"g_w": g})
        square, mean = 0.9 * square + 0.1 * g * g, 0.9 * mean + 0.1 * g
        variance = square - mean * mean if centered else square
        velocity = momentum * velocity + 0.01 * g / np.sqrt(variance + 1e-4)
        w -= velocity
    np.testing.assert_allclose(ours.scope["w"], w, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("decay", "excluded"), [(0.01, None), (0.01, ["w"]), (0.0, None)])
def test_lars_as_paddles_formula(decay, excluded):
    w = draw(4, 3).astype(np.float64)
    optimizer = LarsMomentum(0.1, 0.9, 0.02, decay, exclude_from_weight_decay=excluded, epsilon=1e-3, rescale_grad=0.5)
    ours = gradient_fed(optimizer, {"w": w.astype(np.float32)})
    velocity, decay = np.zeros((4, 3)), 0.0 if excluded else decay
    for step in range(8):
        raw = draw(4, 3, seed=step + 1)
        ours.run({"g_w": raw})
        g, rate = 0.5 * raw, 0.1
        if decay:
            norm = np.linalg.norm(w)
            rate *= 0.02 * norm / (np.linalg.norm(g) + decay * norm + 1e-3)
        velocity = 0.9 * velocity + rate * (g + decay * w)
        w -= velocity
    np.testing.assert_allclose(ours.scope["w"], w, rtol=2e-5, atol=1e-6)


def test_asgd_replaces_the_gradient_of_an_epoch_ago():
    w = draw(4).astype(np.float64)
    ours = gradient_fed(ASGD(0.1, batch_num=3), {"w": w.astype(np.float32)})
    total, held = np.zeros(4), np.zeros((3, 4))
    for step in range(8):
        g = draw(4, seed=step + 1)
        ours.run({"g_w": g})
        total += g - held[step % 3]
        held[step % 3] = g
        w -= 0.1 * total / min(step + 1, 3)
    np.testing.assert_allclose(ours.scope["w"], w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_masters_are_updated_unrounded(kind):
    w, optimizer = draw(6), kind(0.01)
    optimizer.multi_precision = True
    low, high = gradient_fed(optimizer, {"w": w}, dtype=ir.DataType.FLOAT16), gradient_fed(kind(0.01), {"w": w})
    for step in range(4):
        g = draw(6, seed=step).astype(np.float16)
        low.run({"g_w": g})
        high.run({"g_w": g.astype(np.float32)})
    master = low.scope["w_fp32_master_0"]
    np.testing.assert_allclose(master, high.scope["w"], rtol=1e-6)
    np.testing.assert_array_equal(low.scope["w"], master.astype(np.float16))


@pytest.mark.parametrize("kind", ALL)
def test_a_step_that_is_skipped_changes_nothing(kind):
    optimizer = kind(0.01)
    optimizer.always_skips = True
    ours = gradient_fed(optimizer, {"w": draw(6)}, guard=True)
    good, bad = np.array(False), np.array(True)
    for step in range(3):
        ours.run({"g_w": draw(6, seed=step), "bad": good})
    before = {name: np.array(ours.scope[name]) for name in ours.scope}
    ours.run({"g_w": np.full(6, np.inf, np.float32), "bad": bad})
    for name, value in before.items():
        np.testing.assert_array_equal(ours.scope[name], value, err_msg=name)
    ours.run({"g_w": draw(6, seed=4), "bad": good})
    assert not np.array_equal(ours.scope["w"], before["w"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RMSProp(0.1, 1.0), "rho must be"),
        (lambda: Adadelta(0.1, rho=-0.1), "rho must be"),
        (lambda: Rprop(100.0), "inside learning_rate_range"),
        (lambda: Rprop(0.1, etas=(1.2, 0.5)), "etas must be"),
        (lambda: ASGD(0.1, 0), "batch_num"),
        (lambda: Lars("fast"), "learning_rate must be"),
        (lambda: Lars(None), "learning_rate must be a number"),
        (lambda: RMSProp(0.1, epsilon=None), "epsilon must be a number, got None"),
        (lambda: Adadelta(0.1, rho=None), "rho must be a number, got None"),
        (lambda: ASGD(0.1, None), "batch_num must be a whole number, got None"),
    ],
)
def test_arguments_without_a_meaning_are_refused(make, words):
    with pytest.raises(OptionError, match=words):
        make()
