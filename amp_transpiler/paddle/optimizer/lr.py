"""Learning-rate schedules. `scheduler.step()` goes to the next epoch, after each run or after each pass over the data.

A schedule is one formula, `rate(epoch)`, for Python and for a program: given `steps_per_epoch=`, the program counts its
own steps and computes the rate from them, so that its file needs no Python.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.lr_base import LRScheduler, check_positive, check_rising, cosine, piecewise
from amp_transpiler.paddle.optimizer.lr_cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from amp_transpiler.paddle.optimizer.lr_driven import LambdaDecay, MultiplicativeDecay, ReduceOnPlateau
from amp_transpiler.paddle.optimizer.scalars import Scalar, Symbol, ceil, exp, floor, maximum, minimum, where_less

__all__ = [
    "CosineAnnealingDecay",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LRScheduler",
    "LambdaDecay",
    "LinearLR",
    "LinearWarmup",
    "MultiStepDecay",
    "MultiplicativeDecay",
    "NaturalExpDecay",
    "NoamDecay",
    "OneCycleLR",
    "PiecewiseDecay",
    "PolynomialDecay",
    "ReduceOnPlateau",
    "StepDecay",
]

_INNER = "LinearWarmup_LR"  # Paddle's key


class NoamDecay(LRScheduler):
    """`learning_rate * d_model^-0.5 * min(epoch^-0.5, epoch * warmup_steps^-1.5)`; 0 in epoch 0."""

    def __init__(
        self,
        d_model: int,
        warmup_steps: int,
        learning_rate: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        check_positive("NoamDecay", d_model=d_model, warmup_steps=warmup_steps)
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        rising = epoch * self.warmup_steps**-1.5
        falling = maximum(epoch, 1.0) ** -0.5  # 1 in epoch 0, as Paddle has it
        return minimum(falling, rising) * (self.base_lr / math.sqrt(self.d_model))


class PiecewiseDecay(LRScheduler):
    """`values[i]` up to, and without, epoch `boundaries[i]`; the last value from the last boundary on."""

    def __init__(
        self,
        boundaries: Sequence[int],
        values: Sequence[float],
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        if len(values) != len(boundaries) + 1:
            raise OptionError(
                f"PiecewiseDecay: {len(boundaries)} boundaries need {len(boundaries) + 1} values, got {len(values)}"
            )
        check_rising("PiecewiseDecay", "boundaries", boundaries)
        self.boundaries = list(boundaries)
        self.values = [float(value) for value in values]
        super().__init__(self.values[0], last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        return piecewise(epoch, self.boundaries, self.values)


class NaturalExpDecay(LRScheduler):
    """`learning_rate * e^(-gamma * epoch)`."""

    def __init__(
        self,
        learning_rate: float,
        gamma: float,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        return self.base_lr * exp(epoch * -self.gamma)


class InverseTimeDecay(NaturalExpDecay):
    """`learning_rate / (1 + gamma * epoch)`."""

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        return self.base_lr / (epoch * self.gamma + 1.0)


class ExponentialDecay(NaturalExpDecay):
    """`learning_rate * gamma^epoch`."""

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        return self.base_lr * self.gamma**epoch


class PolynomialDecay(LRScheduler):
    """From `learning_rate` to `end_lr` in `decay_steps` epochs, along `(1 - epoch / decay_steps)^power`.

    With `cycle`, `decay_steps` is replaced, each time it is reached, by its next multiple.
    """

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        end_lr: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        check_positive("PolynomialDecay", decay_steps=decay_steps, power=power)
        self.decay_steps = decay_steps
        self.end_lr = float(end_lr)
        self.power = power
        self.cycle = cycle
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        if self.cycle:
            remaining = 1.0 - epoch / (maximum(ceil(epoch / self.decay_steps), 1.0) * self.decay_steps)
        else:
            remaining = 1.0 - minimum(epoch, float(self.decay_steps)) / self.decay_steps
        # Rounding may leave a tiny negative number at the end, which has no fractional power.
        return (self.base_lr - self.end_lr) * maximum(remaining, 0.0) ** self.power + self.end_lr


class LinearWarmup(LRScheduler):
    """From `start_lr` straight to `end_lr` in `warmup_steps` epochs, then `learning_rate`.

    Args:
        learning_rate: a number, or a schedule whose epoch 0 is the first one after the warm-up. A `ReduceOnPlateau` is
            moved on by its own `step`.
        warmup_steps: epochs of the warm-up.
        start_lr: the rate of epoch 0.
        end_lr: the rate that the warm-up leads to; above `start_lr`.
        last_epoch: the epoch before the one to start in.
        verbose: print a line in each `step`.
        steps_per_epoch: let the program count: so many of its steps make one epoch.
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        check_positive("LinearWarmup", warmup_steps=warmup_steps)
        if end_lr <= start_lr:
            raise OptionError(f"LinearWarmup: end_lr must be above start_lr, got {end_lr} and {start_lr}")
        self.after = learning_rate if isinstance(learning_rate, LRScheduler) else float(learning_rate)
        self.warmup_steps = warmup_steps
        self.start_lr = float(start_lr)
        self.end_lr = float(end_lr)
        super().__init__(start_lr, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        rising = epoch * ((self.end_lr - self.start_lr) / self.warmup_steps) + self.start_lr
        after = self.after
        if isinstance(after, LRScheduler):
            if not isinstance(epoch, Symbol) and epoch < self.warmup_steps:
                return rising
            # Both sides of a Where are computed, so the inner schedule must not see steps before its first.
            return where_less(
                epoch, self.warmup_steps, rising, after.at(maximum(epoch - float(self.warmup_steps), 0.0))
            )
        return where_less(epoch, self.warmup_steps, rising, after)

    def get_lr(self) -> float:
        """Return the learning rate of the epoch: of the next run."""
        after, since = self.after, self.last_epoch - self.warmup_steps
        if self.steps_per_epoch is not None or since < 0 or not isinstance(after, LRScheduler):
            return super().get_lr()
        if not isinstance(after, ReduceOnPlateau):  # whose `step` takes a measured value
            after.step(since // (after.steps_per_epoch or 1))
        return after()

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule goes on from, with that of the schedule after the warm-up."""
        inner = {} if not isinstance(self.after, LRScheduler) else {_INNER: self.after.state_dict()}
        return {**super().state_dict(), **inner}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            InputError: something is missing.
        """
        super().set_state_dict(state_dict)
        if isinstance(self.after, LRScheduler):
            self.after.set_state_dict(state_dict.get(_INNER, {}))

    set_dict = set_state_dict


class MultiStepDecay(LRScheduler):
    """`learning_rate * gamma^(how many of the milestones are reached)`."""

    def __init__(
        self,
        learning_rate: float,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        check_rising("MultiStepDecay", "milestones", milestones)
        self.milestones = list(milestones)
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        values = [self.base_lr * self.gamma**count for count in range(len(self.milestones) + 1)]
        return piecewise(epoch, self.milestones, values)


class StepDecay(LRScheduler):
    """`learning_rate * gamma^floor(epoch / step_size)`."""

    def __init__(
        self,
        learning_rate: float,
        step_size: int,
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        check_positive("StepDecay", step_size=step_size)
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        return self.base_lr * self.gamma ** floor(epoch / self.step_size)


class CosineAnnealingDecay(LRScheduler):
    """`eta_min + (learning_rate - eta_min) * (1 + cos(pi * epoch / T_max)) / 2`."""

    def __init__(
        self,
        learning_rate: float,
        T_max: int,  # noqa: N803  # Paddle's name
        eta_min: float = 0.0,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        check_positive("CosineAnnealingDecay", T_max=T_max)
        self.period = T_max
        self.eta_min = float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        return cosine(self.base_lr, self.eta_min, epoch / self.period)


class LinearLR(LRScheduler):
    """From `learning_rate * start_factor` straight to `learning_rate * end_factor` in `total_steps` epochs."""

    def __init__(
        self,
        learning_rate: float,
        total_steps: int,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        check_positive("LinearLR", total_steps=total_steps)
        if not 0.0 < start_factor <= 1.0 or not 0.0 <= end_factor <= 1.0:
            raise OptionError(f"LinearLR: factors must be between 0 and 1, got {start_factor} and {end_factor}")
        self.total_steps = total_steps
        self.start_factor, self.end_factor = float(start_factor), float(end_factor)
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        done = minimum(epoch, float(self.total_steps)) / self.total_steps
        return (done * (self.end_factor - self.start_factor) + self.start_factor) * self.base_lr


check_arguments(globals(), __all__)
