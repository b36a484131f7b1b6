"""Loss scaling as operators: unscaling with a check for what is not finite, and the update of the scale.

The rules are Paddle's `check_finite_and_unscale` and `update_loss_scaling`; no `If` is needed, so that CUDA can
capture the step as one graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder

__all__ = ["ScalingRule", "check_finite_and_unscale", "update_loss_scaling", "zero_if"]


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingRule:
    """How the loss scale moves.

    Attributes:
        incr_every_n_steps: good steps in a row before it grows.
        decr_every_n_nan_or_inf: bad steps in a row before it shrinks.
        incr_ratio: what it is multiplied with to grow.
        decr_ratio: what it is multiplied with to shrink.
        floor: it never shrinks below this.
    """

    incr_every_n_steps: int
    decr_every_n_nan_or_inf: int
    incr_ratio: float
    decr_ratio: float
    floor: float = 1.0


def check_finite_and_unscale(
    builder: GraphBuilder, grads: Sequence[ir.Value], scale: ir.Value
) -> tuple[list[ir.Value], ir.Value]:
    """Divide gradients by the loss scale, in float32, and tell whether any is not finite.

    Args:
        builder: appends to the program.
        grads: gradients of any float type.
        scale: the loss scale, a float32 scalar.

    Returns:
        The gradients, each narrowed to the type it had, and a bool scalar: whether any element is infinite or NaN
        after narrowing.
    """
    inverse = builder.div(1.0, scale)
    unscaled, bad = [], []
    for grad in grads:
        narrow = builder.cast(builder.mul(builder.high(grad), inverse), grad.dtype)
        unscaled.append(narrow)
        wide = builder.high(narrow)
        # What is finite minus itself is zero; infinity and NaN minus themselves are NaN. No overflow, two passes.
        bad.append(builder.sum(builder.sub(wide, wide), keepdims=False))
    return unscaled, builder.op("IsNaN", [builder.op("Sum", bad) if len(bad) > 1 else bad[0]])


def zero_if(builder: GraphBuilder, found_inf: ir.Value, grads: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the gradients, or zeros in their place where `found_inf` holds."""
    return [builder.where(found_inf, 0.0, grad) for grad in grads]


def update_loss_scaling(
    builder: GraphBuilder,
    found_inf: ir.Value,
    scale: ir.Value,
    good: ir.Value,
    bad: ir.Value,
    rule: ScalingRule,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the scale and the counters of good and of bad steps for the next step.

    Args:
        builder: appends to the program.
        found_inf: whether this step's gradients are not finite, a bool scalar.
        scale: the loss scale, float32.
        good: good steps in a row so far, int32.
        bad: bad steps in a row so far, int32.
        rule: when and how the scale moves.
    """
    b = builder
    more_bad = b.add(bad, 1)
    shrink = b.compare("Equal", more_bad, rule.decr_every_n_nan_or_inf)
    shrunk = b.where(shrink, b.maximum(b.mul(scale, rule.decr_ratio), rule.floor), scale)
    more_good = b.add(good, 1)
    grow = b.compare("Equal", more_good, rule.incr_every_n_steps)
    grown = b.mul(scale, rule.incr_ratio)
    overflows = b.op("IsNaN", [b.sub(grown, grown)])
    grown = b.where(grow, b.where(overflows, scale, grown), scale)
    return (
        b.where(found_inf, shrunk, grown),
        b.where(found_inf, 0, b.where(grow, 0, more_good)),
        b.where(found_inf, b.where(shrink, 0, more_bad), 0),
    )
