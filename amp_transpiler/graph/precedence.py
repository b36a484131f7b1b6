"""Tells which nodes of a graph run before a node, whatever order they are run in."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard

__all__ = ["Precedence"]

_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})  # their results lie where their data do


class Precedence:
    """The order that the nodes of a graph without control flow have by what they read.

    Args:
        graph: the graph, sorted so that each node comes after those whose results it reads.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._bits = {node: 1 << place for place, node in enumerate(graph)}
        self._before: dict[ir.Node, int] = {}  # the bits of all nodes that a node is computed from
        for node in graph:
            producers = [value.producer() for value in node.inputs if value is not None]
            mask = 0
            for producer in producers:
                if producer is not None:
                    mask |= self._bits[producer] | self._before[producer]
            self._before[node] = mask

    def precedes(self, first: ir.Node, second: ir.Node) -> bool:
        """Whether `second` is computed from results of `first`."""
        return bool(self._before[second] & self._bits[first])

    def late_readers(self, value: ir.Value, writer: ir.Node) -> list[ir.Node]:
        """Return the nodes that read a value, or a view of it, and need not have run when `writer` runs.

        `writer` is among them if it reads the value.
        """
        return [reader for reader in _readers(value) if not self.precedes(reader, writer)]


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    for reader, _ in value.uses():
        yield reader
        if is_standard(reader) and reader.op_type in _VIEWS:
            yield from _readers(reader.outputs[0])
