"""Bodies of control flow for differentiation: the values they capture, and copies to append the backward pass to."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.random_copies import mark_copy
from amp_transpiler.graph.walk import bodies

__all__ = ["captured", "copy_body", "discard", "discard_after", "remove_unused", "unlink"]


def captured(node: ir.Node) -> list[ir.Value]:
    """Return the outer values that the bodies of a node read, each once, in order."""
    inside: set[ir.Value] = set()
    outer: dict[ir.Value, None] = {}
    for _, body in bodies(node):
        inside.update(body.inputs)
        inside.update(body.initializers.values())
        for inner in body:
            for value in (*inner.inputs, *captured(inner)):
                if value is not None and value not in inside:
                    outer[value] = None
            inside.update(inner.outputs)
        for value in body.outputs:
            if value not in inside:
                outer[value] = None
    return list(outer)


def copy_body(body: ir.Graph, builder: GraphBuilder) -> tuple[ir.Graph, dict[ir.Value, ir.Value]]:
    """Return a copy of a body with new names, and the copy of each value; captured values stay the same.

    A Dropout and its copy drop the same.
    """
    copy = body.clone(allow_outer_scope_values=True)
    for original, node in zip(body.all_nodes(), copy.all_nodes(), strict=True):
        if original.op_type == "Dropout":
            mark_copy(original, node, original.name or builder.names.fresh(f"{builder.prefix}Dropout"))
    copy.name = builder.names.fresh(f"{builder.prefix}{body.name or 'body'}")
    copied = dict(_twins(body, copy))
    for value in copied.values():
        if value.name:
            value.name = builder.names.fresh(f"{builder.prefix}{value.name}")
    for node in copy.all_nodes():
        node.name = builder.names.fresh(f"{builder.prefix}{node.name or node.op_type}")
        node.metadata_props.update(builder.node_metadata())
    return copy, copied


def _twins(body: ir.Graph, copy: ir.Graph) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield every value of a body and its bodies with its counterpart in the copy."""
    yield from zip(body.inputs, copy.inputs, strict=True)
    yield from zip(body.initializers.values(), copy.initializers.values(), strict=True)
    for node, other in zip(body, copy, strict=True):
        yield from zip(node.outputs, other.outputs, strict=True)
        for (_, inner), (_, twin) in zip(bodies(node), bodies(other), strict=True):
            yield from _twins(inner, twin)


def discard(graph: ir.Graph, node: ir.Node) -> None:
    """Remove a node whose results are not read, with what its bodies capture."""
    for _, body in bodies(node):
        unlink(body)
    graph.remove(node, safe=True)


def unlink(body: ir.Graph) -> None:
    """Make a body that is thrown away read nothing, so that it counts as a use of no value."""
    body.outputs.clear()
    for inner in body.all_nodes():
        for index in range(len(inner.inputs)):
            inner.replace_input_with(index, None)


def discard_after(graph: ir.Graph, last: ir.Node | None) -> None:
    """Remove the nodes that were appended to a graph after `last`."""
    while len(graph) and graph[-1] is not last:
        discard(graph, graph[-1])


def remove_unused(graph: ir.Graph) -> None:
    """Remove the nodes of a graph whose outputs are not read."""
    needed = set(graph.outputs)
    for node in reversed(list(graph)):
        if not any(value in needed or value.uses() for value in node.outputs):
            graph.remove(node, safe=True)
