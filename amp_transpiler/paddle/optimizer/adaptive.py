"""Updates the moments that Adam and its relatives share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable

import numpy as np

from amp_transpiler.autodiff.expression import Expr, Number
from amp_transpiler.paddle.optimizer.base import Optimizer
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["AdamRule", "AdaptiveOptimizer", "Moments"]

_MOST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True, slots=True)
class Moments:
    """Holds running averages of one parameter's gradients, this step's included.

    Attributes:
        first: average gradient.
        second: average squared gradient.
        bias_correction1: `1 - beta1**t`; `first` is too small by this factor, since it starts at 0.
        bias_correction2: `1 - beta2**t`, the same for `second`.
    """

    first: Expr
    second: Expr
    bias_correction1: Expr
    bias_correction2: Expr


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
        beta1, beta2 = update.factor(self.beta1), update.factor(self.beta2)
        of_first, of_second = self._shares(update)
        new_first = update.replace(first, "Add", first * beta1, of_first)
        new_second = update.replace(second, "Add", second * beta2, of_second)
        update.replace(power1, "Mul", power1, beta1)
        update.replace(power2, "Mul", power2, beta2)
        return Moments(new_first, new_second, 1.0 - power1, 1.0 - power2)

    def _shares(self, update: ParameterUpdate) -> tuple[Expr, Expr]:
        """Return what the gradient adds to its average, and to that of its square."""
        rest1, rest2 = 1.0 - update.number(self.beta1), 1.0 - update.number(self.beta2)
        if update.scale is None:
            gradient = update.gradient
            return gradient * rest1, gradient * gradient * rest2
        # One product less for large tensors: the root of the second share takes the inverse of the loss scale along.
        root_factor = rest2.sqrt() if isinstance(rest2, Expr) else math.sqrt(rest2)
        root = update.gradient_times(root_factor)
        return root * (rest1 / root_factor), root * root


class AdamRule(AdaptiveOptimizer):
    """Implements the update of Adam and AdamW, which differ in how the weight decays."""

    def _update(self, update: ParameterUpdate) -> None:
        moments = self._moments(update)
        second = self._largest(update, moments.second) if self.amsgrad else moments.second
        # The rate is part of the divisor, whose root is multiplied and shifted: on a device that is one kernel.
        slope = (moments.bias_correction1 * self._inverse_rate(update) / moments.bias_correction2.sqrt()).minimum(_MOST)
        shift = moments.bias_correction1 * self._divisor_at_zero(update)
        update.replace_weight("Sub", self._decayed(update), moments.first / (second.sqrt() * slope + shift))

    def _inverse_rate(self, update: ParameterUpdate) -> Expr:
        """Return 1 over the rate; infinite where that is 0, as in a step that is skipped."""
        rate = update.rate
        return update.step.shared((rate.value, "inverse"), lambda: 1.0 / rate)

    def _divisor_at_zero(self, update: ParameterUpdate) -> Expr:
        """Return epsilon over the rate; infinite where that is 0, so that the weight does not change."""
        rate, epsilon = update.rate, update.number(self.epsilon)

        def divided() -> Expr:
            quotient = self._inverse_rate(update) * epsilon
            is_positive = not isinstance(epsilon, Expr) and epsilon > 0  # then it is infinite of itself
            return quotient if is_positive else rate.equals(0.0).where(math.inf, quotient)

        return update.step.shared((rate.value, _key(epsilon), "divisor"), divided)

    def _largest(self, update: ParameterUpdate, second: Expr) -> Expr:
        """Return the largest average squared gradient so far, element by element."""
        held = update.accumulator("moment2_max")
        return update.replace(held, "Max", held, second)

    def _decayed(self, update: ParameterUpdate) -> Expr:
        """Return the weight that the change is subtracted from."""
        return update.weight


def _key(number: Number) -> Hashable:
    """Return what tells numbers and scalars apart."""
    return number.value if isinstance(number, Expr) else number
