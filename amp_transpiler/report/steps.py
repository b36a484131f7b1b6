"""Records the ways of a training step's states over several steps, in float32 and in the converted program."""

from __future__ import annotations

import dataclasses
import math

__all__ = ["StateWay", "StepsComparison"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StateWay:
    """Records how far a state came in the steps, and how far off it ended.

    Attributes:
        name: the state's input.
        role: `parameter`, `moment`, `statistic` or `counter`.
        way: norm of its change in float32.
        low_way: norm of its change in the converted program; of its master's, if it has one.
        relative: norm of the difference of both changes over `way`, a fraction; 0 if neither moved, infinite if only
            the converted program's did or became NaN or infinite.
        allowed: up to which fraction it is in order; infinite: it is not judged.
    """

    name: str
    role: str
    way: float
    low_way: float
    relative: float
    allowed: float = math.inf

    @property
    def fails(self) -> bool:
        """Whether it is further off than it may be."""
        return not self.relative <= self.allowed  # catches NaN too

    @property
    def stops(self) -> bool:
        """Whether the converted program's goes less than half of its way."""
        return self.low_way < 0.5 * self.way


@dataclasses.dataclass(frozen=True, slots=True)
class StepsComparison:
    """Compares a training step that ran for several steps in float32 and in the converted program, its states fed back.

    Attributes:
        steps: how many steps were run.
        states: input of a state -> its ways; empty if the steps could not be judged.
        reason: why they could not be judged, or why they were fewer than wanted; else empty.
    """

    steps: int
    states: dict[str, StateWay] = dataclasses.field(default_factory=dict)
    reason: str = ""

    @property
    def worst(self) -> StateWay | None:
        """The state that ended furthest off, of those that are judged if any is; None if there is no state."""
        return max(self.judged or self.states.values(), key=_badness, default=None)

    @property
    def judged(self) -> tuple[StateWay, ...]:
        """The states that have a limit."""
        return tuple(state for state in self.states.values() if math.isfinite(state.allowed))

    @property
    def failing(self) -> tuple[StateWay, ...]:
        """The states that are further off than they may be, the worst first."""
        return tuple(sorted((state for state in self.states.values() if state.fails), key=_badness, reverse=True))


def _badness(state: StateWay) -> tuple[bool, float, float]:
    relative = math.inf if math.isnan(state.relative) else state.relative
    return state.fails, relative, state.way
