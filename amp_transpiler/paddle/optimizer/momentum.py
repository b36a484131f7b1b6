"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.nn.clip import ClipGradBase
from amp_transpiler.paddle.optimizer.base import Optimizer
from amp_transpiler.paddle.optimizer.lr import LRScheduler
from amp_transpiler.paddle.optimizer.step import Target, UpdateStep
from amp_transpiler.paddle.regularizer import WeightDecayRegularizer

__all__ = ["Momentum"]


class Momentum(Optimizer):
    """`velocity = momentum * velocity + gradient; weight -= learning_rate * velocity`.

    With Nesterov, `weight -= learning_rate * (gradient + momentum * velocity)`. A step whose gradients overflowed is
    taken with zeros: momentum and weight decay still act, as in Paddle.

    Args:
        learning_rate: a number, or a schedule.
        momentum: how much of the velocity is kept.
        parameters: what to train; every trainable parameter unless given.
        use_nesterov: look ahead along the new velocity.
        weight_decay: a number for `L2Decay`, or a regularizer.
        grad_clip: how gradients are clipped.
        multi_precision: keep float32 master weights of low parameters.
        rescale_grad: multiplied with the gradient before weight decay is added.
        use_multi_tensor: Paddle's choice of kernel; nothing depends on it.
        name: Paddle's, not used.
    """

    def __init__(  # Paddle's signature
        self,
        learning_rate: float | LRScheduler = 0.001,
        momentum: float = 0.9,
        parameters: Sequence[Variable | str] | None = None,
        use_nesterov: bool = False,
        weight_decay: float | WeightDecayRegularizer | None = None,
        grad_clip: ClipGradBase | None = None,
        multi_precision: bool = False,
        rescale_grad: float = 1.0,
        use_multi_tensor: bool = False,  # noqa: ARG002  # Paddle's
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, multi_precision, name)
        self._momentum = float(momentum)
        self._use_nesterov = bool(use_nesterov)
        self._rescale_grad = float(rescale_grad)

    def _rescaled(self, builder: GraphBuilder, gradient: ir.Value) -> ir.Value:
        return gradient if self._rescale_grad == 1.0 else builder.mul(gradient, self._rescale_grad)

    def _update(self, step: UpdateStep, target: Target) -> None:
        velocity = step.accumulator(target, "velocity")
        builder = step.builder
        kept = builder.mul(velocity, self._momentum)
        direction = step.replace(velocity, "Add", [kept, target.gradient])
        if self._use_nesterov:
            direction = builder.add(target.gradient, builder.mul(direction, self._momentum))
        step.replace_weight(target, "Sub", [target.weight, builder.mul(target.rate, direction)])
