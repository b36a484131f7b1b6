"""Levels: one row each. O0, OD, O1 and O2 are Paddle's; auto is this package's own.

No other module asks which level it is: a level fills the fields of a `Policy`, and Paddle's rules read `Level.lists`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Literal

from amp_transpiler.errors import OptionError
from amp_transpiler.precision.policy import Policy

__all__ = ["LEVELS", "Level", "find_level"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level.

    Attributes:
        name: as `level=` and `--level` take it.
        lists: which operator lists hold. `none`: every operator stays float32. `white`: operators off the white list
            stay float32. `all`: every list holds, gray operators follow their producers. `lifted`: everything that can
            be low is; the black list does not hold, nor does the extra list for operators that do not accumulate.
        policy: makes a policy with this level's settings.
        tolerances: low format -> the tolerance where the user sets none.
        without_levels: may be named beside a system that has no levels, since it means the same there.
        trains: `decorate` takes it; level auto needs data to judge by, which a training program does not have.
    """

    name: str
    lists: Literal["none", "white", "all", "lifted"]
    policy: Callable[..., Policy] = Policy
    tolerances: Mapping[str, float] = dataclasses.field(default_factory=dict)
    without_levels: bool = False
    trains: bool = True

    @property
    def changes_nothing(self) -> bool:
        """Whether the program stays as it is."""
        return self.lists == "none"

    @property
    def is_pure(self) -> bool:
        """Whether everything that can be low becomes low, parameters included (Paddle's "pure fp16")."""
        return self.lists == "lifted"


LEVELS: Mapping[str, Level] = types.MappingProxyType(
    {
        level.name: level
        for level in (
            Level(
                name="auto",
                lists="lifted",
                policy=functools.partial(
                    Policy,
                    numerics="static",
                    strict_ranges=True,
                    drop_islands="quantized",
                    search_runs=10,
                    objective="low",
                ),
                tolerances={"float16": 0.02, "bfloat16": 0.05},
                without_levels=True,
                trains=False,
            ),
            Level(name="O0", lists="none", policy=functools.partial(Policy, copies=True), without_levels=True),
            Level(name="OD", lists="white"),
            Level(name="O1", lists="all", without_levels=True),
            Level(
                name="O2",
                lists="lifted",
                policy=functools.partial(Policy, low_parameters=True, drop_islands="quantized"),
            ),
        )
    }
)


def find_level(name: str) -> Level:
    """Return the level of this name, in any case.

    Raises:
        OptionError: there is no such level.
    """
    for level in LEVELS.values():
        if str(name).lower() == level.name.lower():
            return level
    raise OptionError(f"unknown level {name!r}: expected one of {', '.join(LEVELS)}")
