"""The nodes that compute an attention, and those of them that others still need."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from amp_transpiler.fusion.attention_output import Output
from amp_transpiler.fusion.attention_pattern import Found
from amp_transpiler.fusion.restrictions import nodes_within

__all__ = ["nodes_of", "still_needed"]


def nodes_of(attention: Found, output: Output | None, sources: Collection[ir.Value]) -> set[ir.Node]:
    """Return the nodes of an attention.

    Args:
        attention: what they compute.
        output: the product that reads its result, whose nodes belong to it; None for the attention alone.
        sources: values whose nodes do not belong to it. Those of the masks never do.
    """
    inputs = {*sources, *(mask.value for mask in attention.masks)}
    lasts = {attention.last, *(node for end in attention.ends if (node := end.value.producer()) is not None)}
    if output is not None:
        lasts.add(output.last)
    return {node for last in lasts for node in nodes_within(inputs, last)}


def still_needed(nodes: Collection[ir.Node], replaced: Collection[ir.Value]) -> set[ir.Node]:
    """Return those of the nodes that others need, if only to ask for a shape, once some values are replaced."""
    needed: set[ir.Node] = set()
    waiting = [
        node
        for node in nodes
        if any(use.node not in nodes for value in node.outputs if value not in replaced for use in value.uses())
    ]
    while waiting:
        node = waiting.pop()
        if node in nodes and node not in needed:
            needed.add(node)
            makers = (value.producer() for value in node.inputs if value is not None)
            waiting += [maker for maker in makers if maker is not None]
    return needed
