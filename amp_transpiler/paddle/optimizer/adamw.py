"""Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.nn.clip import ClipGradBase
from amp_transpiler.paddle.optimizer.adam import Adam
from amp_transpiler.paddle.optimizer.lr import LRScheduler
from amp_transpiler.paddle.optimizer.step import Target, UpdateStep

__all__ = ["AdamW"]


class AdamW(Adam):
    """`weight *= 1 - learning_rate * weight_decay`, then Adam's update.

    A parameter's own regularizer acts on its gradient, beside the decay, as in Paddle.

    Args:
        learning_rate: a number, or a schedule.
        beta1: how much of the average gradient is kept.
        beta2: how much of the average squared gradient is kept.
        epsilon: keeps the division from blowing up.
        parameters: what to train; every trainable parameter unless given.
        weight_decay: a number.
        lr_ratio: from a parameter (a `Variable`) to a factor on its learning rate.
        apply_decay_param_fun: from a parameter's name to whether it decays; all do unless given.
        grad_clip: how gradients are clipped.
        lazy_mode: must be False: gradients are dense.
        multi_precision: keep float32 master weights of low parameters.
        amsgrad: must be False.
        name: Paddle's, not used.

    Raises:
        OptionError: an argument has no meaning here.
    """

    def __init__(  # Paddle's signature
        self,
        learning_rate: float | LRScheduler = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Sequence[Variable | str] | None = None,
        weight_decay: float = 0.01,
        lr_ratio: Callable[[Variable], float] | None = None,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        grad_clip: ClipGradBase | None = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        amsgrad: bool = False,
        name: str | None = None,
    ) -> None:
        if not isinstance(weight_decay, (int, float)):
            raise OptionError(f"AdamW: weight_decay must be a number, got {weight_decay!r}")
        super().__init__(
            learning_rate,
            beta1,
            beta2,
            epsilon,
            parameters,
            None,
            grad_clip,
            lazy_mode,
            multi_precision,
            amsgrad=amsgrad,
            name=name,
        )
        self._coeff = float(weight_decay)
        self._lr_ratio = lr_ratio
        self._apply_decay_param_fun = apply_decay_param_fun

    def _rate_factor(self, parameter: Variable) -> float:
        ratio = 1.0 if self._lr_ratio is None else float(self._lr_ratio(parameter))
        return super()._rate_factor(parameter) * ratio

    def _decayed(self, step: UpdateStep, target: Target) -> ir.Value:
        chosen = self._apply_decay_param_fun
        if not self._coeff or (chosen is not None and not chosen(target.parameter.name)):
            return target.weight
        b = step.builder
        return b.mul(target.weight, b.sub(1.0, b.mul(target.rate, self._coeff)))
