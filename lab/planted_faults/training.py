"""A fault of training: a loss scale so large that gradients are infinite in float16, and no step changes anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import amp_transpiler.paddle.nn.functional as F  # noqa: N812 - as everybody writes it
from amp_transpiler import paddle
from amp_transpiler.paddle import static
from planted_faults.running import Arrays

__all__ = ["NETWORKS", "TRAINING", "Training", "build", "feed_of", "losses_of", "training_truth"]

TRAINING = "training_scale"
_LARGEST_SCALES = (36, 44)  # exponents that are drawn
_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Training:
    """A training program, at level O2 in float16, with a static loss scale.

    Attributes:
        main: one step.
        startup: what makes the initial values.
        loss: the loss.
        optimizer: the decorated optimizer.
    """

    main: Any
    startup: Any
    loss: Any
    optimizer: Any


def _mlp(x: Any) -> Any:
    hidden = static.nn.fc(x, size=64, activation="relu")
    hidden = static.nn.fc(hidden, size=64, activation="relu")
    return static.nn.fc(hidden, size=10)


def _cnn(x: Any) -> Any:
    hidden = static.nn.conv2d(x, num_filters=8, filter_size=3, act="relu")
    hidden = F.max_pool2d(hidden, kernel_size=2, stride=2)
    hidden = static.nn.conv2d(hidden, num_filters=16, filter_size=3, act="relu")
    return static.nn.fc(hidden, size=10)


NETWORKS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "mlp": (_mlp, (8, 32)),
    "cnn": (_cnn, (4, 1, 16, 16)),
}
"""Name -> what builds the logits of ten classes, and the shape of its input."""


def build(network: str, scale: float) -> Training:
    """Build a training program.

    Args:
        network: a key of `NETWORKS`.
        scale: the loss scale, which stays as it is.
    """
    logits_of, shape = NETWORKS[network]
    paddle.enable_static()
    main, startup = static.Program(), static.Program()
    with paddle.utils.unique_name.guard(), static.program_guard(main, startup):
        x, label = static.data("x", list(shape), "float32"), static.data("label", [shape[0], 1], "int64")
        loss = paddle.mean(F.cross_entropy(logits_of(x), label))
        optimizer: Any = static.amp.decorate(
            paddle.optimizer.SGD(0.01),
            level="O2",
            dtype="float16",
            init_loss_scaling=scale,
            use_dynamic_loss_scaling=False,
        )
        optimizer.minimize(loss)
    return Training(main, startup, loss, optimizer)


def feed_of(network: str, seed: int) -> Arrays:
    """Return a batch."""
    draw, shape = np.random.default_rng(seed), NETWORKS[network][1]
    return {"x": draw.normal(size=shape).astype(np.float32), "label": draw.integers(0, 10, (shape[0], 1))}


def losses_of(training: Training, feed: Arrays, steps: int = _STEPS) -> list[float]:
    """Train some steps on one batch and return the losses."""
    scope, executor = static.Scope(), static.Executor(paddle.CPUPlace())
    executor.run(training.startup, scope=scope)
    training.optimizer.amp_init(paddle.CPUPlace(), scope)
    runs = [executor.run(training.main, feed=feed, fetch_list=[training.loss], scope=scope) for _ in range(steps)]
    return [float(run[0]) for run in runs]


def training_truth(seed: int, number: int) -> tuple[dict[str, Any], Arrays]:
    """Draw a network and a scale, and check that it does not train with it, and does with 2**10.

    Returns:
        What `truth.json` says, and the batch.
    """
    draw = np.random.default_rng([seed, number])
    network = list(NETWORKS)[int(draw.integers(len(NETWORKS)))]
    exponent, batch = int(draw.integers(*_LARGEST_SCALES)), int(draw.integers(1 << 16))
    feed = feed_of(network, batch)
    stuck, well = (losses_of(build(network, 2.0**power), feed) for power in (exponent, 10))
    if len(set(stuck)) > 1 or not well[-1] < well[0]:
        raise RuntimeError(f"{network}: losses {stuck} with a scale of 2**{exponent}, {well} with 2**10")
    truth = {
        "kind": TRAINING,
        "model": network,
        "network": network,
        "scale": 2.0**exponent,
        "scale_that_trains": 2.0**10,
        "recipe": f"planted_faults.training.build({network!r}, 2.0**{exponent})",
        "dtype": "float16",
        "level": "O2",
        "losses": stuck,
        "losses_without": well,
        "seed": [seed, number],
    }
    return truth, feed
