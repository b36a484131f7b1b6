"""The policy of Paddle's rules at a level."""

from __future__ import annotations

import math

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.precision.limits import Limits
from amp_transpiler.precision.policy import Policy
from amp_transpiler.systems.paddle.levels import Level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.systems.paddle.rules import PaddleRules
from amp_transpiler.targets import Target

__all__ = ["paddle_policy"]


def paddle_policy(
    level: Level,
    low: LowFormat,
    target: Target,
    lists: AutoMixedPrecisionLists | None = None,
    *,
    use_promote: bool = False,
) -> Policy:
    """Return the policy of a level.

    Args:
        level: fills the policy's settings.
        low: the low format.
        target: whose kernels count.
        lists: the operator lists; None for the defaults.
        use_promote: Paddle's promotion (see `PaddleRules`).
    """
    lists = lists if lists is not None else AutoMixedPrecisionLists(dtype=low.name)
    rules = PaddleRules(level, lists, use_promote=use_promote)
    limits = Limits(level.tolerances.get(low.name, math.inf))
    return level.policy(rules=rules, low=low, target=target, limits=limits)
