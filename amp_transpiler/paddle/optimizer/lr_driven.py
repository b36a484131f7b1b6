"""Schedules that Python drives: their `step` sets the rate in the scope, from a measured value or a Python function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.lr_base import LRScheduler
from amp_transpiler.paddle.optimizer.scalars import Scalar, Symbol
from amp_transpiler.runtime.scope import Scope, global_scope

__all__ = ["DrivenScheduler", "LambdaDecay", "MultiplicativeDecay", "ReduceOnPlateau"]


class DrivenScheduler(LRScheduler):
    """A schedule that `step` moves on; the program keeps the rate as a value of the scope, as it does a number.

    Its own state is not part of a checkpoint: keep `state_dict()` beside it.
    """

    def __init__(self, learning_rate: float, last_epoch: int = -1, verbose: bool = False) -> None:
        super().__init__(learning_rate, -1, verbose)
        self.last_epoch = max(int(last_epoch), 0)
        self.last_lr = self.base_lr
        self._names: list[str] = []

    def follow(self, name: str) -> None:
        """Let `step` set this value of the scope, too."""
        self._names.append(name)

    def get_lr(self) -> float:
        """Return the current learning rate."""
        return self.last_lr

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the current learning rate.

        Raises:
            OptionError: another schedule asks for the rate in another epoch, which nobody knows.
        """
        if isinstance(epoch, Symbol):
            raise OptionError(f"{type(self).__name__} cannot be part of another schedule: Python drives it")
        return self.last_lr

    def _set(self, rate: float, scope: Scope | None) -> None:
        self.last_lr = float(rate)
        found = global_scope() if scope is None else scope
        for name in self._names:
            if name in found:
                found[name] = np.array(rate, np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that the schedule goes on from."""
        return {key: value for key, value in vars(self).items() if isinstance(value, (int, float)) and key[0] != "_"}

    def set_state_dict(self, state_dict: Mapping[str, Any], scope: Scope | None = None) -> None:
        """Go on from what `state_dict` returned, and set the rate in the scope.

        Raises:
            InputError: it has other numbers.
        """
        if set(state_dict) != set(self.state_dict()):
            raise InputError(
                f"{type(self).__name__}.set_state_dict: expected {', '.join(sorted(self.state_dict()))}, got "
                f"{', '.join(sorted(map(str, state_dict)))}"
            )
        vars(self).update(state_dict)
        self._set(self.last_lr, scope)

    set_dict = set_state_dict


class LambdaDecay(DrivenScheduler):
    """`learning_rate * lr_lambda(epoch)`; call `step()` after each epoch.

    Args:
        learning_rate: the factor.
        lr_lambda: a function of the epoch's number.
        last_epoch: the epoch before the one to start in.
        verbose: Paddle's.
    """

    def __init__(
        self, learning_rate: float, lr_lambda: Callable[[int], float], last_epoch: int = -1, verbose: bool = False
    ) -> None:
        if not callable(lr_lambda):
            raise OptionError(f"{type(self).__name__}: lr_lambda must be a function of the epoch, got {lr_lambda!r}")
        super().__init__(learning_rate, last_epoch + 1, verbose)
        self._function = lr_lambda
        self.last_lr = self._rate_of(self.last_epoch)

    def _rate_of(self, epoch: int) -> float:
        return self.base_lr * float(self._function(epoch))

    def step(self, epoch: int | None = None, scope: Scope | None = None) -> None:
        """Go to the next epoch, or to the one given, and set the rate in the scope (the global one unless given)."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else int(epoch)
        self._set(self._rate_of(self.last_epoch), scope)


class MultiplicativeDecay(LambdaDecay):
    """The rate of the epoch before times `lr_lambda(epoch)`; call `step()` after each epoch."""

    def _rate_of(self, epoch: int) -> float:
        return self.base_lr * math.prod(float(self._function(number)) for number in range(1, epoch + 1))


class ReduceOnPlateau(DrivenScheduler):
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
        verbose: Paddle's.

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
        super().__init__(learning_rate, -1, verbose)
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

    def step(  # type: ignore[override]  # Paddle's signature
        self, metrics: Any = None, epoch: int | None = None, scope: Scope | None = None
    ) -> None:
        """Take a measured value, such as a fetched loss, and set the rate in the scope (the global one unless given).

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
                self._set(lower, scope)

    def _is_better(self, value: float) -> bool:
        mode, kind, threshold, *_ = self._settings
        if not math.isfinite(self.best):
            return value < self.best if mode == "min" else value > self.best
        margin = threshold * self.best if kind == "rel" else threshold
        return value < self.best - margin if mode == "min" else value > self.best + margin


check_arguments(globals(), __all__)
