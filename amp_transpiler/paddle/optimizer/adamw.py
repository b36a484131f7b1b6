"""Adam with decoupled weight decay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.adaptive import AdamRule
from amp_transpiler.paddle.optimizer.base import Clip, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate, Setting
from amp_transpiler.program.program import Variable

__all__ = ["AdamW"]


@dataclasses.dataclass(eq=False)
class AdamW(AdamRule):
    """`weight *= 1 - learning_rate * weight_decay`, then Adam's update.

    A parameter's own regularizer acts on its gradient, beside the decay, as in Paddle.

    Args:
        learning_rate: see `Optimizer` and `AdaptiveOptimizer`, as for every argument that is not listed here.
        weight_decay: a number.
        lr_ratio: from a parameter (a `Variable`) to a factor on its learning rate.
        apply_decay_param_fun: from a parameter's name to whether it decays; all do unless given.
    """

    learning_rate: Rate = 0.001
    beta1: Setting = 0.9
    beta2: Setting = 0.999
    epsilon: Setting = 1e-8
    parameters: Parameters = None
    weight_decay: float = 0.01
    lr_ratio: Callable[[Variable], float] | None = None
    apply_decay_param_fun: Callable[[str], bool] | None = None
    grad_clip: Clip = None
    lazy_mode: bool = False
    multi_precision: bool = False
    amsgrad: bool = False
    name: str | None = None

    @property
    def regularization(self) -> None:
        """None: the decay acts on the weight, not on its gradient."""
        return None

    def _rate_factor(self, parameter: Variable) -> float:
        ratio = 1.0 if self.lr_ratio is None else float(self.lr_ratio(parameter))
        return super()._rate_factor(parameter) * ratio

    def _decayed(self, update: ParameterUpdate) -> Expr:
        decays = self.apply_decay_param_fun
        if not self.weight_decay or (decays is not None and not decays(update.parameter.name)):
            return update.weight
        rate = update.rate
        return update.weight * update.step.shared((rate.value, "decay"), lambda: 1.0 - rate * self.weight_decay)


check_arguments(globals(), __all__, but=["parameters"])
