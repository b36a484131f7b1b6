"""Removing nodes whose results nobody reads."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.walk import is_used

__all__ = ["remove_unread"]


def remove_unread(node: ir.Node) -> None:
    """Remove a node if nobody reads its results, and then the nodes that only it read from."""
    if node.graph is None or any(map(is_used, node.outputs)):
        return
    sources = [value.producer() for value in node.inputs if value is not None]
    node.graph.remove(node, safe=True)
    for source in sources:
        if source is not None:
            remove_unread(source)
