"""Learning-rate schedules, computed inside the program from a counter of the steps that it has taken.

A schedule is one formula, `rate(epoch)`, for the program (`emit`) and for Python (`lr_at`). The program counts its
steps itself, so `scheduler.step()` is not needed. Paddle's scripts call it once an epoch; they give the schedule the
number of steps in an epoch as `steps_per_epoch=`.
"""

from __future__ import annotations

import abc
import itertools
import logging
import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.optimizer.scalars import Scalar, Symbol, ceil, cos, exp, floor, maximum, minimum, where_less

__all__ = [
    "CosineAnnealingDecay",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LRScheduler",
    "LambdaDecay",
    "LinearWarmup",
    "MultiStepDecay",
    "NaturalExpDecay",
    "NoamDecay",
    "OneCycleLR",
    "PiecewiseDecay",
    "PolynomialDecay",
    "StepDecay",
]

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
        self._warned = False
        if verbose:
            logger.warning(
                "%s: verbose prints nothing; fetch the variable 'learning_rate_0' instead", type(self).__name__
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(starts at {self.get_lr():g})"

    def __call__(self) -> float:
        """Return the learning rate of the first step."""
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
        """Return the learning rate of the first step."""
        return self.lr_at(self.initial_step)

    def step(self, epoch: int | None = None) -> None:  # noqa: ARG002  # Paddle's
        """Warn, once, that this does nothing: the program counts its steps itself."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s.step() does nothing: the program itself counts its good steps. %d of them make an epoch here; "
                "where the script calls step() once an epoch, give the schedule steps_per_epoch=STEPS_IN_AN_EPOCH",
                type(self).__name__,
                self.steps_per_epoch,
            )


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
        steps_per_epoch: int = 1,
    ) -> None:
        _positive("NoamDecay", d_model=d_model, warmup_steps=warmup_steps)
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
        steps_per_epoch: int = 1,
    ) -> None:
        if len(values) != len(boundaries) + 1:
            raise OptionError(
                f"PiecewiseDecay: {len(boundaries)} boundaries need {len(boundaries) + 1} values, got {len(values)}"
            )
        _rising("PiecewiseDecay", "boundaries", boundaries)
        self.boundaries = list(boundaries)
        self.values = [float(value) for value in values]
        super().__init__(self.values[0], last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        return _piecewise(epoch, self.boundaries, self.values)


class NaturalExpDecay(LRScheduler):
    """`learning_rate * e^(-gamma * epoch)`."""

    def __init__(
        self,
        learning_rate: float,
        gamma: float,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int = 1,
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
        steps_per_epoch: int = 1,
    ) -> None:
        _positive("PolynomialDecay", decay_steps=decay_steps, power=power)
        self.decay_steps = decay_steps
        self.end_lr = float(end_lr)
        self.power = power
        self.cycle = cycle
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        if self.cycle:
            left = 1.0 - epoch / (maximum(ceil(epoch / self.decay_steps), 1.0) * self.decay_steps)
        else:
            left = 1.0 - minimum(epoch, float(self.decay_steps)) / self.decay_steps
        # Rounding may leave a tiny negative number at the end, which has no fractional power.
        return (self.base_lr - self.end_lr) * maximum(left, 0.0) ** self.power + self.end_lr


class LinearWarmup(LRScheduler):
    """From `start_lr` straight to `end_lr` in `warmup_steps` epochs, then `learning_rate`.

    Args:
        learning_rate: a number, or a schedule whose steps are this one's epochs after the warm-up.
        warmup_steps: epochs of the warm-up.
        start_lr: the rate of epoch 0.
        end_lr: the rate that the warm-up leads to; above `start_lr`.
        last_epoch: the epoch before the one to start in.
        verbose: Paddle's.
        steps_per_epoch: steps of the program that make one epoch.
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
        steps_per_epoch: int = 1,
    ) -> None:
        _positive("LinearWarmup", warmup_steps=warmup_steps)
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
            # Both sides of a Where are computed, so the inner schedule must not see steps before its first.
            return where_less(
                epoch, self.warmup_steps, rising, after.at(maximum(epoch - float(self.warmup_steps), 0.0))
            )
        return where_less(epoch, self.warmup_steps, rising, after)


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
        steps_per_epoch: int = 1,
    ) -> None:
        _rising("MultiStepDecay", "milestones", milestones)
        self.milestones = list(milestones)
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        values = [self.base_lr * self.gamma**count for count in range(len(self.milestones) + 1)]
        return _piecewise(epoch, self.milestones, values)


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
        steps_per_epoch: int = 1,
    ) -> None:
        _positive("StepDecay", step_size=step_size)
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
        steps_per_epoch: int = 1,
    ) -> None:
        _positive("CosineAnnealingDecay", T_max=T_max)
        self.period = T_max
        self.eta_min = float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        return _cosine(self.base_lr, self.eta_min, epoch / self.period)


class OneCycleLR(LRScheduler):
    """Up from `max_learning_rate / divide_factor` to `max_learning_rate`, and down to `end_learning_rate`.

    Args:
        max_learning_rate: the peak.
        total_steps: epochs of the whole cycle; the last rate is kept after it.
        divide_factor: the peak over the first rate.
        end_learning_rate: the last rate.
        phase_pct: the part of the cycle that goes up.
        anneal_strategy: `cos` or `linear`.
        three_phase: come down to the first rate as fast as it went up, and only then to the last.
        last_epoch: the epoch before the one to start in.
        verbose: Paddle's.
        steps_per_epoch: steps of the program that make one epoch.
    """

    def __init__(  # Paddle's signature
        self,
        max_learning_rate: float,
        total_steps: int,
        divide_factor: float = 25.0,
        end_learning_rate: float = 0.0001,
        phase_pct: float = 0.3,
        anneal_strategy: str = "cos",
        three_phase: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int = 1,
    ) -> None:
        if anneal_strategy not in {"cos", "linear"}:
            raise OptionError(f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        _positive("OneCycleLR", total_steps=total_steps, divide_factor=divide_factor)
        first, peak, last = max_learning_rate / divide_factor, float(max_learning_rate), float(end_learning_rate)
        top, end = phase_pct * total_steps - 1.0, total_steps - 1.0
        self.corners = [(0.0, first), (top, peak), (end, last)]
        if three_phase:
            self.corners.insert(2, (2.0 * phase_pct * total_steps - 2.0, first))
        _rising("OneCycleLR", "the corners of the cycle (of total_steps and phase_pct)", [at for at, _ in self.corners])
        self.anneal_strategy = anneal_strategy
        super().__init__(first, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        found: Scalar = self.corners[-1][1]
        for (start, before), (stop, after) in reversed(list(itertools.pairwise(self.corners))):
            done = (epoch - start) / (stop - start)
            leg = _cosine(before, after, done) if self.anneal_strategy == "cos" else done * (after - before) + before
            found = where_less(epoch, stop, leg, found)
        return found


class LambdaDecay(LRScheduler):
    """Refused: a Python function cannot be part of a program.

    Raises:
        OptionError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002  # Paddle's signature
        raise OptionError(
            "LambdaDecay: a Python function cannot be part of an ONNX program. Use another schedule, subclass "
            "LRScheduler and give it rate(epoch), or call optimizer.set_lr(value) between runs"
        )

    def rate(self, epoch: Scalar) -> Scalar:
        """Never called."""
        raise NotImplementedError


def _piecewise(epoch: Scalar, boundaries: Sequence[int], values: Sequence[float]) -> Scalar:
    """Return `values[i]` for the first `i` with `epoch < boundaries[i]`, else the last value."""
    found: Scalar = values[-1]
    for bound, value in reversed(list(zip(boundaries, values, strict=False))):
        found = where_less(epoch, bound, value, found)
    return found


def _cosine(start: float, stop: float, done: Scalar) -> Scalar:
    """Return what lies between `start` (at `done` = 0) and `stop` (at 1) along half a cosine."""
    return (cos(done * math.pi) + 1.0) * ((start - stop) / 2.0) + stop


def _positive(schedule: str, **arguments: float) -> None:
    for name, value in arguments.items():
        if value <= 0:
            raise OptionError(f"{schedule}: {name} must be positive, got {value}")


def _rising(schedule: str, name: str, numbers: Sequence[float]) -> None:
    if any(b <= a for a, b in itertools.pairwise(numbers)):
        raise OptionError(f"{schedule}: {name} must rise, got {list(numbers)}")
