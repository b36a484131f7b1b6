"""Nodes in groups, by the scopes of their names, so that a drawing of thousands of nodes can be opened bit by bit."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from amp_transpiler.view.outline import Outline, OutlineNode

__all__ = ["MOST", "Group", "grouped"]

MOST = 40
"""The most boxes of one level. A level with more is cut into stretches of the order of execution."""

_STRETCH = 24  # boxes of one of these
_FEW = 3  # single nodes that need no stretch of their own
_DEEPEST = 24  # levels; what is named deeper stays together
_ROLES = {"backward": "backward pass", "optimize": "optimizer"}


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Nodes that belong together.

    Attributes:
        title: the scope that they share.
        members: single nodes, by their place in the outline, and smaller groups; in the order of their first node.
        nodes: all nodes, those of smaller groups included, in the order of execution.
    """

    title: str
    members: tuple[int | Group, ...]
    nodes: tuple[int, ...]


def grouped(outline: Outline, title: str = "") -> Group:
    """Return the nodes of a graph in groups of groups; each level has at most `MOST` members.

    Nodes that fit into one level stay together. More are grouped by the modules that PyTorch's exporter notes, or by
    the scopes in their names (`/encoder/layer.0/MatMul`), and by their part of a training step before all else.
    """
    return _group(title, [(path, index) for index, path in enumerate(_paths(outline))], 0)


def _paths(outline: Outline) -> list[tuple[str, ...]]:
    """Return the scopes of each node. One without any has those of what it reads, else those of a reader."""
    paths = [_own_path(node) for node in outline.nodes]
    made_in: dict[str, tuple[str, ...]] = {}
    for index, node in enumerate(outline.nodes):
        if not paths[index]:
            paths[index] = next((made_in[value] for value in node.inputs if made_in.get(value)), ())
        made_in.update(dict.fromkeys(node.outputs, paths[index]))
    read_in: dict[str, tuple[str, ...]] = {}
    for index, node in reversed(list(enumerate(outline.nodes))):
        if not paths[index]:
            paths[index] = next((read_in[value] for value in node.outputs if read_in.get(value)), ())
        read_in.update(dict.fromkeys(node.inputs, paths[index]))
    return paths


def _own_path(node: OutlineNode) -> tuple[str, ...]:
    role = (_ROLES[node.role],) if node.role in _ROLES else ()
    return role + (_modules(node.modules) or _named(node))[:_DEEPEST]


@functools.lru_cache(maxsize=4096)
def _modules(text: str) -> tuple[str, ...]:
    """Return `('encoder', 'layer.0')` for the text `['', 'encoder', 'encoder.layer.0', 'matmul']`."""
    if not text:
        return ()
    try:
        scopes = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return ()  # written by somebody else
    if not isinstance(scopes, list) or not all(isinstance(part, str) for part in scopes):
        return ()
    before = itertools.chain([""], scopes)
    return tuple(part.removeprefix(f"{outer}.") for outer, part in zip(before, scopes[:-1], strict=False) if part)


def _named(node: OutlineNode) -> tuple[str, ...]:
    return tuple(part for part in node.name.partition(";")[0].split("/")[:-1] if part)


def _group(title: str, paths: Sequence[tuple[tuple[str, ...], int]], depth: int) -> Group:
    """Return the group of the nodes whose scopes are the same up to `depth`."""
    every = tuple(index for _, index in paths)
    while paths and (shared := _shared(paths, depth)) is not None:  # a scope that holds one scope and nothing else
        title, depth = f"{title}/{shared}" if title else shared, depth + 1
    if len(every) <= MOST:
        return Group(title, every, every)
    inner: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for path, index in paths:
        if depth < len(path):
            inner.setdefault(path[depth], []).append((path, index))
    members: list[int | Group] = [index for path, index in paths if depth >= len(path) or len(inner[path[depth]]) == 1]
    members += [_group(scope, scope_paths, depth + 1) for scope, scope_paths in inner.items() if len(scope_paths) > 1]
    return Group(title, _cut(sorted(members, key=_first)), every)


def _shared(paths: Sequence[tuple[tuple[str, ...], int]], depth: int) -> str | None:
    first = paths[0][0][depth] if depth < len(paths[0][0]) else None
    same = all(depth < len(path) and path[depth] == first for path, _ in paths)
    return first if same else None


def _first(member: int | Group) -> int:
    return member if isinstance(member, int) else member.nodes[0]


def _cut(members: Sequence[int | Group]) -> tuple[int | Group, ...]:
    """Cut a level with too many members into stretches, and these again, until each level has few.

    Single nodes between two scopes become stretches first, so that scopes stay whole if they can.
    """
    level = tuple(members)
    if len(level) > MOST:
        runs = itertools.groupby(level, lambda member: isinstance(member, int))
        level = tuple(itertools.chain.from_iterable(_bundled(tuple(run)) if loose else run for loose, run in runs))
    while len(level) > MOST:
        level = _bundled(level)
    return level


def _bundled(members: tuple[int | Group, ...]) -> tuple[int | Group, ...]:
    if len(members) <= _FEW:
        return members
    size = math.ceil(len(members) / math.ceil(len(members) / _STRETCH))
    return tuple(_stretch(members[start : start + size]) for start in range(0, len(members), size))


def _stretch(members: tuple[int | Group, ...]) -> Group:
    nodes = tuple(sorted(itertools.chain.from_iterable(map(_nodes, members))))
    return Group(f"nodes {nodes[0] + 1} to {nodes[-1] + 1}", members, nodes)


def _nodes(member: int | Group) -> Iterator[int]:
    yield from (member,) if isinstance(member, int) else member.nodes
