"""Finds pairs of least total cost."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

__all__ = ["cheapest_pairs"]

Left = TypeVar("Left", bound=Hashable)
Right = TypeVar("Right", bound=Hashable)


def cheapest_pairs(costs: Mapping[tuple[Left, Right], float]) -> dict[Left, Right]:
    """Return as many pairs as can be made, each side used once, with the least sum of costs.

    Pairs are added along the cheapest augmenting path, one at a time, which is exact. Only what is connected is
    compared, so many small groups cost little.

    Args:
        costs: the pairs that are possible, and what each costs.
    """
    edges: dict[Left, dict[Right, float]] = {}
    for (left, right), cost in costs.items():
        edges.setdefault(left, {})[right] = cost
    partner: dict[Right, Left] = {}
    for left in edges:
        _augment(left, edges, partner)
    return {left: right for right, left in partner.items()}


def _augment(start: Left, edges: Mapping[Left, Mapping[Right, float]], partner: dict[Right, Left]) -> None:
    """Give `start` a partner, or exchange it for the costliest of those that it would displace (Bellman-Ford)."""
    mine = {left: right for right, left in partner.items()}
    best: dict[Left, float] = {start: 0.0}
    came: dict[Right, Left] = {}
    reached: dict[Right, float] = {}
    pending = [start]
    while pending:
        left = pending.pop(0)
        for right, cost in edges[left].items():
            if mine.get(left) == right:
                continue
            total = best[left] + cost
            if total < reached.get(right, math.inf) - 1e-9:
                reached[right], came[right] = total, left
                if (owner := partner.get(right)) is not None:
                    displaced = total - edges[owner][right]
                    if displaced < best.get(owner, math.inf) - 1e-9:
                        best[owner] = displaced
                        pending.append(owner)
    free = [right for right in reached if right not in partner]
    if free:
        _take(min(free, key=lambda right: reached[right]), came, mine, partner)
        return
    dearest = min(best, key=lambda left: best[left])
    if dearest is not start and best[dearest] < -1e-9:
        right = mine[dearest]
        del partner[right]
        _take(right, came, {left: value for left, value in mine.items() if left != dearest}, partner)


def _take(right: Right, came: Mapping[Right, Left], mine: Mapping[Left, Right], partner: dict[Right, Left]) -> None:
    """Hand `right` to the one that came for it, and what that one had to the one before."""
    while True:
        left = came[right]
        had = mine.get(left)
        partner[right] = left
        if had is None:
            return
        right = had
