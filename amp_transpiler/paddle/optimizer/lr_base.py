"""`LRScheduler`: a learning rate that `step` moves on, or that the program computes from a count of its steps.

Most schedules are one formula, `rate(epoch)`, for Python (`get_lr`) and for the program (`emit`).
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.scalars import Scalar, Symbol, cos, floor, where_less
from amp_transpiler.runtime.scope import global_scope

__all__ = ["LRScheduler", "check_positive", "check_rising", "cosine", "piecewise"]

logger = logging.getLogger(__name__)


class LRScheduler:
    """A learning rate that changes with the epoch, as `step` counts it.

    `step()` goes to the next epoch, be that a batch or a pass over the data; each run of a program uses the rate that
    `get_lr()` says before it. Given `steps_per_epoch`, the program counts its own steps instead, so that a file of it
    follows the schedule without Python.

    A subclass defines `get_lr()` from `self.last_epoch` and `self.base_lr`, or `rate`, a formula of plain arithmetic
    and the functions of `amp_transpiler.paddle.optimizer.scalars`, which a program can compute as well.

    Args:
        learning_rate: the base of the formula.
        last_epoch: the epoch before the one to start in; -1 to start in epoch 0.
        verbose: print a line in each `step`.
        steps_per_epoch: let the program count: so many of its steps make one epoch. None: `step` counts.

    Attributes:
        base_lr: the base of the formula.
        last_epoch: the epoch, from 0.
        last_lr: its rate.

    Raises:
        OptionError: `steps_per_epoch` is below 1, or the class has neither `get_lr` nor `rate`.
    """

    def __init__(
        self,
        learning_rate: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        self._set_up(learning_rate, last_epoch, verbose, steps_per_epoch)
        self.step()

    def _set_up(self, learning_rate: float, last_epoch: int, verbose: bool, steps_per_epoch: int | None) -> None:
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise OptionError(f"{type(self).__name__}: steps_per_epoch must be 1 or more, got {steps_per_epoch}")
        self.base_lr = self.last_lr = float(learning_rate)
        self.last_epoch = int(last_epoch)
        self.verbose = verbose
        self.steps_per_epoch = None if steps_per_epoch is None else int(steps_per_epoch)
        self.keys: list[str] = []
        self._counters: list[str] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}(epoch {self.last_epoch}: {self():g})"

    def __call__(self) -> float:
        """Return the rate that the next run uses."""
        return float(self.last_lr) if self.steps_per_epoch is None else self.get_lr()

    # In Python.

    def get_lr(self) -> float:
        """Return the learning rate of the epoch: of the next run.

        Where the program counts, and the global scope has its counter, that decides.
        """
        counted = self._counted()
        return self.lr_at(counted) if counted is not None else self._number(self.rate(float(self.last_epoch)))

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch. Where the program counts its own steps, its rate does not change, and the log says so.

        Args:
            epoch: the epoch to go to instead, from 0.
        """
        if self._counters:
            self._warn_of_counting()
        self.last_epoch = self.last_epoch + 1 if epoch is None else int(epoch)
        closed_form = getattr(self, "_get_closed_form_lr", None)  # Paddle's subclasses may have it
        self.last_lr = float(closed_form() if closed_form is not None and epoch is not None else self.get_lr())
        self._tell()

    def _tell(self) -> None:
        if self.verbose:
            sys.stdout.write(f"Epoch {self.last_epoch}: {type(self).__name__} set learning rate to {self.last_lr}.\n")

    def state_keys(self) -> None:
        """Set `self.keys`, the names of the attributes that `state_dict` returns; a subclass may have others."""
        self.keys = ["last_epoch", "last_lr"]

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule goes on from: keep it beside a checkpoint."""
        self.state_keys()
        state = {key: vars(self)[key] for key in self.keys if key in vars(self)}
        return {key: value.item() if isinstance(value, np.generic) else value for key, value in state.items()}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            InputError: something is missing.
        """
        self.state_keys()
        if missing := [key for key in self.keys if key not in state_dict]:
            raise InputError(
                f"{type(self).__name__}.set_state_dict: expected {', '.join(self.keys)}, got "
                f"{', '.join(map(str, state_dict)) or 'nothing'}: {', '.join(missing)} is missing"
            )
        vars(self).update({key: state_dict[key] for key in self.keys})

    set_dict = set_state_dict

    # In a program that counts.

    def rate(self, epoch: Scalar) -> Scalar:  # noqa: ARG002  # for those that have a formula
        """Return the learning rate in an epoch (a whole number, from 0).

        Raises:
            OptionError: there is no such formula.
        """
        name = type(self).__name__
        raise OptionError(
            f"{name} has no formula of the epoch that a program can compute: let step() drive the schedule, without "
            f"steps_per_epoch=; a class of your own defines get_lr() or rate(epoch)"
        )

    def at(self, steps: Scalar) -> Scalar:
        """Return the learning rate after this many steps, as a number or as a scalar of a program."""
        length = self.steps_per_epoch or 1
        return self.rate(floor(steps / length) if length > 1 else steps)

    def emit(self, builder: GraphBuilder, step_value: ir.Value) -> ir.Value:
        """Append the computation of the learning rate.

        Args:
            builder: appends to the program.
            step_value: the number of steps that it has taken, an int64 or float32 scalar.

        Returns:
            A float32 scalar.
        """
        rate = self.at(Symbol(builder, builder.cast(step_value, ir.DataType.FLOAT)))
        return rate.value if isinstance(rate, Symbol) else builder.constant(rate, ir.DataType.FLOAT)

    def lr_at(self, step: int) -> float:
        """Return the learning rate after `step` calls of `step`, or steps of a program that counts them."""
        return self._number(self.at(float(step)))

    @property
    def initial_step(self) -> int:
        """The step at which a program starts to count."""
        return self.last_epoch * (self.steps_per_epoch or 1)

    def count_in(self, name: str) -> None:
        """Let `get_lr` follow the steps that a program counts in this value of the global scope."""
        self._counters.append(name)

    def _counted(self) -> int | None:
        scope = global_scope()
        return next((int(scope[name]) for name in self._counters if name in scope), None)

    def _warn_of_counting(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s.step() does not change the rate of a program that counts its own steps, as steps_per_epoch=%d asks "
                "for: leave steps_per_epoch out for step() to drive it",
                type(self).__name__,
                self.steps_per_epoch,
            )

    _warned = False

    @staticmethod
    def _number(scalar: Scalar) -> float:
        assert not isinstance(scalar, Symbol)
        return float(scalar)


def piecewise(epoch: Scalar, boundaries: Sequence[int], values: Sequence[float]) -> Scalar:
    """Return `values[i]` for the first `i` with `epoch < boundaries[i]`, else the last value."""
    rate: Scalar = values[-1]
    for bound, value in reversed(list(zip(boundaries, values, strict=False))):
        rate = where_less(epoch, bound, value, rate)
    return rate


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
