"""Rprop: steps by the sign of the gradient only, with a rate for each element."""

from __future__ import annotations

import dataclasses

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Clip, Optimizer, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["Rprop"]


@dataclasses.dataclass(eq=False)
class Rprop(Optimizer):
    """`weight -= rate * sign(gradient)`, where each element's rate grows while its gradient keeps its sign.

    Where the sign changed, the rate shrinks and the element stays. For whole data sets, not for batches. Other
    arguments are described at `Optimizer`.

    Args:
        learning_rate: where the rates start; a number.
        learning_rate_range: the least and the largest rate.
        etas: the factors by which a rate shrinks and grows.
    """

    learning_rate: Rate = 0.001
    learning_rate_range: tuple[float, float] = (1e-5, 50.0)
    parameters: Parameters = None
    etas: tuple[float, float] = (0.5, 1.2)
    grad_clip: Clip = None
    multi_precision: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        least, most = self.learning_rate_range
        if not isinstance(self.learning_rate, (int, float)) or not 0.0 < least <= self.learning_rate <= most:
            raise OptionError(
                f"Rprop: learning_rate must be a number inside learning_rate_range {self.learning_rate_range}, got "
                f"{self.learning_rate!r}"
            )
        if not 0.0 < self.etas[0] < 1.0 < self.etas[1]:
            raise OptionError(f"Rprop: etas must be a number below 1 and one above 1, got {self.etas}")

    def _update(self, update: ParameterUpdate) -> None:
        before, rates = update.accumulator("prevs"), update.accumulator("learning_rates", self.get_lr())
        gradient, (least, most), (shrink, grow) = update.gradient, self.learning_rate_range, self.etas
        agreement = before * gradient
        changed = agreement < 0.0
        turned = changed.where((rates * shrink).maximum(least), rates)
        rates = update.replace(rates, "Where", agreement > 0.0, (rates * grow).minimum(most), turned)
        used = changed.where(0.0, gradient)
        update.replace(before, "Identity", used, kept=True)
        update.replace_weight("Sub", update.weight, rates * used.sign())


check_arguments(globals(), __all__, but=["parameters"])
