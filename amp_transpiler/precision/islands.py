"""Low islands that would only cost casts: groups of connected low nodes that move values without computing any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.graph.walk import is_standard
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.operators import MOVEMENT

__all__ = ["movement_islands"]


def movement_islands(decisions: Mapping[ir.Node, Decision]) -> Iterator[tuple[ir.Node, str]]:
    """Yield the nodes of every such island, with a reason.

    Two low nodes belong together where one reads low what the other makes low.
    """
    low = [node for node, decision in decisions.items() if decision.form is not None]
    parent: dict[ir.Node, ir.Node] = {node: node for node in low}
    for node in low:
        form = decisions[node].form
        for index in form.inputs if form is not None else ():
            value = node.inputs[index]
            producer = value.producer() if value is not None else None
            if producer in parent and producer is not None:
                parent[_root(parent, node)] = _root(parent, producer)
    computing = {_root(parent, node) for node in low if not (is_standard(node) and node.op_type in MOVEMENT)}
    for node in low:
        if _root(parent, node) not in computing:
            yield node, "it only moves values, and nothing near computes in low precision"


def _root(parent: dict[ir.Node, ir.Node], node: ir.Node) -> ir.Node:
    while parent[node] is not node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node
