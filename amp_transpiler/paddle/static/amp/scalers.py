"""Says how each system scales the loss: a table has its defaults, and the caller's numbers replace them."""

from __future__ import annotations

import dataclasses
from typing import Any

from amp_transpiler.errors import OptionError
from amp_transpiler.update_passes.loss_scaling import LARGEST_COUNT, ScalingRule, is_count, is_positive

__all__ = ["PADDLE", "PADDLE_FP16_ONLY", "SCALERS", "Scaler", "choose_scaler"]

_COUNTS = ("incr_every_n_steps", "decr_every_n_nan_or_inf")


@dataclasses.dataclass(frozen=True, slots=True)
class Scaler:
    """Describes how a system scales the loss.

    Attributes:
        init_loss_scaling: the first scale.
        rule: how the scale changes, and whether a step that overflows is skipped.
    """

    init_loss_scaling: float
    rule: ScalingRule


# Paddle's two overloads of `decorate` differ in their defaults.
PADDLE_FP16_ONLY = Scaler(2.0**15, ScalingRule(1000, 2, 2.0, 0.8))
PADDLE = Scaler(2.0**16, ScalingRule(2000, 1, 2.0, 0.5))

SCALERS = {
    "paddle": PADDLE,
    # torch.amp.GradScaler: shrinks on every bad step without a lower bound; grows as long as the result is finite.
    "torch": Scaler(2.0**16, ScalingRule(2000, 1, 2.0, 0.5, floor=None, counts_bad_steps=False, skips_all=True)),
    # mxnet.amp.loss_scaler.LossScaler: the same up to 2**24; a new scale is used one check later.
    "mxnet": Scaler(
        2.0**16,
        ScalingRule(
            2000, 1, 2.0, 0.5, floor=None, ceiling=2.0**24, counts_bad_steps=False, skips_all=True, delayed=True
        ),
    ),
}


def choose_scaler(
    system: str,
    paddle: Scaler,
    *,
    init_loss_scaling: float | None,
    incr_every_n_steps: int | None,
    decr_every_n_nan_or_inf: int | None,
    incr_ratio: float | None,
    decr_ratio: float | None,
) -> Scaler:
    """Return a system's scaler with the caller's numbers in it; None keeps the system's own.

    Args:
        system: `paddle`, `torch` or `mxnet`.
        paddle: the defaults of Paddle's overload that was called.
        init_loss_scaling: the first scale.
        incr_every_n_steps: good steps in a row before it grows.
        decr_every_n_nan_or_inf: bad steps in a row before it shrinks.
        incr_ratio: its factor when it grows.
        decr_ratio: its factor when it shrinks.

    Raises:
        OptionError: there is no such system, it does not have one of the numbers, or a number cannot be a scale, a
            ratio or a count.
    """
    name = str(system).lower()
    if name not in SCALERS:
        raise OptionError(f"scaler should be one of {', '.join(map(repr, SCALERS))}, got {system!r}")
    defaults = paddle if name == "paddle" else SCALERS[name]
    numbers: dict[str, Any] = {
        "incr_every_n_steps": incr_every_n_steps,
        "decr_every_n_nan_or_inf": decr_every_n_nan_or_inf,
        "incr_ratio": incr_ratio,
        "decr_ratio": decr_ratio,
    }
    numbers = {key: _number(key, value) for key, value in numbers.items() if value is not None}
    rule = dataclasses.replace(defaults.rule, **numbers)
    if name != "paddle":
        _check(name, rule)
    if init_loss_scaling is None:
        return Scaler(defaults.init_loss_scaling, rule)
    return Scaler(_number("init_loss_scaling", init_loss_scaling), rule)


def _number(key: str, value: Any) -> float | int:
    """Return a caller's number as a Python number.

    Raises:
        OptionError: it cannot be a count, a scale or a ratio of a program.
    """
    if key in _COUNTS:
        if not is_count(value, 1):
            raise OptionError(f"{key} must be a whole number of steps from 1 to {LARGEST_COUNT}, got {value!r}")
        return int(value)
    if not is_positive(value):
        raise OptionError(f"{key} must be a positive, finite number that float32 holds, got {value!r}")
    return float(value)


def _check(name: str, rule: ScalingRule) -> None:
    """Raise OptionError for ratios that PyTorch rejects, and for a count of bad steps, which only Paddle has."""
    if rule.decr_every_n_nan_or_inf != 1:
        raise OptionError(
            f"scaler={name!r} shrinks the scale on every bad step, got decr_every_n_nan_or_inf="
            f"{rule.decr_every_n_nan_or_inf}: leave it out, or use scaler='paddle'"
        )
    if not rule.incr_ratio > 1.0:
        raise OptionError(f"scaler={name!r}: incr_ratio (the growth factor) must be above 1, got {rule.incr_ratio}")
    if not rule.decr_ratio < 1.0:
        raise OptionError(f"scaler={name!r}: decr_ratio (the backoff factor) must be below 1, got {rule.decr_ratio}")
