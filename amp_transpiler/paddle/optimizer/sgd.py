"""Stochastic gradient descent."""

from __future__ import annotations

import dataclasses

from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Optimizer, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["SGD"]


@dataclasses.dataclass(eq=False)
class SGD(Optimizer):
    """`weight -= learning_rate * gradient`. A step whose gradients overflowed is taken with zeros, as in Paddle."""

    learning_rate: Rate = 0.001
    parameters: Parameters = None
    weight_decay: Decay = None
    grad_clip: Clip = None
    multi_precision: bool = False
    name: str | None = None

    def _update(self, update: ParameterUpdate) -> None:
        update.replace_weight("Sub", update.weight, update.gradient_times(update.rate))


check_arguments(globals(), __all__, but=["parameters"])
