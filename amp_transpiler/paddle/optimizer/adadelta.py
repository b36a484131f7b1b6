"""Adadelta: steps as large as the average of those before."""

from __future__ import annotations

import dataclasses

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Optimizer, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["Adadelta"]


@dataclasses.dataclass(eq=False)
class Adadelta(Optimizer):
    """`change = sqrt((avg_change + epsilon) / (avg_square + epsilon)) * gradient; weight -= learning_rate * change`.

    The averages are of squared changes and of squared gradients. A step whose gradients overflowed is taken with zeros,
    as in Paddle. Other arguments are described at `Optimizer`.

    Args:
        learning_rate: a number, or a schedule.
        rho: how much of the averages is kept in a step.
    """

    learning_rate: Rate = 0.001
    epsilon: float = 1e-6
    rho: float = 0.95
    parameters: Parameters = None
    weight_decay: Decay = None
    grad_clip: Clip = None
    name: str | None = None
    multi_precision: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.rho < 1.0:
            raise OptionError(f"Adadelta: rho must be in [0, 1), got {self.rho}")

    def _update(self, update: ParameterUpdate) -> None:
        of_squares, of_changes = (update.accumulator(f"_avg_squared_{kind}") for kind in ("grad", "update"))
        rho, rest, gradient = update.factor(self.rho), 1.0 - self.rho, update.gradient
        mean = update.replace(of_squares, "Add", of_squares * rho, gradient * gradient * rest)
        epsilon = update.epsilon(self.epsilon)
        change = gradient * ((of_changes + epsilon).sqrt() / (mean + epsilon).sqrt())
        update.replace(of_changes, "Add", of_changes * rho, change * change * rest)
        update.replace_weight("Sub", update.weight, update.rate * change)


check_arguments(globals(), __all__, but=["parameters"])
