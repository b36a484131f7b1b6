"""LAMB: Adam's direction, with a step in proportion to each weight's norm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.adaptive import AdaptiveOptimizer
from amp_transpiler.paddle.optimizer.base import Clip, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate
from amp_transpiler.program.program import Variable

__all__ = ["Lamb"]


@dataclasses.dataclass(eq=False)
class Lamb(AdaptiveOptimizer):
    """`weight -= learning_rate * |weight| / |direction| * direction`.

    The direction is `m / (sqrt(v) + epsilon) + lamb_weight_decay * weight`, with `m` and `v` Adam's moments, corrected
    for their bias. Where one of the norms is 0 their ratio counts as 1.

    Args:
        learning_rate: see `Optimizer` and `AdaptiveOptimizer`, as for every argument that is not listed here.
        lamb_weight_decay: a number.
        exclude_from_weight_decay_fn: from a parameter (a `Variable`) to whether it does not decay.
        always_adapt: use the norms for parameters that do not decay, too.
    """

    learning_rate: Rate = 0.001
    lamb_weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    parameters: Parameters = None
    grad_clip: Clip = None
    exclude_from_weight_decay_fn: Callable[[Variable], bool] | None = None
    multi_precision: bool = False
    always_adapt: bool = False
    name: str | None = None

    def _update(self, update: ParameterUpdate) -> None:
        excluded = self.exclude_from_weight_decay_fn
        decay = 0.0 if excluded is not None and excluded(update.parameter) else float(self.lamb_weight_decay)
        moments = self._moments(update)
        weight, rate = update.weight, update.rate
        divisor = (moments.second / moments.bias_correction2).sqrt() + update.epsilon(self.epsilon)
        direction = moments.first / moments.bias_correction1 / divisor
        if decay:
            direction = direction + weight * decay
        if decay or self.always_adapt:
            rate = rate * _trust_ratio(weight, direction)
        update.replace_weight("Sub", weight, rate * direction)


def _trust_ratio(weight: Expr, direction: Expr) -> Expr:
    """Return `|weight| / |direction|`, or 1 where either is 0: a scalar."""
    of_weight, of_direction = ((x * x).sum(keepdims=False).sqrt() for x in (weight, direction))
    both = (of_weight > 0.0) & (of_direction > 0.0)
    # The division is made safe as well: Where computes both branches, and 0 / 0 would show up as NaN in a debugger.
    return both.where(of_weight / both.where(of_direction, 1.0), 1.0)


check_arguments(globals(), __all__, but=["parameters"])
