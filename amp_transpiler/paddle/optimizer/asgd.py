"""ASGD: the average of the last gradient of each batch of an epoch."""

from __future__ import annotations

import dataclasses

import numpy as np

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Clip, Decay, Optimizer, Parameters, Rate
from amp_transpiler.paddle.optimizer.step import ParameterUpdate

__all__ = ["ASGD"]


@dataclasses.dataclass(eq=False)
class ASGD(Optimizer):
    """`d += gradient - (this batch's gradient an epoch ago); weight -= learning_rate * d / min(t, batch_num)`.

    It keeps `batch_num` gradients of each parameter. Other arguments are described at `Optimizer`.

    Args:
        learning_rate: a number, or a schedule.
        batch_num: the number of batches of an epoch.
    """

    learning_rate: Rate = 0.001
    batch_num: int = 1
    parameters: Parameters = None
    weight_decay: Decay = None
    grad_clip: Clip = None
    multi_precision: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_num < 1:
            raise OptionError(f"ASGD: batch_num must be 1 or more, got {self.batch_num}")

    def _update(self, update: ParameterUpdate) -> None:
        count, shape = self.batch_num, list(update.parameter.shape)
        total, step = update.accumulator("d"), update.accumulator("m", 0.0, ())
        held = update.accumulator("ys", shape=[count, *shape])
        numbers = held.constant(np.arange(count, dtype=np.float32).reshape(count, *[1] * len(shape)))
        place = step - (step / float(count)).op("Floor") * float(count)
        here = numbers.equals(place)
        old = here.where(held, 0.0).sum([0], keepdims=False)
        new = update.replace(total, "Add", total - old, update.gradient, kept=True)
        update.replace(held, "Where", here, update.gradient.unsqueeze(0), held, kept=True)
        taken = update.replace(step, "Add", step, 1.0, kept=True)
        update.replace_weight("Sub", update.weight, update.rate / taken.minimum(float(count)) * new)


check_arguments(globals(), __all__, but=["parameters"])
