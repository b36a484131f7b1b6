"""Decides what goes wrong in the steps that `diagnose_training` has run, and says it in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from amp_transpiler.paddle.amp.diagnosis_rows import Fault, GradientRow, TensorRow
from amp_transpiler.paddle.amp.observed_steps import Steps, largest_of
from amp_transpiler.paddle.amp.side_by_side import first_bad, parameters_read, tensors_read
from amp_transpiler.paddle.static.step_tensors import Place

__all__ = ["faults"]

_VANISHED = 0.05  # the share of a gradient's numbers that may become zero
_GROWN = 4.0  # how many times as large a tensor is in the end
_STEPS = 3  # fewer say nothing about what is to come
_HORIZON = 5  # times the steps that were run: how far growth is looked ahead


def faults(steps: Steps, gradients: Sequence[GradientRow], tensors: Sequence[TensorRow]) -> list[Fault]:
    """Return what goes wrong, the cause first.

    A forward pass that goes wrong in the first step, from the same values, explains the rest. Otherwise gradients that
    overflow or vanish explain losses that part later.
    """
    departure = list(_departure(steps)) or list(_not_finite(steps))
    is_first = steps.parted == 1 or (steps.wide is None and bool(departure))
    by_scale = [*_overflow(steps, gradients), *_underflow(steps, gradients)]
    causes = [*departure, *by_scale] if is_first else [*by_scale, *departure]
    return [*causes, *_growth(steps, tensors)]


# ---- gradients ----


def _overflow(steps: Steps, gradients: Sequence[GradientRow]) -> Iterator[Fault]:
    """Yield the parameter nearest to the loss whose gradient is not finite, if that is so in every step."""
    if not all(row.overflowed for row in steps.losses):
        return
    scale = steps.losses[-1].loss_scale
    bad = {row.parameter: row for row in gradients if row.loss_scale == scale and row.non_finite}
    nearest = next((name for name in reversed(steps.low.parameters) if name in bad), None)
    if nearest is None:
        return
    row = bad[nearest]
    finite = [r.loss_scale for r in gradients if r.parameter == nearest and r.loss_scale and not r.non_finite]
    most = f"; at {max(finite):g} all are finite" if finite else ""
    yield Fault(
        "overflow",
        nearest,
        f"the gradient of the parameter '{nearest}' ({_of(row)}) overflows{_at(scale)}: {row.non_finite} of "
        f"{row.numel} numbers are not finite, in each step{most}",
    )


def _underflow(steps: Steps, gradients: Sequence[GradientRow]) -> Iterator[Fault]:
    """Yield the parameter whose gradient loses the largest share of its numbers, if that is much."""
    scale = steps.losses[-1].loss_scale
    rows = [row for row in gradients if row.loss_scale == scale and not row.non_finite]
    row = max(rows, key=lambda row: row.vanished_share, default=None)
    if row is None or row.vanished_share < _VANISHED:
        return
    others = [r for r in gradients if r.parameter == row.parameter and r.loss_scale and not r.non_finite]
    best = min(others, key=lambda r: r.vanished_share, default=row)
    better = f"; at {best.loss_scale:g} it is {best.vanished_share:.0%}" if best.loss_scale != scale else ""
    yield Fault(
        "underflow",
        row.parameter,
        f"the gradient of the parameter '{row.parameter}' ({_of(row)}) vanishes{_at(scale)}: "
        f"{row.vanished_share:.0%} of its {row.numel} numbers became zero{better}",
    )


def _of(row: GradientRow | TensorRow) -> str:
    return str(Place(row.operator, row.where))


def _at(scale: float | None) -> str:
    return "" if scale is None else f" at the loss scale {scale:g}"


# ---- the forward pass ----


def _departure(steps: Steps) -> Iterator[Fault]:
    """Yield the tensor or parameter that is the first to depart, on the way to losses that part."""
    wide, parted = steps.wide, steps.parted
    if wide is None or parted is None:
        return
    row = steps.losses[parted - 1]
    says = f"the losses part in step {parted} ({row.reference_loss:g} in float32, {row.loss:g} here)"
    departed = {name: error > steps.tolerance for name, error in steps.errors.items()}
    first = first_bad(wide.program, [wide.loss], departed) or [steps.low.loss]
    name = max(first, key=lambda name: steps.errors.get(name, 0.0))
    error = steps.errors.get(name, math.inf)
    size = f"by {error:.2%}" if math.isfinite(error) else "and one of the two is not finite"
    if name in steps.low.gradients:
        place = steps.low.parameters[name]
        yield Fault("departure", name, f"{says}: the parameter '{name}' ({place}) is the first that departs, {size}")
        return
    places = wide.tensors.get(name) or steps.low.tensors.get(name)
    shown = "" if places is None else f" ({places})"
    yield Fault("departure", name, f"{says}: '{name}'{shown} is the first that departs, {size}")


def _not_finite(steps: Steps) -> Iterator[Fault]:
    """Yield the first tensor of the forward pass that is not finite in the first step."""
    if math.isfinite(steps.losses[0].loss):
        return
    bad = {name: not math.isfinite(maxima[0]) for name, maxima in steps.maxima.items()}
    for name in first_bad(steps.low.program, [steps.low.loss], bad)[:1]:
        place, dtype = steps.low.tensors[name], steps.formats[name].name
        yield Fault(
            "not finite", name, f"'{name}' ({place}, {dtype}) is the first that is not finite, in the first step"
        )


# ---- growth ----


def _growth(steps: Steps, tensors: Sequence[TensorRow]) -> Iterator[Fault]:
    """Yield the tensor that will leave its format soon and grows most beyond what its operator reads."""
    rows = {row.tensor: row for row in tensors}
    left = {row.tensor: _steps_left(steps, row) for row in tensors if row.tensor != steps.low.loss}
    horizon = _HORIZON * len(steps.losses)
    growing = [rows[name] for name, number in left.items() if number is not None and number <= horizon]
    row = max(growing, key=lambda row: _growth_of_its_own(steps, row, rows), default=None)
    if row is None:
        return
    number = left[row.tensor]
    count = math.ceil(number or 0)
    when = f"leaves {row.dtype} within {count} step{'s' * (count > 1)}" if count else f"has left {row.dtype}"
    read = parameters_read(steps.low, row.tensor)
    reads = f"; it reads the parameter '{read[0]}'" if read else ""
    grows = f"grows by {row.growth:.3g} times a step, from {row.first:.4g} to {row.last:.4g}"
    yield Fault(
        "growth",
        row.tensor,
        f"'{row.tensor}' ({_of(row)}) {grows}, and {when}{reads}",
    )


def _growth_of_its_own(steps: Steps, row: TensorRow, rows: Mapping[str, TensorRow]) -> float:
    """Return by how many times more a tensor grows than what its operator reads."""
    return row.growth / max([1.0, *(rows[name].growth for name in tensors_read(steps.low, row.tensor))])


def _steps_left(steps: Steps, row: TensorRow) -> float | None:
    """Return in how many steps a tensor leaves its format; 0 if it has; None if it does not grow."""
    if not math.isfinite(row.first) or not row.first:
        return None
    if not math.isfinite(row.last):
        return 0.0
    maxima = steps.maxima[row.tensor]
    late = maxima[len(maxima) // 2 - 1 :]  # of a growth that slows down, what is to come
    rate = (late[-1] / late[0]) ** (1 / (len(late) - 1)) if len(late) > 1 and late[0] else 1.0
    if len(maxima) < _STEPS or row.last < _GROWN * row.first or rate <= 1:
        return None
    return math.log(largest_of(steps.formats[row.tensor]) / row.last) / math.log(rate)
