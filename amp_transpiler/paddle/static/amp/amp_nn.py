"""`paddle.static.amp.amp_nn`: has functions that append the two operators of loss scaling."""

from __future__ import annotations

from collections.abc import Sequence

from amp_transpiler.errors import InputError
from amp_transpiler.paddle.building import builder_of, overwrite, wrap
from amp_transpiler.program.program import Variable
from amp_transpiler.update_passes import loss_scaling

__all__ = ["check_finite_and_unscale", "update_loss_scaling"]


def check_finite_and_unscale(
    x: Sequence[Variable],
    scale: Variable,
    name: str | None = None,
    float_status: Variable | None = None,
) -> tuple[Sequence[Variable], Variable]:
    """Divide gradients by the loss scale, and tell whether one of them is infinite or NaN.

    Args:
        x: the gradients. They are the divided ones from then on.
        scale: the loss scale, of one element.
        name: Paddle's, no effect.
        float_status: Paddle's, of another device; no effect.

    Returns:
        `x`, and a bool variable of shape [1]. Where it is true, the quotients mean nothing.

    Raises:
        InputError: `x` is no list of float variables.
    """
    del name, float_status
    _check_floats("check_finite_and_unscale", x)
    b = builder_of(*x, scale)
    found_inf, inverse = loss_scaling.check_finite(b, [item.value for item in x], b.reshape(b.high(scale.value), []))
    for item in x:
        overwrite(item, wrap(item, loss_scaling.unscale(b, item.value, inverse)))
    return x, wrap(scale, b.reshape(found_inf, [1]))


def update_loss_scaling(
    x: Sequence[Variable],
    found_inf: Variable,
    prev_loss_scaling: Variable,
    num_good_steps: Variable,
    num_bad_steps: Variable,
    incr_every_n_steps: int,
    decr_every_n_nan_or_inf: int,
    incr_ratio: float,
    decr_ratio: float,
    stop_update: Variable | bool = False,
    name: str | None = None,
) -> Sequence[Variable]:
    """Let the loss scale grow after good steps and shrink after bad ones, and clear the gradients of a bad step.

    The variables are the new values from then on, and persistable ones keep them for the next run.

    Args:
        x: the gradients; zeros in a bad step.
        found_inf: whether this step is bad, a bool variable of one element.
        prev_loss_scaling: the loss scale, float32.
        num_good_steps: good steps in a row, int32.
        num_bad_steps: bad steps since the scale shrank last, int32.
        incr_every_n_steps: good steps in a row before the scale grows.
        decr_every_n_nan_or_inf: bad steps before it shrinks.
        incr_ratio: its factor when it grows.
        decr_ratio: its factor when it shrinks; it stays 1 at least.
        stop_update: whether scale and counters stay as they are, perhaps a bool variable of one element.
        name: Paddle's, no effect.

    Returns:
        `x`.

    Raises:
        InputError: `x` is no list of float variables, the scale is not float32, or a count is not positive.
    """
    del name
    _check_floats("update_loss_scaling", x)
    _check_scale(prev_loss_scaling, incr_every_n_steps, decr_every_n_nan_or_inf)
    b = builder_of(*x, found_inf, prev_loss_scaling, num_good_steps, num_bad_steps)
    is_bad = b.reshape(found_inf.value, [])
    for item in x:
        overwrite(item, wrap(item, loss_scaling.zero_if(b, is_bad, item.value)))
    if stop_update is True:
        return x
    rule = loss_scaling.ScalingRule(
        int(incr_every_n_steps), int(decr_every_n_nan_or_inf), float(incr_ratio), float(decr_ratio)
    )
    scale, good, bad = loss_scaling.update_loss_scaling(
        b, is_bad, prev_loss_scaling.value, num_good_steps.value, num_bad_steps.value, rule
    )
    if bad is None or rule.decr_every_n_nan_or_inf == 1:
        bad = b.zeros_like(num_bad_steps.value)  # each bad step shrinks the scale, so none is left to count
    state = {prev_loss_scaling: scale, num_good_steps: good, num_bad_steps: bad}
    for variable, new in state.items():
        old = variable.value
        next_value = b.where(b.reshape(stop_update.value, []), old, new) if isinstance(stop_update, Variable) else new
        overwrite(variable, wrap(variable, next_value))
    return x


def _check_floats(what: str, x: object) -> None:
    if not isinstance(x, (list, tuple)) or not all(
        isinstance(item, Variable) and item.dtype in ("float16", "bfloat16", "float32", "float64") for item in x
    ):
        raise InputError(f"{what}: x must be a list of float variables, got {x!r:.80}")


def _check_scale(scale: Variable, *counts: object) -> None:
    if scale.dtype != "float32":
        raise InputError(f"update_loss_scaling: prev_loss_scaling must be float32, got {scale!r}")
    for count in counts:
        if not loss_scaling.is_count(count, 1):
            raise InputError(
                f"update_loss_scaling: steps are counted by whole numbers from 1 to {loss_scaling.LARGEST_COUNT}, "
                f"got {count!r}"
            )
