"""Adagrad: the gradient over the root of the sum of all its squares."""

from __future__ import annotations

import dataclasses

from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Optimizer, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["Adagrad"]


@dataclasses.dataclass(eq=False)
class Adagrad(Optimizer):
    """`moment += gradient**2; weight -= learning_rate * gradient / (sqrt(moment) + epsilon)`.

    A step whose gradients overflowed is taken with zeros, as in Paddle. Other arguments are described at `Optimizer`.

    Args:
        learning_rate: a number, or a schedule.
        initial_accumulator_value: where the sum of squares starts.
    """

    learning_rate: Rate
    epsilon: float = 1e-6
    parameters: Parameters = None
    weight_decay: Decay = None
    grad_clip: Clip = None
    name: str | None = None
    initial_accumulator_value: float = 0.0
    multi_precision: bool = False

    def _update(self, update: ParameterUpdate) -> None:
        moment = update.accumulator("moment", float(self.initial_accumulator_value))
        gradient = update.gradient
        moment = update.replace(moment, "Add", moment, gradient * gradient)
        change = gradient / (moment.sqrt() + update.epsilon(self.epsilon))
        update.replace_weight("Sub", update.weight, update.rate * change)


check_arguments(globals(), __all__, but=["parameters"])
