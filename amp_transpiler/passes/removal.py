"""Removal of many nodes of a graph in one go."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.walk import is_used

__all__ = ["Removal"]


class Removal:
    """Nodes of one graph that are on their way out of it.

    A graph looks through all its outputs whenever it is asked to remove something. So a pass that removes many nodes
    does it in one go: as a context, which ends with the removal.
    """

    def __init__(self) -> None:
        self._nodes: dict[ir.Node, None] = {}

    def __contains__(self, node: ir.Node) -> bool:
        return node in self._nodes

    def add(self, node: ir.Node) -> None:
        """Let a node read nothing any more; it is removed in the end."""
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        self._nodes[node] = None

    def add_unused(self, node: ir.Node) -> None:
        """Add a node unless something reads what it makes."""
        if node not in self._nodes and not any(is_used(value) for value in node.outputs):
            self.add(node)

    def __enter__(self) -> Removal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._nodes:
            graph = next(iter(self._nodes)).graph
            assert graph is not None  # nobody else removes them
            graph.remove(self._nodes, safe=True)
