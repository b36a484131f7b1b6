"""Schedules that go up and down: one cycle, several, and restarts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.lr_base import LRScheduler, check_positive, check_rising, cosine
from amp_transpiler.paddle.optimizer.scalars import Scalar, floor, log, minimum, where_less

__all__ = ["CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR"]


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
        verbose: print a line in each `step`.
        steps_per_epoch: let the program count: so many of its steps make one epoch.
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
        steps_per_epoch: int | None = None,
    ) -> None:
        if anneal_strategy not in {"cos", "linear"}:
            raise OptionError(f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        check_positive("OneCycleLR", total_steps=total_steps, divide_factor=divide_factor)
        first, peak, last = max_learning_rate / divide_factor, float(max_learning_rate), float(end_learning_rate)
        top, end = phase_pct * total_steps - 1.0, total_steps - 1.0
        self.corners = [(0.0, first), (top, peak), (end, last)]
        if three_phase:
            self.corners.insert(2, (2.0 * phase_pct * total_steps - 2.0, first))
        check_rising(
            "OneCycleLR", "the corners of the cycle (of total_steps and phase_pct)", [at for at, _ in self.corners]
        )
        self.anneal_strategy = anneal_strategy
        super().__init__(first, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        value: Scalar = self.corners[-1][1]
        for (start, before), (stop, after) in reversed(list(itertools.pairwise(self.corners))):
            done = (epoch - start) / (stop - start)
            leg = cosine(before, after, done) if self.anneal_strategy == "cos" else done * (after - before) + before
            value = where_less(epoch, stop, leg, value)
        return value


class CyclicLR(LRScheduler):
    """Up and down between two rates, again and again.

    Args:
        base_learning_rate: the lower rate.
        max_learning_rate: the upper rate.
        step_size_up: epochs of the way up.
        step_size_down: epochs of the way down; as many unless given.
        mode: `triangular`: every cycle alike; `triangular2`: each half as high as the one before; `exp_range`: as high
            as `exp_gamma**epoch`.
        exp_gamma: see `mode`.
        scale_fn: a function of the cycle's number, from 1, or of the epoch, instead of `mode`: how high a cycle is. It
            is called with a scalar of the program, so it is made of plain arithmetic.
        scale_mode: `cycle` or `iterations`: what `scale_fn` is a function of.
        last_epoch: the epoch before the one to start in.
        verbose: print a line in each `step`.
        steps_per_epoch: let the program count: so many of its steps make one epoch.
    """

    def __init__(
        self,
        base_learning_rate: float,
        max_learning_rate: float,
        step_size_up: int,
        step_size_down: int | None = None,
        mode: str = "triangular",
        exp_gamma: float = 1.0,
        scale_fn: Callable[[Scalar], Scalar] | None = None,
        scale_mode: str = "cycle",
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        down = step_size_up if step_size_down is None else step_size_down
        check_positive(
            "CyclicLR", base_learning_rate=base_learning_rate, step_size_up=step_size_up, step_size_down=down
        )
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise OptionError(f"CyclicLR: mode must be 'triangular', 'triangular2' or 'exp_range', got {mode!r}")
        if scale_mode not in ("cycle", "iterations"):
            raise OptionError(f"CyclicLR: scale_mode must be 'cycle' or 'iterations', got {scale_mode!r}")
        self.height = float(max_learning_rate) - float(base_learning_rate)
        self.cycle_size, self.part_up = float(step_size_up + down), step_size_up / (step_size_up + down)
        self.mode, self.exp_gamma, self.scale_fn, self.scale_mode = mode, float(exp_gamma), scale_fn, scale_mode
        super().__init__(base_learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        before = floor(epoch / self.cycle_size)  # cycles that are over
        done = epoch / self.cycle_size - before
        share = minimum(done / self.part_up, (1.0 - done) / (1.0 - self.part_up))
        return share * self.height * self._scale(before, epoch) + self.base_lr

    def _scale(self, before: Scalar, epoch: Scalar) -> Scalar:
        if self.scale_fn is not None:
            return self.scale_fn(before + 1.0 if self.scale_mode == "cycle" else epoch)
        if self.mode == "triangular":
            return 1.0
        return 0.5**before if self.mode == "triangular2" else self.exp_gamma**epoch


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from `learning_rate` down to `eta_min`, again and again, each `T_mult` times as long.

    Args:
        learning_rate: where each one starts.
        T_0: epochs of the first one.
        T_mult: the length of each one over that of the one before.
        eta_min: where each one ends.
        last_epoch: the epoch before the one to start in.
        verbose: print a line in each `step`.
        steps_per_epoch: let the program count: so many of its steps make one epoch.
    """

    def __init__(
        self,
        learning_rate: float,
        T_0: int,  # noqa: N803  # Paddle's name
        T_mult: int = 1,  # noqa: N803  # likewise
        eta_min: float = 0.0,
        last_epoch: int = -1,
        verbose: bool = False,
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        check_positive("CosineAnnealingWarmRestarts", T_0=T_0, T_mult=T_mult)
        self.first, self.factor, self.eta_min = float(T_0), float(T_mult), float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose, steps_per_epoch=steps_per_epoch)

    def rate(self, epoch: Scalar) -> Scalar:
        """Return the learning rate in an epoch."""
        if self.factor == 1.0:
            done = epoch / self.first - floor(epoch / self.first)
            return cosine(self.base_lr, self.eta_min, done)
        # Half an epoch more: at a restart, rounding must not decide.
        grown = (epoch + 0.5) * ((self.factor - 1.0) / self.first) + 1.0
        times = floor(log(grown) / log(self.factor))
        length = floor(self.factor**times + 0.5)
        start = (length - 1.0) * (self.first / (self.factor - 1.0))
        return cosine(self.base_lr, self.eta_min, (epoch - start) / (length * self.first))


check_arguments(globals(), __all__)
