"""The ranks that this process has joined."""

from __future__ import annotations

from amp_transpiler.runtime.distributed.world import World

__all__ = ["joined", "joined_world"]

joined: list[World] = []
"""The world of this process, once it has joined one."""


def joined_world() -> World | None:
    """Return the world of several processes that this one has joined, or None."""
    return joined[0] if joined and joined[0].size > 1 else None
