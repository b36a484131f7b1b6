"""Places of nodes in a drawing: in layers, each node below all that it reads (a plain form of Sugiyama's method)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

__all__ = ["Layout", "lay_out"]

_SWEEPS = 6
_LONGEST = 60  # layers that an edge crosses with a place of its own in each; a longer one is drawn straight
_PLACES = 12  # of edges, for each node; when they are used up, edges are drawn straight


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Places in a drawing.

    Attributes:
        places: the centre of each node.
        edges: for each edge, the points that it goes through, from its source to its target.
        width: of the drawing.
        height: of the drawing.
    """

    places: list[tuple[float, float]]
    edges: list[list[tuple[float, float]]]
    width: float
    height: float


def lay_out(widths: Sequence[float], edges: Sequence[tuple[int, int]], row: float, gap: float) -> Layout:
    """Return places for nodes, in time that is linear in nodes and edges.

    Args:
        widths: the width of each node; nodes come in an order of execution.
        edges: pairs of nodes; the first comes before the second.
        row: the distance of two layers.
        gap: the least distance of two nodes of a layer.
    """
    layers = _layers(len(widths), edges)
    sizes = list(widths)
    most = len(sizes) * (1 + _PLACES)
    chains = [_chain(source, target, layers, sizes, most) for source, target in edges]
    order = _ordered(layers, chains)
    centres = _centres(order, sizes, chains, gap)
    left = min((x - size / 2 for x, size in zip(centres, sizes, strict=True)), default=0.0)
    right = max((x + size / 2 for x, size in zip(centres, sizes, strict=True)), default=0.0)
    points = [(x - left, (layer + 0.5) * row) for x, layer in zip(centres, layers, strict=True)]
    paths = [[points[index] for index in chain] for chain in chains]
    return Layout(points[: len(widths)], paths, right - left, (max(layers, default=-1) + 1) * row)


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node: one more than the lowest of those that it reads; sources stand near a reader."""
    read: list[list[int]] = [[] for _ in range(count)]
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        read[target].append(source)
        readers[source].append(target)
    layers = [0] * count
    for node in range(count):
        layers[node] = max((layers[source] + 1 for source in read[node]), default=0)
    for node in reversed(range(count)):
        if not read[node] and readers[node]:
            layers[node] = max(0, min(layers[target] for target in readers[node]) - 1)
    return layers


def _chain(source: int, target: int, layers: list[int], sizes: list[float], most: int) -> list[int]:
    """Return the nodes that an edge goes through, with a new one of no width in each layer that it crosses."""
    between = range(layers[source] + 1, layers[target])
    if len(between) > _LONGEST or len(layers) + len(between) > most:
        return [source, target]
    first = len(layers)
    layers.extend(between)
    sizes.extend(0.0 for _ in between)
    return [source, *range(first, len(layers)), target]


def _neighbours(count: int, chains: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    return above, below


def _ordered(layers: Sequence[int], chains: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the nodes of each layer, ordered so that few edges cross: by the mean place of their neighbours."""
    order: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node, layer in enumerate(layers):
        order[layer].append(node)
    above, below = _neighbours(len(layers), chains)
    place = [0.0] * len(layers)
    for layer_nodes in order:
        for index, node in enumerate(layer_nodes):
            place[node] = float(index)
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        for nodes in order if downward else reversed(order):
            near = above if downward else below
            means = {n: sum(place[m] for m in near[n]) / len(near[n]) if near[n] else place[n] for n in nodes}
            nodes.sort(key=means.__getitem__)
            for index, node in enumerate(nodes):
                place[node] = float(index)
    return order


def _centres(
    order: Sequence[Sequence[int]], sizes: Sequence[float], chains: Sequence[Sequence[int]], gap: float
) -> list[float]:
    """Return the horizontal centre of each node: near its neighbours', in the order of its layer."""
    above, below = _neighbours(len(sizes), chains)
    centres = [0.0] * len(sizes)
    for nodes in order:
        _spread(nodes, [0.0] * len(nodes), sizes, centres, gap)
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        near = above if downward else below
        for nodes in order if downward else reversed(order):
            wanted = [sum(centres[m] for m in near[n]) / len(near[n]) if near[n] else centres[n] for n in nodes]
            _spread(nodes, wanted, sizes, centres, gap)
    return centres


def _spread(
    nodes: Sequence[int], wanted: Sequence[float], sizes: Sequence[float], centres: list[float], gap: float
) -> None:
    """Set the centres of a layer to the wanted ones, moved apart where nodes would overlap."""
    edge = float("-inf")
    moved = 0.0
    for node, x in zip(nodes, wanted, strict=True):
        centres[node] = max(x, edge + gap + sizes[node] / 2)
        edge = centres[node] + sizes[node] / 2
        moved += centres[node] - x
    for node in nodes:  # as a whole they stay where they were wanted
        centres[node] -= moved / len(nodes)
