"""Adam."""

from __future__ import annotations

import dataclasses

from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.adaptive import AdamRule
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import Setting

__all__ = ["Adam"]


@dataclasses.dataclass(eq=False)
class Adam(AdamRule):
    """`weight -= rate_t * moment1 / (sqrt(moment2) + epsilon * sqrt(1 - beta2**t))`.

    `rate_t` is `learning_rate * sqrt(1 - beta2**t) / (1 - beta1**t)`. Weight decay is part of the gradient. The
    arguments are described at `AdaptiveOptimizer` and `Optimizer`.
    """

    learning_rate: Rate = 0.001
    beta1: Setting = 0.9
    beta2: Setting = 0.999
    epsilon: Setting = 1e-8
    parameters: Parameters = None
    weight_decay: Decay = None
    grad_clip: Clip = None
    lazy_mode: bool = False
    multi_precision: bool = False
    use_multi_tensor: bool = False
    amsgrad: bool = False
    name: str | None = None


check_arguments(globals(), __all__, but=["parameters"])
