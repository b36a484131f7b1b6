"""Marks on the nodes of one gradient, by which a lowering pass finds all of it and may replace it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.constness import constant_of

__all__ = ["GRADIENT_KEY", "MarkedGradient", "has_marks", "marked_gradients", "marks", "result"]

GRADIENT_KEY = "amp_transpiler.gradient"  # metadata: which gradient the node is part of
_RESULT_KEY = "amp_transpiler.gradient_of_input"  # metadata: the input whose gradient the node makes


@contextmanager
def marks(builder: GraphBuilder, token: str) -> Iterator[None]:
    """Mark the nodes that the builder makes in this context as part of the gradient `token`."""
    builder.metadata[GRADIENT_KEY] = token
    try:
        yield
    finally:
        del builder.metadata[GRADIENT_KEY]


def result(value: ir.Value, index: int) -> None:
    """Say that a value is the gradient of input `index`, before it is fitted to that input."""
    node = value.producer()
    assert node is not None
    node.metadata_props[_RESULT_KEY] = str(index)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MarkedGradient:
    """The nodes of a gradient that nothing else reads into.

    Attributes:
        nodes: in the order of the graph.
        reads: what they read from outside, constants apart.
        results: index of an input -> its gradient.
    """

    nodes: tuple[ir.Node, ...]
    reads: frozenset[ir.Value]
    results: dict[int, ir.Value]

    def before(self, value: ir.Value) -> ir.Node:
        """Return the first node that reads `value`, in front of which everything that is read has been made."""
        return next(node for node in self.nodes if value in node.inputs)


def has_marks(model: ir.Model) -> bool:
    """Whether a model has marked gradients."""
    return any(GRADIENT_KEY in node.metadata_props for node in model.graph)


def marked_gradients(graph: ir.Graph) -> list[MarkedGradient]:
    """List the marked gradients of a graph that are whole: only their results are read elsewhere."""
    nodes_by_token: dict[str, list[ir.Node]] = {}
    for node in graph:
        token = node.metadata_props.get(GRADIENT_KEY)
        if token is not None:
            nodes_by_token.setdefault(token, []).append(node)
    return [whole for nodes in nodes_by_token.values() if (whole := _whole(nodes)) is not None]


def _whole(nodes: list[ir.Node]) -> MarkedGradient | None:
    inside = set(nodes)
    results: dict[int, ir.Value] = {}
    for node in nodes:
        for value in node.outputs:
            if not value.is_graph_output() and all(use.node in inside for use in value.uses()):
                continue
            index = node.metadata_props.get(_RESULT_KEY)
            if index is None or int(index) in results:
                return None
            results[int(index)] = value
    computed = {value for node in nodes for value in node.outputs}
    reads = {value for node in nodes for value in node.inputs if value is not None and value not in computed}
    return MarkedGradient(tuple(nodes), frozenset(v for v in reads if constant_of(v) is None), results)
