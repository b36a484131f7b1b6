"""Randomness that depends on a seed and a name only: the same on every machine, whatever else a program holds."""

from __future__ import annotations

import zlib

import numpy as np

__all__ = ["generator", "global_seed", "seed"]

_state = {"seed": 0}


def seed(value: int) -> None:
    """Set the seed of programs that have none of their own (`program.random_seed`)."""
    _state["seed"] = int(value)


def global_seed() -> int:
    """Return the seed last set."""
    return _state["seed"]


def generator(seed_value: int, name: str) -> np.random.Generator:
    """Return numpy's Philox generator keyed by a seed and a name."""
    key = np.array([seed_value & (2**64 - 1), zlib.crc32(name.encode())], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
