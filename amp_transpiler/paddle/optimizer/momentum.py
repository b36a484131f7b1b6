"""Stochastic gradient descent with momentum."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Optimizer, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate
from amp_transpiler.paddle.regularizer import L2Decay
from amp_transpiler.program.program import Variable

__all__ = ["Momentum"]


@dataclasses.dataclass(eq=False)
class Momentum(Optimizer):
    """`velocity = momentum * velocity + gradient; weight -= learning_rate * velocity`.

    With Nesterov, `weight -= learning_rate * (gradient + momentum * velocity)`. A step whose gradients overflowed is
    taken with zeros: momentum and weight decay still act, as in Paddle.

    Args:
        learning_rate: see `Optimizer`, as for every argument that is not listed here.
        momentum: how much of the velocity is kept.
        use_nesterov: look ahead along the new velocity.
        rescale_grad: factor on the gradient before weight decay is added.
    """

    learning_rate: Rate = 0.001
    momentum: float = 0.9
    parameters: Parameters = None
    use_nesterov: bool = False
    weight_decay: Decay = None
    grad_clip: Clip = None
    multi_precision: bool = False
    rescale_grad: float = 1.0
    use_multi_tensor: bool = False
    name: str | None = None

    def _rescaled(self, builder: GraphBuilder, gradient: ir.Value) -> ir.Value:
        return builder.mul(gradient, self.rescale_grad) if self._rescales else gradient

    @property
    def _rescales(self) -> bool:
        return self.rescale_grad != 1.0

    def _operator_attributes(self, parameter: Variable) -> dict[str, float | str]:
        decay = self._regularizer_of(parameter)
        if not isinstance(decay, L2Decay):
            return {"regularization_method": "", "regularization_coeff": 0.0}
        return {"regularization_method": "l2_decay", "regularization_coeff": float(np.float32(decay.coeff))}

    def _update(self, update: ParameterUpdate) -> None:
        velocity = update.accumulator("velocity")
        direction = update.replace(velocity, "Add", velocity * update.factor(self.momentum), update.gradient)
        if self.use_nesterov:
            direction = update.gradient + direction * self.momentum
        update.replace_weight("Sub", update.weight, update.rate * direction)


check_arguments(globals(), __all__, but=["parameters"])
