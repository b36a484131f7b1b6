"""Which chains of an optimizer are computed together: those that compute the same, where it pays."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.passes.training.update_chains import Chain

__all__ = ["CPU_WORTH", "CUDA_WORTH", "Group", "Worth", "plan_groups"]

MOST_MEMBERS = 32  # ONNX Runtime's CUDA kernels join and split so many tensors by a table in the kernel's arguments


@dataclasses.dataclass(frozen=True, slots=True)
class Worth:
    """The costs and savings of grouping on a device.

    Attributes:
        launch: seconds that one more operator takes, whatever its size.
        bandwidth: bytes a second that memory reads or writes.
        most_elements: of a stack: what is computed on the way takes a multiple of its memory.
    """

    launch: float
    bandwidth: float
    most_elements: int


CUDA_WORTH = Worth(launch=5e-6, bandwidth=3.35e12, most_elements=1 << 25)
"""An H100, as far as it is known without one."""

CPU_WORTH = Worth(launch=2e-6, bandwidth=1e10, most_elements=1 << 16)
"""One core; a stack should stay in its cache."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Chains that become one, whose tensors are rows.

    Attributes:
        chains: the chains, two at least, in the order of the rows.
    """

    chains: tuple[Chain, ...]

    @property
    def first(self) -> Chain:
        """The chain that shows what all of them compute."""
        return self.chains[0]

    @property
    def size(self) -> int:
        """The elements of a row."""
        return math.prod(self.first.shape)

    def leaf(self, index: int) -> tuple[ir.Value, ...]:
        """Return a leaf of each chain."""
        return tuple(chain.leaves[index] for chain in self.chains)

    def scalar(self, index: int) -> tuple[ir.Value, ...]:
        """Return a scalar of each chain."""
        return tuple(chain.scalars[index] for chain in self.chains)

    def made(self, place: int) -> tuple[ir.Value, ...]:
        """Return the result of a node of each chain."""
        return tuple(chain.nodes[place].outputs[0] for chain in self.chains)


def plan_groups(chains: Iterable[Chain], worth: Worth) -> list[Group]:
    """Return the groups that pay. A chain without state has the neighbours that the parameter of its gradient has."""
    alike: dict[object, list[Chain]] = {}
    others: list[Chain] = []
    for chain in chains:
        if _is_update(chain):
            alike.setdefault(chain.key, []).append(chain)
        else:
            others.append(chain)
    groups = [group for same in alike.values() for group in _parts(same, worth)]
    place = {
        leaf: (n, row) for n, group in enumerate(groups) for row, c in enumerate(group.chains) for leaf in c.leaves
    }
    for same in _beside(others, place):
        groups += _parts(same, worth)
    return groups


def _is_update(chain: Chain) -> bool:
    return bool(chain.states) or any(leaf.is_graph_input() for leaf in chain.leaves)


def _beside(chains: Sequence[Chain], place: Mapping[ir.Value, tuple[int, int]]) -> list[list[Chain]]:
    """Return chains that compute the same of tensors of one group, in the order of its rows."""
    alike: dict[object, list[tuple[int, Chain]]] = {}
    for chain in chains:
        group, row = min((place[leaf] for leaf in chain.leaves if leaf in place), default=(-1, 0))
        alike.setdefault((chain.key, group), []).append((row, chain))
    return [[chain for _, chain in sorted(same, key=lambda found: found[0])] for same in alike.values()]


def _parts(chains: Sequence[Chain], worth: Worth) -> list[Group]:
    """Return chains that compute the same as groups of about equal size, where that pays."""
    joins = [index for index in range(len(chains[0].leaves)) if index not in chains[0].states]
    most = MOST_MEMBERS if joins or chains[0].shape else len(chains)
    if size := math.prod(chains[0].shape):
        most = min(most, worth.most_elements // size)
    if most < 2 or len(chains) < 2:
        return []
    count = math.ceil(len(chains) / most)
    borders = [len(chains) * n // count for n in range(count + 1)]
    found = [Group(tuple(chains[a:b])) for a, b in itertools.pairwise(borders) if b - a > 1]
    return [group for group in found if _pays(group, worth)]


def _pays(group: Group, worth: Worth) -> bool:
    """Whether the operators saved outweigh the bytes that joining and splitting move, each read once and written."""
    first, count = group.first, len(group.chains)
    joined = [leaf for index, leaf in enumerate(first.leaves) if index not in first.states]
    kept = set(first.states.values())
    split = [
        n.outputs[0] for place, n in enumerate(first.nodes) if place not in kept and n.outputs[0].is_graph_output()
    ]
    moved = sum(2 * _bytes(value) for value in (*joined, *split)) * group.size * count
    saved = (count - 1) * len(first.nodes) - len(joined) - len(split)
    return saved * worth.launch > moved / worth.bandwidth


def _bytes(value: ir.Value) -> float:
    return (value.dtype or ir.DataType.FLOAT).itemsize
