"""RAdam: Adam that only trusts the average square once enough gradients are in it."""

from __future__ import annotations

import dataclasses

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.adaptive import AdaptiveOptimizer
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["RAdam"]


@dataclasses.dataclass(eq=False)
class RAdam(AdaptiveOptimizer):
    """Rectified Adam: `weight -= learning_rate * m / (1 - beta1**t)`, over `sqrt(v)` as soon as `rho > 5`.

    `rho` is how many gradients the average square is worth. The arguments are described at `AdaptiveOptimizer` and
    `Optimizer`.
    """

    learning_rate: Rate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    parameters: Parameters = None
    weight_decay: Decay = None
    grad_clip: Clip = None
    name: str | None = None
    multi_precision: bool = False

    def _update(self, update: ParameterUpdate) -> None:
        moments = self._moments(update)
        rho = self._rho(update)
        most = 2.0 / (1.0 - self.beta2) - 1.0
        trusted = rho > 5.0
        # Where computes both branches: the root must not see a negative number.
        worth = trusted.where(rho, 6.0)
        factor = (most / ((most - 4.0) * (most - 2.0))) * ((worth - 4.0) * (worth - 2.0) / worth)
        rectified = (factor * moments.bias_correction2).sqrt() / (moments.second.sqrt() + update.epsilon(self.epsilon))
        scale = trusted.where(rectified, 1.0)
        update.replace_weight("Sub", update.weight, update.rate / moments.bias_correction1 * (moments.first * scale))

    def _rho(self, update: ParameterUpdate) -> Expr:
        """Return `2 / (1 - beta2) - 1 - 2 * t * beta2**t / (1 - beta2**t)`.

        It is a small difference of large numbers. So it is written as `2 * d / ((1 - beta2) * s) - 1` with the sums
        `s = 1 + beta2 + ... + beta2**(t - 1)` and `d = s - t * beta2**t`, which grow by positive terms.
        """
        rest = 1.0 - self.beta2
        power = update.accumulator("rho_pow", 1.0, ())
        step, total, part = (update.accumulator(f"rho_{kind}", 0.0, ()) for kind in ("step", "sum", "part"))
        count = update.replace(step, "Add", step, 1.0, kept=True)
        total = update.replace(total, "Add", total, power, kept=True)
        part = update.replace(part, "Add", part, count * power * rest, kept=True)
        update.replace(power, "Mul", power, update.factor(self.beta2))
        return part / total * (2.0 / rest) - 1.0


check_arguments(globals(), __all__, but=["parameters"])
