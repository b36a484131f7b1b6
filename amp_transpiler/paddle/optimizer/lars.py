"""LARS: momentum with a step in proportion to each weight's norm."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Optimizer, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["LarsMomentum"]


class LarsMomentum(Optimizer):
    """`velocity = momentum * velocity + rate * (gradient + lars_weight_decay * weight); weight -= velocity`.

    `rate` is `learning_rate * lars_coeff * |weight| / (|gradient| + lars_weight_decay * |weight| + epsilon)`, or
    `learning_rate` where the decay or one of the norms is 0.

    Args:
        learning_rate: a number, or a schedule.
        momentum: how much of the velocity is kept.
        lars_coeff: how large a step is in proportion to the weight.
        lars_weight_decay: a number.
        parameter_list: variables or names to train; all trainable ones unless given.
        regularization: a term of the gradient, beside the decay.
        grad_clip: how gradients are clipped.
        name: Paddle's, no effect.
        exclude_from_weight_decay: parameters with one of these words in their names do not decay.
        epsilon: keeps the divisor away from 0.
        multi_precision: update float32 master weights of low parameters.
        rescale_grad: factor on the gradient.
    """

    epsilon: float

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
        exclude_from_weight_decay: Sequence[str] | None = None,
        epsilon: float = 0.0,
        multi_precision: bool = False,
        rescale_grad: float = 1.0,
    ) -> None:
        del name
        self.learning_rate, self.parameters = learning_rate, parameter_list
        self.weight_decay, self.grad_clip = regularization, grad_clip
        self.multi_precision, self.epsilon = multi_precision, epsilon
        self.momentum, self.rescale_grad = float(momentum), float(rescale_grad)
        self.lars_coeff, self.lars_weight_decay = float(lars_coeff), float(lars_weight_decay)
        self.exclude_from_weight_decay = list(exclude_from_weight_decay or ())
        self.__post_init__()

    def __repr__(self) -> str:
        return f"LarsMomentum(learning_rate={self.learning_rate!r}, momentum={self.momentum})"

    def _rescaled(self, builder: GraphBuilder, gradient: ir.Value) -> ir.Value:
        return builder.mul(gradient, self.rescale_grad) if self._rescales else gradient

    @property
    def _rescales(self) -> bool:
        return self.rescale_grad != 1.0

    def _update(self, update: ParameterUpdate) -> None:
        excluded = any(word in update.parameter.name for word in self.exclude_from_weight_decay)
        decay = 0.0 if excluded else self.lars_weight_decay
        weight, gradient, rate = update.weight, update.gradient, update.rate
        if decay > 0.0:
            rate = rate * self._ratio(weight, gradient, decay)
            gradient = gradient + weight * decay
        velocity = update.accumulator("velocity")
        velocity = update.replace(velocity, "Add", velocity * update.factor(self.momentum), rate * gradient)
        update.replace_weight("Sub", weight, update.step.unless_skipped(velocity, 0.0))

    def _ratio(self, weight: Expr, gradient: Expr, decay: float) -> Expr:
        """Return the local rate over the learning rate: a scalar, 1 where a norm is 0."""
        of_weight, of_gradient = ((x * x).sum(keepdims=False).sqrt() for x in (weight, gradient))
        both = (of_weight > 0.0) & (of_gradient > 0.0)
        divisor = both.where(of_gradient + of_weight * decay + self.epsilon, 1.0)
        return both.where(of_weight * self.lars_coeff / divisor, 1.0)


check_arguments(globals(), __all__, but=["parameters"])
