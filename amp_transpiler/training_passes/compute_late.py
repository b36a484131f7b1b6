"""Moves nodes of a training step behind, to where their results are read, as far as that takes no memory."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.alive import Memory, bytes_of, reads

__all__ = ["ComputeLate"]

_LARGE = 1 << 16  # bytes


class ComputeLate(Pass[PassResult]):
    """Computes large results right before they are read first; counts the nodes that it moves.

    The backward pass lays out data of the forward pass anew, for which nothing but those is needed: sorting the nodes
    can leave that in the forward pass, and the copies take memory all the time in between.

    1. What a node reads is alive anyway until its result is read, or takes no more memory than the result.
    2. Results of the graph stay where they are computed, but for those of other results and of inputs alone: low copies
       of new masters are computed at the end.

    Sessions must run the nodes in their order. Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        order = _Order(Memory(model.graph))
        moves = [(node, reader) for node in reversed(order.memory.nodes) if (reader := order.move(node)) is not None]
        for node, reader in moves:
            model.graph.remove(node)
            model.graph.insert_before(reader, node)
        ends = [node for node in order.memory.nodes if order.is_for_the_end(node)]
        if ends and ends == list(model.graph)[-len(ends) :]:
            ends = []
        for node in ends:
            model.graph.remove(node)
            model.graph.append(node)
        return PassResult(model, modified=bool(moves or ends), count=len(moves) + len(ends))


class _Order:
    """The nodes of a graph with the places at which they will run.

    Args:
        memory: of the graph.

    Attributes:
        memory: of the graph.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._places = {node: place for place, node in enumerate(memory.nodes)}
        self._last: dict[ir.Value, list[int]] = {}  # the places where what lies in a value's memory is read
        for node, place in self._places.items():
            for value in reads(node):
                self._last.setdefault(memory.of(value), []).append(place)

    def move(self, node: ir.Node) -> ir.Node | None:
        """Put a node before the first that reads it, and return that one; None if it stays.

        It is called for the last node first.
        """
        if not _is_large(node):
            return None
        readers = [reader for value in node.outputs for reader, _ in value.uses()]
        if not all(reader in self._places for reader in readers):  # some are in bodies
            return None
        place, reader = self._places[node], min(readers, key=self._places.__getitem__)
        behind = self._places[reader]
        sources = {self.memory.of(value) for value in reads(node)}
        if behind <= place + 1 or sum(self._more(source, place, behind) for source in sources) > _size(node):
            return None
        for value in reads(node):
            places = self._last[self.memory.of(value)]
            places[places.index(place)] = behind
        self._places[node] = behind
        return reader

    def is_for_the_end(self, node: ir.Node) -> bool:
        """Whether a node makes nothing but large results of the graph, of values that stay alive anyway."""
        if not all(value.is_graph_output() and not value.uses() and _has_size(value) for value in node.outputs):
            return False
        sources = [self.memory.of(value) for value in reads(node)]
        return sum(map(bytes_of, node.outputs)) >= _LARGE and all(map(_stays, sources))

    def _more(self, source: ir.Value, place: int, behind: int) -> float:
        """Return the bytes that a value takes longer if the node at `place` reads it at a place `behind`."""
        ends = (other for other in self._last[source] if other != place)
        return 0 if _stays(source) or not _has_size(source) or max(ends, default=0) >= behind else bytes_of(source)


def _stays(value: ir.Value) -> bool:
    """Whether a value is alive until the end: an input, a constant or a result of the graph."""
    return value.producer() is None or value.is_graph_output()


def _size(node: ir.Node) -> int:
    return sum(bytes_of(value) for value in node.outputs if value.uses())


def _is_large(node: ir.Node) -> bool:
    """Whether a node has a large result, and none of unknown size or that the graph hands out."""
    if any(value.is_graph_output() or (value.uses() and not _has_size(value)) for value in node.outputs):
        return False
    return _size(node) >= _LARGE


def _has_size(value: ir.Value) -> bool:
    return value.dtype is not None and is_static(value)
