"""The bytes that are alive at each node of a graph, computed from shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.cost.operators import in_place
from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import is_static, shape_of
from amp_transpiler.graph.tensors import element_bytes
from amp_transpiler.graph.walk import bodies
from amp_transpiler.training_passes.place_casts import VIEWS

__all__ = ["Memory", "bytes_of", "reads"]


class Memory:
    """The memory of each value of a graph, whose nodes run in their order.

    Args:
        graph: a graph whose shapes are known.

    Attributes:
        graph: the graph.
        nodes: its nodes.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.nodes = list(graph)
        self._sources: dict[ir.Value, ir.Value] = {}
        for node in self.nodes:
            overwritten = node.op_type == "ScatterND" and in_place(node)
            if (overwritten or node.op_type in VIEWS) and node.inputs[0] is not None:
                self._sources[node.outputs[0]] = self.of(node.inputs[0])

    def of(self, value: ir.Value) -> ir.Value:
        """Return the value whose memory holds `value`: `value` itself, or the one it is a view of or overwrites."""
        return self._sources.get(value, value)

    def changes(self) -> Iterator[tuple[list[ir.Value], list[ir.Value]]]:
        """Yield for each node the values that take memory when it runs, and those that give it back behind it."""
        ends: dict[ir.Value, int] = {}
        for index, node in enumerate(self.nodes):
            ends |= {self.of(value): index for value in reads(node)}
        ends |= {self.of(value): len(self.nodes) for value in self.graph.outputs}
        dying: dict[int, list[ir.Value]] = {}
        for index, node in enumerate(self.nodes):
            written = [value for value in node.outputs if value in ends and value not in self._sources]
            for value in written:
                dying.setdefault(ends[value], []).append(value)
            yield written, dying.pop(index, [])

    def alive(self) -> Iterator[int]:
        """Yield the bytes alive before the first node and during each node."""
        alive = sum(map(bytes_of, self.graph.inputs))
        yield alive
        for written, dead in self.changes():
            alive += sum(map(bytes_of, written))
            yield alive
            alive -= sum(map(bytes_of, dead))


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and its bodies read."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in bodies(node):
        for inner in body:
            yield from reads(inner)


def bytes_of(value: ir.Value) -> int:
    """Return the bytes of a value.

    Raises:
        InputError: its shape is not known.
    """
    if value.dtype is None or not is_static(value):
        raise InputError(f"'{value.name}' has no known size, {value.type} {value.shape}: give every input a full shape")
    return int(math.prod(shape_of(value)) * element_bytes(value.dtype))
