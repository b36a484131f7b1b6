"""Records what `diagnose_training` has seen: losses, gradients by loss scale, tensors over the steps, and faults."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["Fault", "GradientRow", "LossRow", "TensorRow", "TrainingDiagnosis"]


@dataclasses.dataclass(frozen=True, slots=True)
class LossRow:
    """Records one step.

    Attributes:
        step: its number, from 1.
        loss: the loss.
        reference_loss: that of float32; None without a reference.
        loss_scale: the scale of the step; None if the loss is not scaled.
        overflowed: whether a gradient was not finite.
    """

    step: int
    loss: float
    reference_loss: float | None
    loss_scale: float | None
    overflowed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class GradientRow:
    """Describes the gradient of a parameter in the first step, at one loss scale.

    Attributes:
        parameter: its name.
        operator: Paddle's name of the operator that reads the parameter first.
        where: the function and line of the program that this operator comes from.
        loss_scale: the scale; None if the loss is not scaled.
        numel: how many numbers it has.
        non_finite: how many are infinite or NaN.
        zeros: how many are zero.
        vanished: how many are zero that float32 has not; without a reference, that the largest of the scales with
            finite gradients has not. None where there is nothing to compare with.
        largest: the largest magnitude, scaled; infinite if a number is not finite.
    """

    parameter: str
    operator: str
    where: str
    loss_scale: float | None
    numel: int
    non_finite: int
    zeros: int
    vanished: int | None
    largest: float

    @property
    def non_finite_share(self) -> float:
        """The share of numbers that are infinite or NaN."""
        return self.non_finite / self.numel if self.numel else 0.0

    @property
    def zero_share(self) -> float:
        """The share of zeros."""
        return self.zeros / self.numel if self.numel else 0.0

    @property
    def vanished_share(self) -> float:
        """The share of numbers that became zero; 0 where that is not known."""
        return (self.vanished or 0) / self.numel if self.numel else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class TensorRow:
    """Describes a tensor of the forward pass over the steps.

    Attributes:
        tensor: its name.
        operator: Paddle's name of the operator that makes it.
        where: the function and line of the program that this operator comes from.
        dtype: its format.
        first: the largest magnitude in the first step.
        last: the same in the last step.
        growth: by how much it is multiplied from step to step, on the average.
        error: the norm of its difference from float32 over float32's norm, in the step in which the losses part, or in
            the last one; None without a reference.
    """

    tensor: str
    operator: str
    where: str
    dtype: str
    first: float
    last: float
    growth: float
    error: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Describes what goes wrong.

    Attributes:
        kind: a gradient overflows in every step, a gradient becomes zero, the forward pass is not finite, the losses
            part, or a tensor grows from step to step until it leaves its format.
        name: the guilty parameter or tensor.
        sentence: what happens, where, and how much.
    """

    kind: Literal["overflow", "underflow", "not finite", "departure", "growth"]
    name: str
    sentence: str


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingDiagnosis:
    """Records the steps that `diagnose_training` has run.

    Attributes:
        faults: what goes wrong, the cause first.
        losses: a row for each step.
        gradients: a row for each loss scale and parameter.
        tensors: a row for each tensor of the forward pass, in its order.
    """

    faults: tuple[Fault, ...]
    losses: tuple[LossRow, ...]
    gradients: tuple[GradientRow, ...]
    tensors: tuple[TensorRow, ...]

    @property
    def guilty(self) -> str | None:
        """The parameter or tensor of the first fault; None without one."""
        return self.faults[0].name if self.faults else None

    def __str__(self) -> str:
        steps = f"{len(self.losses)} step{'s' * (len(self.losses) > 1)}"
        return "\n".join(fault.sentence for fault in self.faults) or f"{steps}: no fault"
