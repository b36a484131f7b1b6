"""Schedules that only Python can compute: of a measured value, or a Python function of the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.lr_base import LRScheduler

__all__ = ["LambdaDecay", "MultiplicativeDecay", "ReduceOnPlateau"]


class LambdaDecay(LRScheduler):
    """`learning_rate * lr_lambda(epoch)`.

    Args:
        learning_rate: the factor.
        lr_lambda: a function of the epoch's number.
        last_epoch: the epoch before the one to start in.
        verbose: print a line in each `step`.
    """

    def __init__(
        self, learning_rate: float, lr_lambda: Callable[[int], float], last_epoch: int = -1, verbose: bool = False
    ) -> None:
        if not callable(lr_lambda):
            raise OptionError(f"{type(self).__name__}: lr_lambda must be a function of the epoch, got {lr_lambda!r}")
        self.lr_lambda = lr_lambda
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """Return the learning rate of the epoch: of the next run."""
        return self.base_lr * float(self.lr_lambda(self.last_epoch))


class MultiplicativeDecay(LambdaDecay):
    """The rate of the epoch before times `lr_lambda(epoch)`."""

    def get_lr(self) -> float:
        """Return the learning rate of the epoch: of the next run."""
        return self.base_lr * math.prod(float(self.lr_lambda(number)) for number in range(1, self.last_epoch + 1))


class ReduceOnPlateau(LRScheduler):
    """The rate times `factor` once a measured value has not become better for `patience` steps in a row.

    Args:
        learning_rate: the first rate.
        mode: `min` if small values are good, `max` if large ones are.
        factor: by which the rate shrinks.
        patience: how many steps without progress are accepted.
        threshold: by how much a value must be better.
        threshold_mode: `rel`: as a part of the best value; `abs`: as a number.
        cooldown: steps after a reduction that do not count.
        min_lr: the least rate.
        epsilon: smaller changes of the rate are left out.
        verbose: print a line where the rate changes.

    Raises:
        OptionError: a mode that does not exist, or a factor of 1 or more.
    """

    def __init__(
        self,
        learning_rate: float,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        epsilon: float = 1e-8,
        verbose: bool = False,
    ) -> None:
        self._set_up(learning_rate, 0, verbose, None)  # and no `step`, which takes a measured value
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise OptionError(
                f"ReduceOnPlateau: mode must be 'min' or 'max' and threshold_mode 'rel' or 'abs', got {mode!r} and "
                f"{threshold_mode!r}"
            )
        if factor >= 1.0:
            raise OptionError(f"ReduceOnPlateau: factor must be below 1, got {factor}")
        self._settings = mode, threshold_mode, float(threshold), float(factor), float(min_lr), float(epsilon)
        self._patience, self._cooldown = patience, cooldown
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0

    def get_lr(self) -> float:
        """Return the learning rate of the next run."""
        return self.last_lr

    def state_keys(self) -> None:
        """Set `self.keys`, the names of the attributes that `state_dict` returns."""
        self.keys = ["cooldown_counter", "best", "num_bad_epochs", "last_epoch", "last_lr"]

    def step(  # type: ignore[override]  # Paddle's signature
        self, metrics: Any = None, epoch: int | None = None
    ) -> None:
        """Take a measured value, such as a fetched loss.

        Raises:
            InputError: it is not one number.
        """
        value = np.asarray(metrics)
        if metrics is None or value.size != 1:
            raise InputError(f"ReduceOnPlateau.step takes one measured number, such as the loss, got {metrics!r}")
        number = float(value.reshape(()))
        self.last_epoch = self.last_epoch + 1 if epoch is None else int(epoch)
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            return
        if self._is_better(number):
            self.best, self.num_bad_epochs = number, 0
        else:
            self.num_bad_epochs += 1
        if self.num_bad_epochs > self._patience:
            self.cooldown_counter, self.num_bad_epochs = self._cooldown, 0
            *_, factor, least, epsilon = self._settings
            lower = max(self.last_lr * factor, least)
            if self.last_lr - lower > epsilon:
                self.last_lr = lower
                self._tell()

    def _is_better(self, value: float) -> bool:
        mode, kind, threshold, *_ = self._settings
        if not math.isfinite(self.best):
            return value < self.best if mode == "min" else value > self.best
        margin = threshold * self.best if kind == "rel" else threshold
        return value < self.best - margin if mode == "min" else value > self.best + margin


check_arguments(globals(), __all__)
