"""Writes loss scaling as operators: unscaling with a check for infinity and NaN, and the update of the scale.

The operators stand for Paddle's `check_finite_and_unscale` and `update_loss_scaling`; a `ScalingRule` can
also make the update that of PyTorch's GradScaler or of MXNet's LossScaler. There is no `If`, so that CUDA can capture
the step as one graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.update_passes.update_chains import source_of

__all__ = [
    "LARGEST_COUNT",
    "ScalingRule",
    "check_finite",
    "float32_or_zero",
    "found_not_finite",
    "is_count",
    "is_positive",
    "unscale",
    "update_loss_scaling",
    "zero_if",
]

LARGEST_COUNT = 2**31 - 1  # counters are int32
_SMALLEST, _LARGEST = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingRule:
    """Says how the loss scale changes.

    Attributes:
        incr_every_n_steps: good steps in a row before it grows.
        decr_every_n_nan_or_inf: bad steps in a row before it shrinks.
        incr_ratio: its factor when it grows.
        decr_ratio: its factor when it shrinks.
        floor: its lower bound; None for none.
        ceiling: its upper bound; None to grow as long as it is finite.
        counts_bad_steps: whether bad steps are counted; if not, each one shrinks the scale.
        skips_all: whether every optimizer skips a bad step; if not, only those with `skips_on_overflow` do.
        delayed: whether a new scale is used only after the next finite check.
    """

    incr_every_n_steps: int
    decr_every_n_nan_or_inf: int
    incr_ratio: float
    decr_ratio: float
    floor: float | None = 1.0
    ceiling: float | None = None
    counts_bad_steps: bool = True
    skips_all: bool = False
    delayed: bool = False


def is_positive(value: object) -> bool:
    """Whether `value` is a positive number that float32, the type of scales and ratios in a program, can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return bool(_SMALLEST <= (value if isinstance(value, int) else float(value)) <= _LARGEST)  # False for NaN


def is_count(value: object, least: int) -> bool:
    """Whether `value` is an integer from `least` to the largest value of an int32 counter."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return False
    return bool(least <= value <= LARGEST_COUNT)


def check_finite(builder: GraphBuilder, grads: Sequence[ir.Value], scale: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Check that gradients are finite as they are, with the loss scale in them.

    Args:
        builder: appends to the program.
        grads: gradients of any float type; an empty list counts as finite.
        scale: the loss scale, a float32 scalar.

    Returns:
        A bool scalar: whether any element is infinite or NaN, or the scale has no inverse; and the inverse.
    """
    inverse = builder.div(1.0, scale)
    if not grads:
        return builder.constant(False), inverse
    # What was cast from 16 bits is as finite before, and half as large.
    zero_or_nan = _total(builder, [_zero_if_finite(builder, source_of(grad)) for grad in grads])
    return builder.op("IsNaN", [builder.mul(zero_or_nan, inverse)]), inverse


def unscale(builder: GraphBuilder, grad: ir.Value, inverse: ir.Value) -> ir.Value:
    """Return a gradient times the inverse of the loss scale, in float32.

    It is not rounded to its 16 bits again, where Paddle loses what is small.
    """
    return builder.mul(builder.high(grad), inverse)


def found_not_finite(builder: GraphBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Return a bool scalar: whether any element of the values, one at least, is infinite or NaN."""
    return builder.op("IsNaN", [_total(builder, [_zero_if_finite(builder, value) for value in values])])


def _zero_if_finite(builder: GraphBuilder, value: ir.Value) -> ir.Value:
    """Return 0 if all elements are finite, else NaN; a sum of zeros cannot overflow, a sum of gradients can."""
    return builder.reduce("ReduceSum", builder.mul(value, 0.0), None, keepdims=False, low=True)


def _total(builder: GraphBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Return the sum of scalars of any float type, in float32; those of one type are added up before they are cast."""
    alike: dict[ir.DataType | None, list[ir.Value]] = {}
    for value in values:
        alike.setdefault(value.dtype, []).append(value)
    sums = [builder.op("Sum", same) if len(same) > 1 else same[0] for same in alike.values()]
    wide = [builder.high(value) for value in sums]
    return builder.op("Sum", wide) if len(wide) > 1 else wide[0]


def zero_if(builder: GraphBuilder, found_inf: ir.Value, grad: ir.Value) -> ir.Value:
    """Return the gradient, or zeros in its place if `found_inf` is true."""
    return builder.where(found_inf, 0.0, grad)


def float32_or_zero(builder: GraphBuilder, found_inf: ir.Value, grad: ir.Value) -> ir.Value:
    """Return the gradient in float32, or zeros if `found_inf` is true: chosen in 16 bits where it comes from there."""
    return builder.high(zero_if(builder, found_inf, source_of(grad)))


def update_loss_scaling(
    builder: GraphBuilder,
    found_inf: ir.Value,
    scale: ir.Value,
    good: ir.Value,
    bad: ir.Value | None,
    rule: ScalingRule,
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Return the scale and the counters of good and of bad steps for the next step.

    If the rule is delayed, `scale` is the one that is used from this check on, and the result the one after it.

    Args:
        builder: appends to the program.
        found_inf: whether this step's gradients are not finite, a bool scalar.
        scale: the loss scale, float32.
        good: good steps in a row so far, int32.
        bad: bad steps in a row so far, int32; None where the rule does not count them.
        rule: when and how the scale changes.
    """
    b = builder
    shrunk = b.mul(scale, rule.decr_ratio)
    if rule.floor is not None:
        shrunk = b.maximum(shrunk, rule.floor)
    new_bad = bad  # it stays 0 if each bad step shrinks the scale
    if bad is not None and rule.decr_every_n_nan_or_inf > 1:
        more_bad = b.add(bad, 1)
        shrink = b.compare("Equal", more_bad, rule.decr_every_n_nan_or_inf)
        shrunk = b.where(shrink, shrunk, scale)
        new_bad = b.where(found_inf, b.where(shrink, 0, more_bad), 0)
    more_good = b.add(good, 1)
    enough = b.compare("Equal", more_good, rule.incr_every_n_steps)
    grown = _grown(b, scale, enough, rule)
    return b.where(found_inf, shrunk, grown), b.where(found_inf, 0, b.where(enough, 0, more_good)), new_bad


def _grown(b: GraphBuilder, scale: ir.Value, enough: ir.Value, rule: ScalingRule) -> ir.Value:
    """Return the scale after a good step: at most the ceiling, and unchanged if it would be infinite."""
    grown = b.mul(scale, rule.incr_ratio)
    if rule.ceiling is not None:
        return b.where(enough, b.minimum(grown, rule.ceiling), scale)
    if rule.incr_ratio <= 1.0:
        return b.where(enough, grown, scale)
    is_finite = b.compare("Less", scale, _first_too_large(rule.incr_ratio))
    return b.where(b.op("And", [enough, is_finite]), grown, scale)


def _first_too_large(ratio: float) -> float:
    """Return the least float32 whose product with `ratio`, which is above 1, float32 cannot hold."""
    factor, most = np.float32(ratio), np.finfo(np.float32).max
    with np.errstate(over="ignore"):
        first = np.float32(most / factor)
        while not np.isfinite(first * factor):
            first = np.nextafter(first, np.float32(0))
        while np.isfinite(first * factor):
            first = np.nextafter(first, most)
    return float(first)
