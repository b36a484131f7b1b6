"""Finds a smallest set of nodes that mends a low model if they stay float32; every set is proven by a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from amp_transpiler.diagnosis.suspects import Findings
from amp_transpiler.graph.walk import reads_of
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.report.diagnosis import Suspect
from amp_transpiler.verification.conversions import Conversions, Measured

__all__ = ["MOST_RUNS", "CureSearch", "CuredBy", "find_cure", "units_of"]

_SINGLE = 8  # suspects that are tried one by one
_FEW, _FEW_SHARE = 32, 0.25  # suspects that few nodes make up, and the share of all that they are at most
MOST_RUNS = 80
"""Conversions from which a search takes out no more nodes."""


@dataclasses.dataclass(frozen=True, slots=True)
class CuredBy:
    """The outcome of a search.

    Attributes:
        nodes: names of the nodes.
        measured: the conversion with them in float32.
        runs: how many conversions were run.
    """

    nodes: tuple[str, ...]
    measured: Measured
    runs: int


def units_of(findings: Findings, suspects: Sequence[Suspect]) -> list[tuple[str, ...]]:
    """Return for each suspect the nodes that must be float32 for its result to be as in float32.

    What the low format cannot hold must not be cast down for a reader either, so those are in the unit as well; and
    so are nodes before it that have no partner in the low program, whose errors show in its result. The last unit is
    everything.
    """
    units = [_unit(findings, suspect) for suspect in suspects]
    nodes = dict.fromkeys(node for value in findings.reference.values() if (node := value.producer()) is not None)
    return [*units, tuple(str(node.name) for node in nodes)]


def _unit(findings: Findings, suspect: Suspect) -> tuple[str, ...]:
    value = findings.reference.get(suspect.value)
    if value is None:  # only the low program has it
        return (suspect.node,)
    nodes = [suspect.node, *_unpaired_before(findings, value)]
    if suspect.fault in ("overflow", "vanishing"):
        nodes += [str(use.node.name) for use in value.uses() if use.node.graph is value.graph]
    return tuple(dict.fromkeys(nodes))


def _unpaired_before(findings: Findings, value: ir.Value) -> list[str]:
    """Return the names of the nodes without a partner that a result is computed by."""
    unmatched = frozenset(findings.pairs.unmatched)
    before: dict[ir.Node, None] = {}
    pending = [value.producer()]
    while pending:
        node = pending.pop()
        if node is None:
            continue
        for maker in (read.producer() for read in reads_of(node)):
            if maker in unmatched and maker not in before:
                before[maker] = None
                pending.append(maker)
    return [str(node.name) for node in before]


def find_cure(conversions: Conversions, units: Sequence[tuple[str, ...]]) -> CuredBy | None:
    """Find the fewest nodes that bring a conversion within its limits; see `CureSearch`.

    Args:
        conversions: the program, how it is converted, and its limits.
        units: sets of nodes, the likeliest first.

    Returns:
        None if no set holds.

    Raises:
        CannotCompare: an emulated conversion does not run.
    """
    return CureSearch(conversions, units).find()


class CureSearch:
    """Finds the fewest nodes that bring a conversion within its limits if they stay float32.

    1. Nothing, then the likeliest units one by one.
    2. The likeliest units together, twice as many each time, until a set holds.
    3. From that, units and then nodes are taken out as long as the rest holds.

    Args:
        conversions: the program, how it is converted, and its limits.
        units: sets of nodes, the likeliest first.
        confirm: hold each set by all that a conversion is checked by, so that it can be written.
    """

    def __init__(self, conversions: Conversions, units: Sequence[tuple[str, ...]], *, confirm: bool = False) -> None:
        self._conversions, self._units, self._confirm = conversions, units, confirm
        self._known: dict[frozenset[str], Measured] = {}

    def find(self) -> CuredBy | None:
        """Return the fewest nodes; None if no set holds. What an earlier search has run is not run again.

        Raises:
            CannotCompare: an emulated conversion does not run.
        """
        return self._fewest_of(self._units)

    def find_few(self) -> CuredBy | None:
        """Return the fewest nodes of the likeliest few units; None if these do not hold.

        Raises:
            CannotCompare: an emulated conversion does not run.
        """
        return self._fewest_of(self._units[: min(_FEW, int(_FEW_SHARE * len(self._units)))])

    def _fewest_of(self, units: Sequence[tuple[str, ...]]) -> CuredBy | None:
        singles = [(), *units[:_SINGLE]]
        start = next((nodes for nodes in singles if self.holds(nodes)), None)
        if start is None:
            start = self._growing(units)
        if start is None:
            return None
        nodes = self._shrunk(start)
        return CuredBy(nodes, self.measured(nodes), self.runs)

    @property
    def runs(self) -> int:
        """How many conversions were run."""
        return len(self._known)

    def measured(self, nodes: Iterable[str]) -> Measured:
        """Return the conversion with some nodes in float32, compared."""
        key = frozenset(nodes)
        if key not in self._known:
            self._known[key] = self._measured(_forced(self._conversions.policy, key))
        return self._known[key]

    def _measured(self, policy: Policy) -> Measured:
        return self._conversions.measured(policy, confirm=True) if self._confirm else self._conversions.measured(policy)

    def holds(self, nodes: Iterable[str]) -> bool:
        """Whether a conversion with some nodes in float32 keeps the limits."""
        return self.measured(nodes).excess <= 1.0

    def _growing(self, units: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
        """Return the nodes of the first units that hold, twice as many each time."""
        count = 2
        while True:
            nodes = tuple(dict.fromkeys(name for unit in units[:count] for name in unit))
            if self.holds(nodes):
                return nodes
            if count >= len(units):
                return None
            count *= 2

    def _shrunk(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Take nodes out, in ever smaller groups, as long as the rest holds: a delta debugging."""
        size = max(1, len(nodes) // 2)
        while nodes:
            start = 0
            while start < len(nodes) and self.runs < MOST_RUNS:
                # The likeliest are in front, so the others go first.
                end = len(nodes) - start
                rest = nodes[: max(0, end - size)] + nodes[end:]
                if self.holds(rest):
                    nodes = rest
                else:
                    start += size
            if size == 1:
                break
            size = max(1, size // 2)
        return nodes


def _forced(policy: Policy, names: frozenset[str]) -> Policy:
    reason = Reason("words", {"words": "the cure of a diagnosis"})
    forced = {**policy.forced_high, **dict.fromkeys(sorted(names), reason)}
    return dataclasses.replace(policy, forced_high=forced)
