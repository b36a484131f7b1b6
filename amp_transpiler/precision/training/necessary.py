"""Checks a necessary condition for the gradient of an input in a graph, which only its edges decide.

Most models have an output with the type and shape of an input and are no training steps: encoders, denoisers, one step
of a diffusion. Sizes and equal values, which the proofs need, cost as much as a whole conversion. This costs one walk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.precision.training.operators import (
    PRODUCTS,
    REDUCTIONS,
    SCATTERS,
    TABLES,
    is_elementwise,
    is_movement,
    kind,
    reads,
    updates_statistics,
)

__all__ = ["may_hold_gradients"]

_MULTIPLIES = PRODUCTS | {"Mul"}


def may_hold_gradients(graph: ir.Graph, values: Collection[ir.Value], outputs: Iterable[ir.Value]) -> bool:
    """Whether a gradient of some value can be in a graph at all; False is certain, True is not.

    A gradient is a product of what a reader of the value multiplies it with, and of something that depends on the
    reader's result. Both depend on the graph's inputs, and the first not only on the value. Without
    such a product a gradient must be a sum that enters an update by elementwise arithmetic, as a bias' does.

    Args:
        graph: the main graph, nodes in topological order.
        values: inputs or initializers that may be states.
        outputs: what may be their updates.
    """
    return _ends_in_sum(outputs) or _has_product(graph, values)


def _ends_in_sum(outputs: Iterable[ir.Value]) -> bool:
    """Whether elementwise arithmetic and movement lead from a sum to an output."""
    pending = list(outputs)
    seen = set(pending)
    while pending:
        node = pending.pop().producer()
        if node is None:
            continue
        if kind(node) in REDUCTIONS:
            return True
        if is_elementwise(node) or is_movement(node):
            fresh = [value for value in node.inputs if value is not None and value not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return False


def _has_product(graph: ir.Graph, values: Collection[ir.Value]) -> bool:
    """Whether what depends on a reader of a value is multiplied with what depends on an input."""
    every = dict.fromkeys((*graph.inputs, *values))
    if len(every) < 2:
        return False  # whatever the value is multiplied with depends only on it
    bits = {value: 1 << index for index, value in enumerate(every)}
    sources = {value: bits[value] for value in graph.inputs}  # the inputs that a value depends on
    derived = {value: bits[value] for value in values}  # the states that it is computed from, with no data
    data = {value for value in graph.inputs if value not in derived and not _is_single(value)}
    below: set[ir.Value] = set()  # what depends on a reader's result
    for node in graph:
        op, operands = node.op_type, _operands(node)
        if op in _MULTIPLIES or op in SCATTERS or op in TABLES:
            if op not in TABLES and kind(node) and _meets(operands, below, sources):
                return True
            if kind(node) and _reads_as_factor(node, derived, sources):
                below.update(node.outputs)
        if not below.isdisjoint(operands):
            below.update(node.outputs)
        _mark(node, operands, sources)
        if not data.isdisjoint(operands):
            data.update(node.outputs)
        elif not has_bodies(node):
            _mark(node, operands, derived)
    return False


def _operands(node: ir.Node) -> list[ir.Value]:
    if node.attributes and (has_bodies(node) or updates_statistics(node)):
        return list(reads(node))
    return [value for value in node.inputs if value is not None]


def _mark(node: ir.Node, operands: Iterable[ir.Value], marks: dict[ir.Value, int]) -> None:
    bits = 0
    for value in operands:
        bits |= marks.get(value, 0)
    if bits:
        for output in node.outputs:
            marks[output] = bits


def _meets(operands: Iterable[ir.Value], below: Collection[ir.Value], sources: Mapping[ir.Value, int]) -> bool:
    """Whether a product has an operand that depends on a reader, and another one that depends on an input."""
    is_below = [value in below for value in operands if value in sources]
    return len(is_below) > 1 and any(is_below)


def _reads_as_factor(node: ir.Node, derived: Mapping[ir.Value, int], sources: Mapping[ir.Value, int]) -> bool:
    """Whether a node multiplies a state, or looks it up, with what depends on another input than this state."""
    if node.op_type in SCATTERS:
        return False
    for value in node.inputs:
        states = 0 if value is None else derived.get(value, 0)
        for other in node.inputs if states else ():
            inputs = 0 if other is None or other is value else sources.get(other, 0)
            if inputs and (states & ~inputs or inputs & (inputs - 1)):
                return True
    return False


def _is_single(value: ir.Value) -> bool:
    return value.shape is not None and all(size == 1 for size in value.shape)
