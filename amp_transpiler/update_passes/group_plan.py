"""Plans which chains of an optimizer are computed together: those that compute the same, where it pays."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.tensors import element_bytes
from amp_transpiler.update_passes.update_chains import Chain, is_scalar, source_of

__all__ = ["CPU_WORTH", "CUDA_WORTH", "MOST_INPUTS", "Group", "Worth", "plan_groups", "runs_of"]

MOST_INPUTS = 32  # ONNX Runtime's CUDA kernels join and split so many tensors by a table in the kernel's arguments
_MOST_ROWS = 1 << 18  # with separate scalars: a number for each row


@dataclasses.dataclass(frozen=True, slots=True)
class Worth:
    """The costs and savings of grouping on a device.

    Attributes:
        launch: seconds that one more operator takes, whatever its size.
        bandwidth: bytes a second that memory reads or writes.
        most_elements: of a stack: what is computed on the way takes a multiple of its memory.
        merges: whether tensors of unequal shapes become one group, and parameters that the forward pass reads become
            rows. Not where ranks share out the updates: what is in one matrix has one owner.
    """

    launch: float
    bandwidth: float
    most_elements: int
    merges: bool = True


CUDA_WORTH = Worth(launch=5e-6, bandwidth=3.35e12, most_elements=1 << 25)
"""An H100, as far as it is known without one."""

CPU_WORTH = Worth(launch=2e-6, bandwidth=1e10, most_elements=1 << 16)
"""One core; a stack should stay in its cache."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Chains that become one, whose tensors are rows of matrices.

    Attributes:
        chains: the chains, two at least, in the order of the rows.
    """

    chains: tuple[Chain, ...]

    @property
    def first(self) -> Chain:
        """The chain that shows what all of them compute."""
        return self.chains[0]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each chain's tensors."""
        return tuple(chain.shape for chain in self.chains)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The elements of each chain's tensors."""
        return tuple(map(math.prod, self.shapes))

    @property
    def width(self) -> int:
        """The elements of a row."""
        return math.gcd(*self.sizes)

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that each chain has."""
        width = self.width
        return tuple(size // width if width else 1 for size in self.sizes)

    def leaf(self, index: int) -> tuple[ir.Value, ...]:
        """Return a leaf of each chain."""
        return tuple(chain.leaves[index] for chain in self.chains)

    def scalar(self, index: int) -> tuple[ir.Value, ...]:
        """Return a scalar of each chain."""
        return tuple(chain.scalars[index] for chain in self.chains)

    def made(self, place: int) -> tuple[ir.Value, ...]:
        """Return the result of a node of each chain."""
        return tuple(chain.nodes[place].outputs[0] for chain in self.chains)


def runs_of(shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Yield the borders of runs of equal shapes, of as many members as one kernel splits at most."""
    for _, run in itertools.groupby(range(len(shapes)), key=shapes.__getitem__):
        members = list(run)
        for start in range(0, len(members), MOST_INPUTS):
            part = members[start : start + MOST_INPUTS]
            yield part[0], part[-1] + 1


def plan_groups(chains: Iterable[Chain], worth: Worth) -> list[Group]:
    """Return the groups that pay. A chain without state has the neighbours that the parameter of its gradient has."""
    alike: dict[object, list[Chain]] = {}
    others: list[Chain] = []
    for chain in chains:
        if _is_update(chain):
            alike.setdefault(chain.key if worth.merges else (chain.key, chain.shape), []).append(chain)
        else:
            others.append(chain)
    groups = [group for same in alike.values() for group in _parts(same, worth)]
    place = {
        value: (n, row)
        for n, group in enumerate(groups)
        for row, c in enumerate(group.chains)
        for leaf in c.leaves
        for value in (source_of(leaf), leaf)
    }
    for beside, same in _beside(others, place, worth):
        if beside and worth.merges:  # what it reads is joined already
            groups += [Group(tuple(same))] if len(same) > 1 else []
        else:
            groups += _parts(same, worth)
    return groups


def _is_update(chain: Chain) -> bool:
    return bool(chain.states) or any(leaf.is_graph_input() for leaf in chain.leaves)


def _beside(
    chains: Sequence[Chain], place: Mapping[ir.Value, tuple[int, int]], worth: Worth
) -> list[tuple[bool, list[Chain]]]:
    """Return chains that compute the same of tensors of one group, in the order of its rows; and of none."""
    alike: dict[tuple[object, int, object], list[tuple[int, Chain]]] = {}
    for chain in chains:
        group, row = min((place[leaf] for leaf in chain.leaves if leaf in place), default=(-1, 0))
        shape = None if worth.merges and group >= 0 else chain.shape
        alike.setdefault((chain.key, group, shape), []).append((row, chain))
    ordered = [(group >= 0, sorted(same, key=lambda pair: pair[0])) for (_, group, _), same in alike.items()]
    return [(beside, [chain for _, chain in same]) for beside, same in ordered]


def _parts(chains: Sequence[Chain], worth: Worth) -> list[Group]:
    """Return chains that compute the same as groups, where that pays."""
    if not chains[0].shape:
        return [Group(tuple(chains))] if len(chains) > 1 else []
    groups = _merged(chains, worth) if worth.merges else _equal_parts(chains, worth)
    return [group for group in groups if len(group.chains) > 1 and _gain(group, worth) > 0]


def _equal_parts(chains: Sequence[Chain], worth: Worth) -> list[Group]:
    """Return chains of equal shapes as groups of about equal size, each joined by one kernel."""
    most = MOST_INPUTS
    if size := math.prod(chains[0].shape):
        most = min(most, worth.most_elements // size)
    if most < 2:
        return []
    count = math.ceil(len(chains) / most)
    borders = [len(chains) * n // count for n in range(count + 1)]
    return [Group(tuple(chains[a:b])) for a, b in itertools.pairwise(borders)]


def _merged(chains: Sequence[Chain], worth: Worth) -> list[Group]:
    """Return chains as groups, small tensors first: each joins the group that gains most by it, if any does."""
    by_shape: dict[tuple[int, ...], list[Chain]] = {}
    for chain in chains:
        by_shape.setdefault(chain.shape, []).append(chain)
    groups: list[Group] = []
    for shape, same in sorted(by_shape.items(), key=lambda pair: math.prod(pair[0])):
        at_most = max(1, worth.most_elements // max(1, math.prod(shape)))
        for start in range(0, len(same), at_most):
            groups = _joined(groups, Group(tuple(same[start : start + at_most])), worth)
    return groups


def _joined(groups: list[Group], new: Group, worth: Worth) -> list[Group]:
    """Return the groups with a new one, by itself or as part of the one that gains most by it."""
    alone, best = _gain(new, worth), None
    if alone < 0:  # too large to be joined with its like
        return [*groups, *(Group((chain,)) for chain in new.chains)]
    most = 0.0
    for index, group in enumerate(groups):
        both = Group((*group.chains, *new.chains))
        if sum(both.sizes) > worth.most_elements:
            continue
        more = _gain(both, worth) - alone - _gain(group, worth)
        if more > most:
            best, most = index, more
    if best is None:
        return [*groups, new]
    return [Group((*g.chains, *new.chains)) if n == best else g for n, g in enumerate(groups)]


def _gain(group: Group, worth: Worth) -> float:
    """Return the seconds that a group saves: operators saved, less the bytes moved, each read once and written."""
    first, count = group.first, len(group.chains)
    if count == 1:
        return 0.0
    joined = [leaf for index, leaf in enumerate(first.leaves) if index not in first.states]
    state_places = set(first.states.values())
    members = set(first.nodes)
    handed = [
        n.outputs[0] for place, n in enumerate(first.nodes) if place not in state_places and _is_handed(n, members)
    ]
    handed += [first.leaves[index] for index in first.states if first.shape and _is_read(first.leaves[index], members)]
    runs = list(runs_of(group.shapes))
    split = sum(b - a > 1 for a, b in runs) + (len(runs) if len(runs) > 1 else 0)
    uneven = len(set(group.sizes)) > 1
    differing = sum(len({chain.scalars[n] for chain in group.chains}) > 1 for n in range(len(first.scalars)))
    columns = differing if uneven else 0
    if columns and sum(group.rows) > _MOST_ROWS:
        return -math.inf
    joins = 1 + math.ceil(max(0, count - MOST_INPUTS) / (MOST_INPUTS - 1))
    casts = sum(source_of(value) is not value for value in joined) + sum(map(_is_narrowed, handed))
    saved = (count - 1) * (len(first.nodes) + casts) - len(joined) * joins - len(handed) * split - columns
    moved = sum(2 * _bytes(source_of(value)) for value in joined)
    moved += sum(2 * _bytes(value) for value in handed) * (1 + (len(runs) > 1))
    return saved * worth.launch - moved * sum(group.sizes) / worth.bandwidth


def _is_handed(node: ir.Node, members: set[ir.Node]) -> bool:
    """Whether a tensor that a chain makes is read elsewhere."""
    value = node.outputs[0]
    return not is_scalar(value) and (value.is_graph_output() or _is_read(value, members))


def _is_read(value: ir.Value, members: set[ir.Node]) -> bool:
    return any(use.node not in members for use in value.uses())


def _is_narrowed(value: ir.Value) -> bool:
    return any(use.node.op_type == "Cast" and use.node.outputs[0].dtype in LOW_DTYPES for use in value.uses())


def _bytes(value: ir.Value) -> float:
    """Return the bytes of an element as it is handed out: cast first, if all its readers do so."""
    kinds = {use.node.outputs[0].dtype for use in value.uses() if use.node.op_type == "Cast"}
    narrow = min((element_bytes(kind) for kind in kinds if kind is not None), default=4.0)
    return min(narrow, element_bytes(value.dtype or ir.DataType.FLOAT))
