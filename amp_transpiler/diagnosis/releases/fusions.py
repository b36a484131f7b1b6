"""Compares the graphs that two releases of ONNX Runtime make of a model: operators, and what they are fused from."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping

import onnx

from amp_transpiler.report.release_difference import Fusion, OperatorCount

__all__ = ["fusion_changes", "operator_changes", "surviving_values"]

_LAYOUT = frozenset({"com.microsoft.nchwc::ReorderInput", "com.microsoft.nchwc::ReorderOutput", "Transpose"})
"""Operators that only arrange numbers for others."""


def operator_changes(old: onnx.GraphProto, new: onnx.GraphProto) -> Iterator[OperatorCount]:
    """Yield the operators of which two optimized graphs have other numbers, by domain and name; bodies count, too."""
    counts = [collections.Counter(_operator(node) for node in _all_nodes(graph)) for graph in (old, new)]
    for op in sorted({*counts[0], *counts[1]}):
        if counts[0][op] != counts[1][op]:
            yield OperatorCount(op=op, old=counts[0][op], new=counts[1][op])


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _all_nodes(body)


def _operator(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def surviving_values(source: onnx.GraphProto, old: onnx.GraphProto, new: onnx.GraphProto) -> list[str]:
    """Return the results of the source that both optimized graphs compute, too, in the source's order."""
    in_both = set(_makers(old)) & set(_makers(new))
    return [name for node in source.node for name in node.output if name in in_both]


def fusion_changes(
    source: onnx.GraphProto, graphs: tuple[onnx.GraphProto, onnx.GraphProto], releases: tuple[str, str]
) -> tuple[Fusion, ...]:
    """Return the nodes of only one optimized graph that stand for several nodes of the source, or for another operator.

    Only operators of which the graphs have other numbers count: another layout gives the same fusion other names.

    Args:
        source: the main graph of the model.
        graphs: the main graphs that the old and the new release make of it.
        releases: how those are called.
    """
    changed = {row.op for row in operator_changes(*graphs)} - _LAYOUT
    rows = [
        {(row.op, row.value): row for row in _fusions(source, graph, release) if row.op in changed}
        for graph, release in zip(graphs, releases, strict=True)
    ]
    return tuple(row for mine, other in (rows, reversed(rows)) for key, row in mine.items() if key not in other)


def _fusions(source: onnx.GraphProto, optimized: onnx.GraphProto, release: str) -> Iterator[Fusion]:
    makers, constants = _makers(source), _constants(source)
    for node in optimized.node:
        value = next((name for name in node.output if name in makers), None)
        if value is None:
            continue
        swallowed = _behind(value, set(node.input), makers, constants)
        if len(swallowed) > 1 or (swallowed and _operator(swallowed[0]) != _operator(node)):
            names = tuple(maker.name or maker.output[0] for maker in swallowed)
            yield Fusion(release=release, op=_operator(node), value=value, nodes=names)


def _makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in graph.node for name in node.output if name}


def _constants(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values that are computed from nothing but constants."""
    constants = {tensor.name for tensor in graph.initializer} | {
        tensor.values.name for tensor in graph.sparse_initializer
    }
    for node in graph.node:
        if all(not name or name in constants for name in node.input) and not any(
            a.HasField("g") for a in node.attribute
        ):
            constants.update(node.output)
    return constants


def _behind(
    value: str, reads: set[str], makers: Mapping[str, onnx.NodeProto], constants: set[str]
) -> list[onnx.NodeProto]:
    """Return the nodes of the source between a result and what an optimized node reads, the last one first."""
    swallowed: list[onnx.NodeProto] = []
    pending, seen = [value], set(reads)
    while pending:
        name = pending.pop()
        node = None if name in seen or name in constants else makers.get(name)
        seen.add(name)
        if node is not None and not any(node is other for other in swallowed):
            swallowed.append(node)
            pending += node.input
    return swallowed
