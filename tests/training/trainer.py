"""Training a network by our interface, in float32 or decorated, from given seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from amp_transpiler import CPUPlace, decorate, static
from amp_transpiler.paddle.optimizer import Optimizer
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program, Variable

Feed = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Trainer:
    """A training program that was started, and one of inference that shares its parameters.

    Attributes:
        main: the training program.
        test: the forward pass; as low as the training program.
        scope: the values of both.
        executor: runs both.
        loss: what is minimized.
    """

    main: Program
    test: Program
    scope: static.Scope
    executor: static.Executor
    loss: Variable

    def train(self, batches: Iterable[Feed]) -> list[float]:
        """Take a step for each batch, and return the losses."""
        return [float(self._run(self.main, feed, self.loss.name)) for feed in batches]

    def predict(self, feed: Feed, name: str) -> np.ndarray:
        """Return a value of the forward pass."""
        return self._run(self.test, feed, name)

    def _run(self, program: Program, feed: Feed, name: str) -> np.ndarray:
        (value,) = self.executor.run(program, feed=feed, fetch_list=[name], scope=self.scope)
        return np.asarray(value).astype(np.float32)


def build(
    network: Callable[[], Variable], optimizer: Optimizer, amp: dict[str, Any] | None = None, seed: int = 7
) -> tuple[Program, Program, Program, Variable, Any]:
    """Return the training, test and startup programs of a network, its loss and its, perhaps decorated, optimizer.

    Args:
        network: makes the inputs and the forward pass in the current program, and returns the loss.
        optimizer: what minimizes it.
        amp: arguments of `decorate`; None for float32.
        seed: decides initial values.
    """
    main, startup = static.Program(), static.Program()
    startup.random_seed = seed
    with unique_name.guard(), static.program_guard(main, startup):
        loss = network()
        test = main.clone(for_test=True)
        chosen = optimizer if amp is None else decorate(optimizer, **amp)
        chosen.minimize(loss, startup)
    return main, test, startup, loss, chosen


def start(
    network: Callable[[], Variable], optimizer: Optimizer, amp: dict[str, Any] | None = None, seed: int = 7
) -> Trainer:
    """Return a trainer on the CPU, emulated where `amp` makes the program low; arguments as of `build`."""
    main, test, startup, loss, chosen = build(network, optimizer, amp, seed)
    scope, executor = static.Scope(), static.Executor(CPUPlace())
    executor.run(startup, scope=scope)
    if amp is not None:
        chosen.amp_init(CPUPlace(), scope, test_program=test)
    return Trainer(main, test, scope, executor, loss)
