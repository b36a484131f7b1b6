"""Regions and lists name single nodes: says which of them may still become one operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Set as AbstractSet

import onnx_ir as ir

from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.graph.regions import region_of
from amp_transpiler.precision.user_lists import UserLists

__all__ = ["Refusals", "Restrictions", "nodes_within"]


@dataclasses.dataclass(frozen=True, slots=True)
class Refusals:
    """Counts the matches that were not fused.

    Attributes:
        missing: names of fusions that matched, of which the target lacks an operator or computes it wrongly.
        torn: fusion -> the last nodes of matches of which a region holds only some nodes.
        named: fusion -> the last nodes of matches with nodes that the user's lists name.
        names: the operators and values of those lists that were in such matches.
    """

    missing: set[str] = dataclasses.field(default_factory=set)
    torn: dict[str, set[ir.Node]] = dataclasses.field(default_factory=dict)
    named: dict[str, set[ir.Node]] = dataclasses.field(default_factory=dict)
    names: set[str] = dataclasses.field(default_factory=set)


class Restrictions:
    """Says which nodes may become one operator, and remembers what it refused.

    1. The target has a sound kernel.
    2. All nodes are in the same regions; the operator is in them, too. A region that ends within an operator could not
       be heeded.
    3. The user's lists name none of the nodes and values: they would decide about something that is there no more.

    Args:
        missing: names of fusions that are not done, whatever the nodes.
        lists: the user's.
    """

    def __init__(self, missing: Collection[str], lists: UserLists) -> None:
        self._missing = frozenset(missing)
        self._operators = frozenset(lists.custom_white_list) | frozenset(lists.custom_black_list)
        self._values: AbstractSet[str] = frozenset(lists.black_varnames)
        self.refusals = Refusals()

    def allow(self, fusion: str, last: ir.Node, nodes: Collection[ir.Node]) -> bool:
        """Whether nodes may become one. It is asked last, about nodes that match in all else.

        Args:
            fusion: its name, as in `ops/fusions.py`.
            last: the node that the match ends in.
            nodes: all nodes that are gone then, or of which a part is.
        """
        if fusion in self._missing:
            self.refusals.missing.add(fusion)
            return False
        if not _in_same_regions(nodes):
            self.refusals.torn.setdefault(fusion, set()).add(last)
            return False
        if names := self._named(nodes):
            self.refusals.named.setdefault(fusion, set()).add(last)
            self.refusals.names.update(names)
            return False
        return True

    def fit(self, nodes: Collection[ir.Node]) -> bool:
        """Whether one operator may compute what nodes compute; a no is not remembered, since another match may do."""
        return _in_same_regions(nodes) and not self._named(nodes)

    def _named(self, nodes: Collection[ir.Node]) -> set[str]:
        names: set[str] = set()
        if self._operators:
            names.update(self._operators & {operator_class(node) for node in nodes})
        if self._values:
            values = (value for node in nodes for value in (*node.inputs, *node.outputs) if value is not None)
            names.update(self._values & {str(value.name) for value in values})
        return names


def _in_same_regions(nodes: Collection[ir.Node]) -> bool:
    return len({region_of(node) for node in nodes}) <= 1


def nodes_within(inputs: Collection[ir.Value], last: ir.Node) -> set[ir.Node]:
    """Return a node and those that compute for nothing else, from some values on; who asks for a shape does not count.

    Args:
        inputs: values whose nodes do not belong to it.
        last: the node.
    """
    within, waiting = {last}, [last]
    while waiting:
        reader = waiting.pop()
        for value in () if reader.op_type == "Shape" else reader.inputs:
            node = None if value is None or value in inputs else value.producer()
            if node is not None and node not in within and _is_read_only_by(within, node):
                within.add(node)
                waiting.append(node)
    return within


def _is_read_only_by(nodes: Collection[ir.Node], node: ir.Node) -> bool:
    return not any(value.is_graph_output() for value in node.outputs) and all(
        use.node in nodes or use.node.op_type == "Shape" for value in node.outputs for use in value.uses()
    )
