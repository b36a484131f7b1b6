"""`paddle.static.amp.bf16.decorator`: has `decorate` for bfloat16 only."""

from __future__ import annotations

from amp_transpiler.paddle.optimizer.base import Optimizer
from amp_transpiler.paddle.static.amp.decorator import decorate
from amp_transpiler.paddle.static.amp.optimizer import OptimizerWithMixedPrecision
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = ["decorate_bf16"]


def decorate_bf16(
    optimizer: Optimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    use_pure_bf16: bool = False,
    use_bf16_guard: bool | None = None,
) -> OptimizerWithMixedPrecision:
    """Wrap an optimizer so that what it minimizes is computed in bfloat16: `decorate(..., use_bf16=True)`.

    Args:
        optimizer: one of `paddle.optimizer`.
        amp_lists: white, black and gray operators; None for the defaults.
        use_pure_bf16: level O2 instead of O1.
        use_bf16_guard: only nodes inside a `bf16_guard` region become low; `use_pure_bf16` unless given.
    """
    return decorate(optimizer, amp_lists, use_pure_fp16=use_pure_bf16, use_fp16_guard=use_bf16_guard, use_bf16=True)
