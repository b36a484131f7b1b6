"""What level auto aims at, as users write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from amp_transpiler.errors import OptionError
from amp_transpiler.precision.policy import Objective, Policy

__all__ = ["Preference", "objective_of", "recorded"]

Preference: TypeAlias = Literal["balance", "time", "size", "low"]
"""What level auto aims at; `low` is what `size` was called at first."""

_OBJECTIVES: Mapping[str, Objective] = {"balance": "balance", "time": "time", "size": "low", "low": "low"}


def objective_of(prefer: Preference, policy: Policy, *, replays: bool) -> Objective:
    """Return the objective of a preference; that of the policy where the level does not decide by cost.

    Args:
        prefer: the preference.
        policy: of the level, for the target.
        replays: a recipe is replayed, so that little is left to decide.

    Raises:
        OptionError: it is no preference, or has no meaning at the level or for the target.
    """
    if prefer not in _OBJECTIVES:
        raise OptionError(f"prefer is {prefer!r}: expected 'balance', 'time' or 'size'")
    if policy.objective == "rules":
        if prefer == "time":
            raise OptionError("prefer has a meaning at level auto only, which decides by cost: drop one of the two")
        return policy.objective
    if policy.target.has_prices:
        return _OBJECTIVES[prefer]
    if prefer == "time" and not replays:
        raise OptionError(
            f"prefer='time' needs predicted times, and there are none for target {policy.target.name}: leave it out"
        )
    return "low"  # where no times are predicted, the smallest file is all that can be aimed at


def recorded(prefer: Preference, policy: Policy) -> dict[str, str]:
    """Return what a recipe holds of a preference: nothing of the smallest file, as recipes of former versions do."""
    return {} if policy.objective == "rules" or _OBJECTIVES[prefer] == "low" else {"prefer": prefer}
