"""Draws numbers that depend on a seed and on the order of creation, so that they are the same on every machine.

As in Paddle, the order in which values are created decides: building a network twice with one seed gives equal
weights, whatever its parameters are called. The numbers are numpy's, not those of Paddle's generators. A startup
program that runs again without a new seed gives the same values again, where Paddle draws further ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from amp_transpiler.errors import InputError

__all__ = ["drawing_state", "generator", "get_rng_state", "global_seed", "seed", "set_rng_state", "turn_of"]

_state = {"seed": 0, "times": 0}
_turns: dict[str, int] = {}  # name of a drawn value -> how many others were drawn before it, since the last seed


def seed(value: int) -> None:
    """Set the seed of programs without one (`program.random_seed`), and count from the start again."""
    if not hasattr(value, "__index__"):
        raise InputError(f"seed must be a whole number, got {value!r:.80}")
    _state["seed"] = int(value)
    _state["times"] += 1
    _turns.clear()


def global_seed() -> int:
    """Return the seed that `seed` set last, 0 at first."""
    return _state["seed"]


def get_rng_state(device: str | None = None) -> list[tuple[int, dict[str, int]]]:
    """Return what further initial values depend on: the seed, and which were drawn since; for `set_rng_state`.

    What a program draws while it runs depends on its own state, which checkpoints hold.
    """
    del device
    return [(_state["seed"], dict(_turns))]


def set_rng_state(state_list: Sequence[tuple[int, dict[str, int]]], device: str | None = None) -> None:
    """Go back to what `get_rng_state` returned: the values that were drawn after it are drawn again."""
    del device
    ((value, turns),) = state_list
    seed(value)
    _turns.update(turns)


def drawing_state() -> int:
    """Return a number that changes when `seed` is called: values drawn before may be others now."""
    return _state["times"]


def turn_of(name: str, names: Iterable[str]) -> int:
    """Return how many values were drawn before one, since the last call of `seed`.

    A name that was drawn before keeps its turn: programs that are built again under one `unique_name.guard` are equal.

    Args:
        name: one of `names`.
        names: the values that a program draws, in the order of their creation.
    """
    for other in names:
        _turns.setdefault(other, len(_turns))
    return _turns[name]


def generator(seed_value: int, key: str | int) -> np.random.Generator:
    """Return numpy's Philox generator for a seed and a turn, or a name.

    Because of the key, a value does not depend on the sizes of others.
    """
    second = key if isinstance(key, int) else zlib.crc32(key.encode()) | 1 << 32  # no turn is as large as that
    return np.random.Generator(np.random.Philox(key=np.array([seed_value & (2**64 - 1), second], np.uint64)))
