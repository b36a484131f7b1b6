"""Random numbers that depend on a seed and a name only, so that they are the same on every machine."""

from __future__ import annotations

import zlib

import numpy as np

__all__ = ["generator", "global_seed", "seed"]

_state = {"seed": 0}


def seed(value: int) -> None:
    """Set the seed of programs that have none of their own (`program.random_seed`)."""
    _state["seed"] = int(value)


def global_seed() -> int:
    """Return the seed that `seed` set last, 0 at first."""
    return _state["seed"]


def generator(seed_value: int, name: str) -> np.random.Generator:
    """Return numpy's Philox generator keyed by a seed and a name.

    Because of the name, a value does not depend on what else a program draws.
    """
    key = np.array([seed_value & (2**64 - 1), zlib.crc32(name.encode())], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
