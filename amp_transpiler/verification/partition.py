"""Cuts a large program into pieces that run one after the other, so that only one piece's values are in memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static, shape_of
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.tensors import element_bytes
from amp_transpiler.graph.walk import reads_of
from amp_transpiler.program.program import Program
from amp_transpiler.verification.fixed_sample import drop_unread

__all__ = ["Piece", "cut_out", "pieces", "result_bytes"]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive nodes of a main graph.

    Attributes:
        start: the number of the first node.
        stop: that of the first one after it.
        reads: names of the values from before that its nodes read, graph inputs included; no constants.
        leaves: names of the values made in it that later pieces read.
    """

    start: int
    stop: int
    reads: tuple[str, ...]
    leaves: tuple[str, ...]


def pieces(program: Program, limit: float) -> list[Piece]:
    """Cut a program with known shapes into pieces.

    Args:
        program: the program.
        limit: bytes that the results of the nodes of a piece may take; a piece has one node at least.
    """
    graph = program.model.graph
    nodes = list(graph)
    starts, size = [0], 0.0
    for index, node in enumerate(nodes):
        result_bytes = sum(map(_bytes, node.outputs))
        if size + result_bytes > limit and index > starts[-1]:
            starts.append(index)
            size = 0.0
        size += result_bytes
    spans = list(zip(starts, [*starts[1:], len(nodes)], strict=True))
    return [_piece(nodes, start, stop) for start, stop in spans if stop > start]


def _piece(nodes: list[ir.Node], start: int, stop: int) -> Piece:
    inside = {value for node in nodes[start:stop] for value in node.outputs}
    reads = {value: None for node in nodes[start:stop] for value in reads_of(node) if value not in inside}
    later = {value for node in nodes[stop:] for value in reads_of(node)}
    return Piece(
        start,
        stop,
        tuple(str(value.name) for value in reads if _is_fed(value)),
        tuple(str(v.name) for node in nodes[start:stop] for v in node.outputs if v in later),
    )


def _is_fed(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input()


def result_bytes(program: Program) -> float:
    """Return the bytes of all results of a main graph, as far as their shapes are known."""
    return sum(_bytes(value) for node in program.model.graph for value in node.outputs)


def _bytes(value: ir.Value) -> float:
    if value.dtype is None or not is_static(value):
        return 0.0
    return math.prod(shape_of(value)) * element_bytes(value.dtype)


def cut_out(program: Program, piece: Piece, outputs: Collection[str]) -> Program:
    """Return a copy of a program that holds only the nodes of one piece; what it reads from before is its input."""
    copy = program.clone()
    copy.source = None
    graph = copy.model.graph
    nodes = list(graph)
    graph.outputs.clear()
    for node in reversed(nodes[piece.stop :]):
        graph.remove(node, safe=True)
    by_name = values_by_name(graph)
    inputs = []
    for name in piece.reads:
        value = by_name[name]
        if value.producer() is None:
            inputs.append(value)
            continue
        fed = ir.Value(name=name, type=value.type, shape=value.shape)
        value.replace_all_uses_with(fed)
        inputs.append(fed)
    for node in reversed(nodes[: piece.start]):
        graph.remove(node, safe=True)
    graph.inputs[:] = inputs
    by_name = values_by_name(graph)
    graph.outputs.extend(by_name[name] for name in outputs)
    drop_unread(graph, wanted=[value for node in graph for value in node.outputs])
    copy.touch()
    return copy
