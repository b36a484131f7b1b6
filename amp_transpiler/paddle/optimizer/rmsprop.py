"""RMSProp: the gradient over the root of its average square."""

from __future__ import annotations

import dataclasses

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Optimizer, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["RMSProp"]


@dataclasses.dataclass(eq=False)
class RMSProp(Optimizer):
    """`velocity = momentum * velocity + learning_rate * gradient / sqrt(mean_square + epsilon); weight -= velocity`.

    `mean_square` is the average squared gradient, less the square of the average gradient if `centered`. A step whose
    gradients overflowed is taken with zeros, as in Paddle. Other arguments are described at `Optimizer`.

    Args:
        learning_rate: a number, or a schedule.
        rho: how much of the averages is kept in a step.
        momentum: how much of the velocity is kept.
        centered: whether the average gradient counts.
    """

    learning_rate: Rate
    rho: float = 0.95
    epsilon: float = 1e-6
    momentum: float = 0.0
    centered: bool = False
    parameters: Parameters = None
    weight_decay: Decay = None
    grad_clip: Clip = None
    multi_precision: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.rho < 1.0:
            raise OptionError(f"RMSProp: rho must be in [0, 1), got {self.rho}")

    def _update(self, update: ParameterUpdate) -> None:
        square, velocity = update.accumulator("mean_square"), update.accumulator("momentum")
        rho, gradient = update.factor(self.rho), update.gradient
        mean = update.replace(square, "Add", square * rho, gradient * gradient * (1.0 - self.rho))
        if self.centered:
            average = update.accumulator("mean_grad")
            average = update.replace(average, "Add", average * rho, gradient * (1.0 - self.rho))
            mean = mean - average * average
        change = update.rate * (gradient / (mean + update.epsilon(self.epsilon)).sqrt())
        velocity = update.replace(velocity, "Add", velocity * update.factor(self.momentum), change)
        update.replace_weight("Sub", update.weight, update.step.unless_skipped(velocity, 0.0))


check_arguments(globals(), __all__, but=["parameters"])
