"""NAdam: Adam that looks ahead along its average gradient."""

from __future__ import annotations

import dataclasses

from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.adaptive import AdaptiveOptimizer
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["NAdam"]

_DECAY = 0.96


@dataclasses.dataclass(eq=False)
class NAdam(AdaptiveOptimizer):
    """Adam with Nesterov momentum, whose share `mu` of the average grows from step to step.

    `mu = beta1 * (1 - 0.96**(t * momentum_decay) / 2)`. The arguments are described at `AdaptiveOptimizer` and
    `Optimizer`.

    Args:
        learning_rate: a number, or a schedule.
        momentum_decay: how fast `mu` grows.
    """

    learning_rate: Rate = 0.002
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    momentum_decay: float = 0.004
    parameters: Parameters = None
    weight_decay: Decay = None
    grad_clip: Clip = None
    name: str | None = None
    multi_precision: bool = False

    def _update(self, update: ParameterUpdate) -> None:
        first, second = update.accumulator("moment1"), update.accumulator("moment2")
        decayed = update.accumulator("momentum_decay_pow", _DECAY**self.momentum_decay, ())
        power2 = update.accumulator("beta2_pow", self.beta2, ())
        product = update.accumulator("mu_product", 1.0, ())
        mu = self.beta1 - decayed * (0.5 * self.beta1)
        next_mu = self.beta1 - decayed * (0.5 * self.beta1 * _DECAY**self.momentum_decay)
        so_far = update.replace(product, "Mul", product, mu, kept=True)
        of_first, of_second = self._shares(update)
        first = update.replace(first, "Add", first * update.factor(self.beta1), of_first)
        second = update.replace(second, "Add", second * update.factor(self.beta2), of_second)
        update.replace(decayed, "Mul", decayed, update.factor(_DECAY**self.momentum_decay))
        update.replace(power2, "Mul", power2, update.factor(self.beta2))
        ahead = first * (next_mu / (1.0 - so_far * next_mu)) + update.gradient * ((1.0 - mu) / (1.0 - so_far))
        divisor = (second / (1.0 - power2)).sqrt() + update.epsilon(self.epsilon)
        update.replace_weight("Sub", update.weight, update.rate * (ahead / divisor))


check_arguments(globals(), __all__, but=["parameters"])
