"""Watches training steps: losses, tensors over the steps, where they depart from float32, gradients by loss scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np

from amp_transpiler.paddle.amp.diagnosis_rows import GradientRow, LossRow, TensorRow
from amp_transpiler.paddle.amp.side_by_side import Feed, Side, largest, relative_error
from amp_transpiler.runtime.scope import Scope

__all__ = ["Steps", "gradient_rows", "largest_of"]

_ROUNDINGS = 16  # a value departs by more than this many roundings of the lowest format


class Steps:
    """Runs the steps of one side, or of both, and keeps numbers of what they compute.

    Args:
        low: the program.
        wide: the program in float32; None to compare with nothing.
        tolerance: the relative difference from which something departs; by the lowest format unless given.

    Attributes:
        low: the program.
        wide: the program in float32.
        losses: a row for each step.
        tolerance: see above.
        parted: the step in which the losses part; None if they do not.
        errors: tensor or parameter -> its relative difference from float32 in that step, or else in the last one.
        formats: tensor -> its format.
        maxima: tensor -> the largest magnitude in each step.
    """

    def __init__(self, low: Side, wide: Side | None, tolerance: float | None) -> None:
        self.low, self.wide, self._asked = low, wide, tolerance
        self.losses: list[LossRow] = []
        self.parted: int | None = None
        self.errors: dict[str, float] = {}
        self.formats: dict[str, np.dtype] = {}
        self.maxima: dict[str, list[float]] = {name: [] for name in low.tensors}

    @property
    def tolerance(self) -> float:
        """The relative difference from which something departs."""
        if self._asked is not None:
            return self._asked
        return _ROUNDINGS * max((_rounding(dtype) for dtype in self.formats.values()), default=0.0)

    def run(self, feed: Feed) -> None:
        """Run the next step."""
        before = self.low.scope.shared_copy()
        values = self.low.step(feed)
        for name, maxima in self.maxima.items():
            self.formats[name] = values[name].dtype
            maxima.append(largest(values[name]))
        scale = float(values[self.low.scales[0]].item()) if self.low.scales else None
        overflowed = not all(math.isfinite(largest(values[name])) for name in self.low.gradients.values())
        loss, step = _number(values[self.low.loss]), len(self.losses) + 1
        if self.wide is None:
            self.losses.append(LossRow(step, loss, None, scale, overflowed))
            return
        wide_before = self.wide.scope.shared_copy()
        exact = self.wide.step(feed)
        row = LossRow(step, loss, _number(exact[self.wide.loss]), scale, overflowed)
        self.losses.append(row)
        if self.parted is None:
            self.errors = self._errors(values, exact, before, wide_before)
            self.parted = step if _parts(row, self.tolerance) else None
        if overflowed and scale is not None:
            self.wide.step_back(wide_before, self.low.scope)

    def _errors(
        self, values: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], before: Scope, wide_before: Scope
    ) -> dict[str, float]:
        """Return how far tensors and parameters of a step are from float32."""
        low, wide = self.low, self.wide
        assert wide is not None
        errors = {name: relative_error(values[name], exact[name]) for name in wide.tensors if name in low.tensors}
        for name in low.gradients:
            errors[name] = relative_error(low.parameter(name, before), wide.parameter(name, wide_before))
        return errors

    def tensor_rows(self) -> Iterator[TensorRow]:
        """Yield a row for each tensor of the forward pass, in its order."""
        for name, place in self.low.tensors.items():
            maxima, dtype, error = self.maxima[name], self.formats[name], self.errors.get(name)
            growth = _growth(maxima, largest_of(dtype))
            yield TensorRow(name, place.operator, place.where, dtype.name, maxima[0], maxima[-1], growth, error)


def _rounding(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]  # it has no types


def _number(array: np.ndarray) -> float:
    return float(array.astype(np.float64).mean())


def _parts(row: LossRow, tolerance: float) -> bool:
    reference = row.reference_loss
    if reference is None or not math.isfinite(reference):
        return False
    return not abs(row.loss - reference) <= tolerance * abs(reference)  # also where the loss is NaN


def largest_of(dtype: np.dtype) -> float:
    """Return the largest number of a format."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # it has no types


def _growth(maxima: Sequence[float], most: float) -> float:
    """Return by how much the largest magnitude is multiplied from step to step, up to the first that is not finite."""
    finite = list(itertools.takewhile(math.isfinite, maxima))
    finite += [most] * (len(finite) < len(maxima))  # it has reached that at least
    if len(finite) < 2 or not finite[0]:
        return 1.0
    return float((finite[-1] / finite[0]) ** (1 / (len(finite) - 1)))


def _of_largest_scale(by_scale: Mapping[float | None, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return each gradient at the largest scale at which it is finite, which loses least; none for a single scale."""
    if len(by_scale) < 2:
        return {}
    return {
        name: array
        for gradients in by_scale.values()  # in the order of the scales: the last one stays
        for name, array in gradients.items()
        if np.isfinite(array.astype(np.float32)).all()
    }


def gradient_rows(low: Side, wide: Side | None, feed: Feed, scales: Sequence[float | None]) -> Iterator[GradientRow]:
    """Yield a row for each loss scale, in their order, and parameter: gradients of the first step."""
    by_scale = {scale: low.gradients_at(feed, scale) for scale in sorted(set(scales), key=lambda scale: scale or 0.0)}
    exact = _of_largest_scale(by_scale) if wide is None else wide.gradients_at(feed, None)
    for scale, gradients in by_scale.items():
        for name, array in gradients.items():
            best = exact.get(name)
            place, wide_array = low.parameters[name], array.astype(np.float32)
            zeros = wide_array == 0
            yield GradientRow(
                name,
                place.operator,
                place.where,
                scale,
                array.size,
                int((~np.isfinite(wide_array)).sum()),
                int(zeros.sum()),
                None if best is None else int((zeros & (best.astype(np.float32) != 0)).sum()),
                largest(array),
            )
