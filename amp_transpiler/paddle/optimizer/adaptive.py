"""The moments that Adam and its relatives share."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.paddle.optimizer.base import Optimizer
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["AdamRule", "AdaptiveOptimizer", "Moments"]


@dataclasses.dataclass(frozen=True, slots=True)
class Moments:
    """Running averages of one parameter's gradients, this step's included.

    Attributes:
        first: average gradient.
        second: average squared gradient.
        bias_correction1: `1 - beta1**t`; `first` is too small by this factor, since it starts at 0.
        bias_correction2: `1 - beta2**t`, the same for `second`.
    """

    first: ir.Value
    second: ir.Value
    bias_correction1: ir.Value
    bias_correction2: ir.Value


class AdaptiveOptimizer(Optimizer):
    """An optimizer that keeps running averages of gradients and of their squares.

    A step whose gradients are not finite is skipped: parameters, master weights, averages, powers of beta and the
    counter of a schedule stay as they were.
    """

    skips_on_overflow = True

    def _moments(self, update: ParameterUpdate) -> Moments:
        """Append the update of the averages and of the powers of beta."""
        first, second = update.accumulator("moment1"), update.accumulator("moment2")
        power1 = update.accumulator("beta1_pow_acc", self.beta1, ())
        power2 = update.accumulator("beta2_pow_acc", self.beta2, ())
        b, gradient = update.builder, update.gradient
        new_first = update.replace(first, "Add", b.mul(first, self.beta1), b.mul(gradient, 1.0 - self.beta1))
        square = b.mul(gradient, gradient)
        new_second = update.replace(second, "Add", b.mul(second, self.beta2), b.mul(square, 1.0 - self.beta2))
        update.replace(power1, "Mul", power1, self.beta1)
        update.replace(power2, "Mul", power2, self.beta2)
        return Moments(new_first, new_second, b.sub(1.0, power1), b.sub(1.0, power2))


class AdamRule(AdaptiveOptimizer):
    """The update of Adam and AdamW, which differ in how the weight decays."""

    def _update(self, update: ParameterUpdate) -> None:
        moments = self._moments(update)
        b = update.builder
        root = b.op("Sqrt", [moments.bias_correction2])
        rate = b.div(b.mul(update.rate, root), moments.bias_correction1)
        divisor = b.add(b.op("Sqrt", [moments.second]), b.mul(root, self.epsilon))
        change = b.mul(rate, b.div(moments.first, divisor))
        update.replace_weight("Sub", self._decayed(update), change)

    def _decayed(self, update: ParameterUpdate) -> ir.Value:
        """Return the weight that the change is subtracted from."""
        return update.weight
