"""`LRScheduler`: a learning rate that the program computes from a counter of the steps that it has taken.

A schedule is one formula, `rate(epoch)`, for the program (`emit`) and for Python (`lr_at`).
"""

from __future__ import annotations

import abc
import itertools
import logging
import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.scalars import Scalar, Symbol, cos, floor, where_less
from amp_transpiler.runtime.scope import global_scope

__all__ = ["LRScheduler", "check_positive", "check_rising", "cosine", "piecewise"]

logger = logging.getLogger(__name__)


class LRScheduler(abc.ABC):
    """A learning rate that depends on how many steps the program has taken.

    A subclass defines `rate`, written with plain arithmetic and the functions of
    `amp_transpiler.paddle.optimizer.scalars`.

    Args:
        learning_rate: the base of the formula.
        last_epoch: the epoch before the one to start in; -1 to start in epoch 0.
        verbose: Paddle's; a warning says which variable to fetch instead, since Python does not know the rate.
        steps_per_epoch: steps of the program that make one epoch of the formula.

    Raises:
        OptionError: `steps_per_epoch` is below 1.
    """

    def __init__(
        self, learning_rate: float = 0.1, last_epoch: int = -1, verbose: bool = False, *, steps_per_epoch: int = 1
    ) -> None:
        if steps_per_epoch < 1:
            raise OptionError(f"{type(self).__name__}: steps_per_epoch must be 1 or more, got {steps_per_epoch}")
        self.base_lr = float(learning_rate)
        self.steps_per_epoch = int(steps_per_epoch)
        self.initial_step = (int(last_epoch) + 1) * self.steps_per_epoch
        self._calls = 0
        self._counters: list[str] = []
        self._counted: int | None = None  # what the program's counter was at the last call of `step`
        if verbose:
            logger.warning(
                "%s: verbose prints nothing; fetch the variable 'learning_rate_0' instead", type(self).__name__
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(starts at {self.get_lr():g})"

    def __call__(self) -> float:
        """Return `get_lr()`."""
        return self.get_lr()

    @abc.abstractmethod
    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch (a whole number, from 0)."""

    def at(self, steps: Scalar) -> Scalar:
        """Return the learning rate after this many steps, as a number or as a scalar of a program."""
        return self.rate(floor(steps / self.steps_per_epoch) if self.steps_per_epoch > 1 else steps)

    def emit(self, builder: GraphBuilder, step_value: ir.Value) -> ir.Value:
        """Append the computation of the learning rate.

        Args:
            builder: appends to the program.
            step_value: the number of steps that it has taken, an int64 or float32 scalar.

        Returns:
            A float32 scalar.
        """
        found = self.at(Symbol(builder, builder.cast(step_value, ir.DataType.FLOAT)))
        return found.value if isinstance(found, Symbol) else builder.constant(found, ir.DataType.FLOAT)

    def lr_at(self, step: int) -> float:
        """Return the learning rate that the program uses after `step` steps."""
        found = self.at(float(step))
        assert not isinstance(found, Symbol)
        return float(found)

    def get_lr(self) -> float:
        """Return the learning rate after as many epochs as `step` was called: that of the first step before."""
        return self.lr_at(self.initial_step + self._calls * self.steps_per_epoch)

    def step(self, epoch: int | None = None) -> None:
        """Count an epoch for `get_lr`. The program counts its own steps, so this does not change its rate.

        The first call warns of that.

        Args:
            epoch: the number of the epoch to go to, from 0; the next one unless given.

        Raises:
            InputError: the program took several steps since the last call, and counts each as an epoch.
        """
        self._check_pace()
        if not self._calls:
            logger.warning(
                "%s.step() changes what get_lr() returns, and not the program, which itself counts its good steps. %d "
                "of them make an epoch here; where the script calls step() once an epoch, give the schedule "
                "steps_per_epoch=STEPS_IN_AN_EPOCH",
                type(self).__name__,
                self.steps_per_epoch,
            )
        self._calls = self._calls + 1 if epoch is None else epoch - self.initial_step // self.steps_per_epoch

    def count_in(self, name: str) -> None:
        """Let `step` compare its calls with the steps that a program counts in this value of the scope."""
        self._counters.append(name)

    def _check_pace(self) -> None:
        """Refuse a script that steps the schedule once an epoch, where the program takes each step for an epoch."""
        scope = global_scope()
        counted = next((int(scope[name]) for name in self._counters if name in scope), None)
        before, self._counted = self._counted, counted
        if self.steps_per_epoch == 1 and counted is not None and before is not None and counted - before > 1:
            steps, label = counted - before, type(self).__name__
            raise InputError(
                f"{label}.step() was called after {steps} steps of the program, which counts each of them as an epoch: "
                f"give {label}(..., steps_per_epoch={steps}), or call step() after each run"
            )

    def __getattr__(self, name: str) -> Any:
        if name == "last_lr":  # Paddle's attributes; a schedule that Python drives has them as its own
            return self.get_lr()
        if name == "last_epoch":
            return self.initial_step // self.steps_per_epoch + self._calls
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def piecewise(epoch: Scalar, boundaries: Sequence[int], values: Sequence[float]) -> Scalar:
    """Return `values[i]` for the first `i` with `epoch < boundaries[i]`, else the last value."""
    found: Scalar = values[-1]
    for bound, value in reversed(list(zip(boundaries, values, strict=False))):
        found = where_less(epoch, bound, value, found)
    return found


def cosine(start: float, stop: float, done: Scalar) -> Scalar:
    """Return what lies between `start` (at `done` = 0) and `stop` (at 1) along half a cosine."""
    return (cos(done * math.pi) + 1.0) * ((start - stop) / 2.0) + stop


def check_positive(schedule: str, **arguments: float) -> None:
    """Raise OptionError for an argument that is not positive."""
    for name, value in arguments.items():
        if value <= 0:
            raise OptionError(f"{schedule}: {name} must be positive, got {value}")


def check_rising(schedule: str, name: str, numbers: Sequence[float]) -> None:
    """Raise OptionError for numbers that do not rise."""
    if any(b <= a for a, b in itertools.pairwise(numbers)):
        raise OptionError(f"{schedule}: {name} must rise, got {list(numbers)}")


check_arguments(globals(), __all__)
