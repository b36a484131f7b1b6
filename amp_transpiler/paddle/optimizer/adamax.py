"""Adamax: Adam that divides by the largest recent gradient instead of the average squared one."""

from __future__ import annotations

import dataclasses

from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Optimizer, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["Adamax"]


@dataclasses.dataclass(eq=False)
class Adamax(Optimizer):
    """`inf_norm = max(beta2 * inf_norm + epsilon, |gradient|); weight -= rate_t * moment / inf_norm`.

    `moment` is the average gradient, `rate_t` is `learning_rate / (1 - beta1**t)`. A step whose gradients overflowed is
    taken with zeros, as in Paddle. The arguments are described at `Optimizer`.
    """

    learning_rate: Rate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    parameters: Parameters = None
    weight_decay: Decay = None
    grad_clip: Clip = None
    name: str | None = None

    def _update(self, update: ParameterUpdate) -> None:
        moment, inf_norm = update.accumulator("moment"), update.accumulator("inf_norm")
        power = update.accumulator("beta1_pow_acc", self.beta1, ())
        beta1, decayed = update.factor(self.beta1), inf_norm * self.beta2 + update.epsilon(self.epsilon)
        moment = update.replace(moment, "Add", moment * beta1, update.gradient * (1.0 - update.number(self.beta1)))
        inf_norm = update.replace(inf_norm, "Max", decayed, update.gradient.abs(), kept=True)
        update.replace(power, "Mul", power, beta1)
        update.replace_weight("Sub", update.weight, update.rate / (1.0 - power) * (moment / inf_norm))


check_arguments(globals(), __all__, but=["parameters"])
