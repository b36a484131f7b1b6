"""Adam, and the moments that its relatives share with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.nn.clip import ClipGradBase
from amp_transpiler.paddle.optimizer.base import Optimizer
from amp_transpiler.paddle.optimizer.lr import LRScheduler
from amp_transpiler.paddle.optimizer.step import Target, UpdateStep
from amp_transpiler.paddle.regularizer import WeightDecayRegularizer

__all__ = ["Adam", "AdaptiveOptimizer", "Moments"]


@dataclasses.dataclass(frozen=True, slots=True)
class Moments:
    """Running averages of one parameter's gradients, this step's included.

    Attributes:
        first: of the gradient.
        second: of its square.
        left1: `1 - beta1^t`, what the first one is too small by.
        left2: `1 - beta2^t`, what the second one is too small by.
    """

    first: ir.Value
    second: ir.Value
    left1: ir.Value
    left2: ir.Value


class AdaptiveOptimizer(Optimizer):
    """An optimizer that keeps running averages of gradients and of their squares.

    A step whose gradients are not finite leaves parameters, masters, averages, powers of beta and the counter of a
    schedule as they were.
    """

    skips_on_overflow = True

    def __init__(
        self,
        betas: tuple[float, float],
        epsilon: float,
        learning_rate: float | LRScheduler,
        parameters: Sequence[Variable | str] | None,
        weight_decay: float | WeightDecayRegularizer | None,
        grad_clip: ClipGradBase | None,
        multi_precision: bool,
        name: str | None,
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, multi_precision, name)
        for number, beta in enumerate(betas, 1):
            if not 0.0 <= beta < 1.0:
                raise OptionError(f"{type(self).__name__}: beta{number} must be in [0, 1), got {beta}")
        if epsilon < 0.0:
            raise OptionError(f"{type(self).__name__}: epsilon must not be negative, got {epsilon}")
        self._beta1, self._beta2 = (float(beta) for beta in betas)
        self._epsilon = float(epsilon)

    def _moments(self, step: UpdateStep, target: Target) -> Moments:
        """Append the update of the averages and of the powers of beta."""
        beta1, beta2, gradient = self._beta1, self._beta2, target.gradient
        first = step.accumulator(target, "moment1")
        second = step.accumulator(target, "moment2")
        power1 = step.accumulator(target, "beta1_pow_acc", beta1, ())
        power2 = step.accumulator(target, "beta2_pow_acc", beta2, ())
        b = step.builder
        new_first = step.replace(first, "Add", [b.mul(first, beta1), b.mul(gradient, 1.0 - beta1)])
        square = b.mul(gradient, gradient)
        new_second = step.replace(second, "Add", [b.mul(second, beta2), b.mul(square, 1.0 - beta2)])
        step.replace(power1, "Mul", [power1, beta1])
        step.replace(power2, "Mul", [power2, beta2])
        return Moments(new_first, new_second, b.sub(1.0, power1), b.sub(1.0, power2))


class Adam(AdaptiveOptimizer):
    """`weight -= rate_t * moment1 / (sqrt(moment2) + epsilon * sqrt(1 - beta2^t))`.

    `rate_t` is `learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)`. Weight decay is part of the gradient.

    Args:
        learning_rate: a number, or a schedule.
        beta1: how much of the average gradient is kept.
        beta2: how much of the average squared gradient is kept.
        epsilon: keeps the division from blowing up.
        parameters: what to train; every trainable parameter unless given.
        weight_decay: a number for `L2Decay`, or a regularizer.
        grad_clip: how gradients are clipped.
        lazy_mode: must be False: gradients are dense.
        multi_precision: keep float32 master weights of low parameters.
        use_multi_tensor: Paddle's choice of kernel; nothing depends on it.
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
        weight_decay: float | WeightDecayRegularizer | None = None,
        grad_clip: ClipGradBase | None = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        use_multi_tensor: bool = False,  # noqa: ARG002  # Paddle's
        amsgrad: bool = False,
        name: str | None = None,
    ) -> None:
        if lazy_mode:
            raise OptionError(
                f"{type(self).__name__}: lazy_mode=True updates only the rows that a sparse gradient has, and "
                "gradients are dense here; leave it out"
            )
        if amsgrad:
            raise OptionError(f"{type(self).__name__}: amsgrad=True is not available; leave it out")
        super().__init__(
            (beta1, beta2), epsilon, learning_rate, parameters, weight_decay, grad_clip, multi_precision, name
        )

    def _update(self, step: UpdateStep, target: Target) -> None:
        moments = self._moments(step, target)
        b = step.builder
        root = b.op("Sqrt", [moments.left2])
        rate = b.div(b.mul(target.rate, root), moments.left1)
        below = b.add(b.op("Sqrt", [moments.second]), b.mul(root, self._epsilon))
        change = b.mul(rate, b.div(moments.first, below))
        step.replace_weight(target, "Sub", [self._decayed(step, target), change])

    def _decayed(self, step: UpdateStep, target: Target) -> ir.Value:  # noqa: ARG002  # for AdamW
        """Return the weight that the change is taken from."""
        return target.weight
