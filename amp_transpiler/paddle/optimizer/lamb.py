"""LAMB: Adam's direction, with a step in proportion to each weight's norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.nn.clip import ClipGradBase
from amp_transpiler.paddle.optimizer.adam import AdaptiveOptimizer
from amp_transpiler.paddle.optimizer.lr import LRScheduler
from amp_transpiler.paddle.optimizer.step import Target, UpdateStep

__all__ = ["Lamb"]


class Lamb(AdaptiveOptimizer):
    """`weight -= learning_rate * |weight| / |direction| * direction`.

    The direction is `m / (sqrt(v) + epsilon) + lamb_weight_decay * weight`, with `m` and `v` Adam's moments divided by
    `1 - beta^t`. Where one of the norms is 0 their ratio counts as 1.

    Args:
        learning_rate: a number, or a schedule.
        lamb_weight_decay: a number.
        beta1: how much of the average gradient is kept.
        beta2: how much of the average squared gradient is kept.
        epsilon: keeps the division from blowing up.
        parameters: what to train; every trainable parameter unless given.
        grad_clip: how gradients are clipped.
        exclude_from_weight_decay_fn: from a parameter (a `Variable`) to whether it does not decay.
        multi_precision: keep float32 master weights of low parameters.
        always_adapt: use the norms for parameters that do not decay, too.
        name: Paddle's, not used.

    Raises:
        OptionError: an argument has no meaning here.
    """

    def __init__(  # Paddle's signature
        self,
        learning_rate: float | LRScheduler = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameters: Sequence[Variable | str] | None = None,
        grad_clip: ClipGradBase | None = None,
        exclude_from_weight_decay_fn: Callable[[Variable], bool] | None = None,
        multi_precision: bool = False,
        always_adapt: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__((beta1, beta2), epsilon, learning_rate, parameters, None, grad_clip, multi_precision, name)
        self._decay = float(lamb_weight_decay)
        self._excluded = exclude_from_weight_decay_fn
        self._always_adapt = bool(always_adapt)

    def _update(self, step: UpdateStep, target: Target) -> None:
        excluded = self._excluded is not None and self._excluded(target.parameter)
        decay = 0.0 if excluded else self._decay
        moments = self._moments(step, target)
        b, weight = step.builder, target.weight
        below = b.add(b.op("Sqrt", [b.div(moments.second, moments.left2)]), self._epsilon)
        direction = b.div(b.div(moments.first, moments.left1), below)
        if decay:
            direction = b.add(direction, b.mul(weight, decay))
        rate = target.rate
        if decay or self._always_adapt:
            rate = b.mul(rate, _trust_ratio(step, weight, direction))
        step.replace_weight(target, "Sub", [weight, b.mul(rate, direction)])


def _trust_ratio(step: UpdateStep, weight: ir.Value, direction: ir.Value) -> ir.Value:
    """Return `|weight| / |direction|`, or 1 where either is 0: a scalar."""
    b = step.builder
    of_weight, of_direction = (b.op("Sqrt", [b.sum(b.mul(x, x), keepdims=False)]) for x in (weight, direction))
    both = b.op("And", [b.compare("Greater", of_weight, 0.0), b.compare("Greater", of_direction, 0.0)])
    # The division is made safe as well: of the branches not taken, 0 / 0 would still show up as NaN in a debugger.
    return b.where(both, b.div(of_weight, b.where(both, of_direction, 1.0)), 1.0)
