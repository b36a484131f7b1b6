"""A copy of a program without If, to be looked at: both branches computed, and one chosen by Where."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard

__all__ = ["flattened", "has_branches"]


def has_branches(model: ir.Model) -> bool:
    """Whether the main graph has an If."""
    return any(_is_if(node) for node in model.graph)


def flattened(model: ir.Model) -> ir.Model:
    """Return a copy in which the branches of every If of the main graph stand in the main graph; names are kept."""
    copy = model.clone()
    while (branch := next((node for node in copy.graph if _is_if(node)), None)) is not None:
        _dissolve(copy.graph, branch)
    return copy


def _is_if(node: ir.Node) -> bool:
    return node.op_type == "If" and is_standard(node)


def _dissolve(graph: ir.Graph, branch: ir.Node) -> None:
    results: list[list[ir.Value]] = []
    for name in ("then_branch", "else_branch"):
        body = branch.attributes[name].as_graph()
        results.append(list(body.outputs))
        nodes, tensors = list(body), list(body.initializers.values())
        body.outputs.clear()
        body.remove(nodes)
        body.initializers.clear()
        graph.insert_before(branch, nodes)
        for tensor in tensors:
            graph.register_initializer(tensor)
    for old, first, second in zip(branch.outputs, *results, strict=True):
        chosen = ir.Value(name=old.name, type=old.type, shape=old.shape)
        node = ir.Node(
            "", "Where", [branch.inputs[0], first, second], outputs=[chosen], name=f"{branch.name}/{old.name}"
        )
        graph.insert_before(branch, node)
        old.replace_all_uses_with(chosen, replace_graph_outputs=True)
    graph.remove(branch)
