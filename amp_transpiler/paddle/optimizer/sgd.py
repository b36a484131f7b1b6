"""Stochastic gradient descent."""

from __future__ import annotations

from amp_transpiler.paddle.optimizer.base import Optimizer
from amp_transpiler.paddle.optimizer.step import Target, UpdateStep

__all__ = ["SGD"]


class SGD(Optimizer):
    """`weight -= learning_rate * gradient`. A step whose gradients overflowed is taken with zeros; see `Optimizer`."""

    def _update(self, step: UpdateStep, target: Target) -> None:
        step.replace_weight(target, "Sub", [target.weight, step.builder.mul(target.rate, target.gradient)])
