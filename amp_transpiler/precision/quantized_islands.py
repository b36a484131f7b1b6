"""Finds islands: groups of low nodes between quantized operators, which save less than the casts around them cost.

Two low nodes are connected if one reads low a value that the other computes low. What is no such island is left to the
objective of a policy.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.precision.quantized import quantized_part
from amp_transpiler.precision.reasons import Reason

__all__ = ["islands"]


def islands(decisions: Mapping[ir.Node, Decision], objective: str) -> Iterator[tuple[ir.Node, Reason]]:
    """Yield the nodes of every island, with the reason.

    Args:
        decisions: of every node of a program that has quantized operators.
        objective: the policy's, `rules` or `low`: how many casts a group may cost (see `quantized_part`).
    """
    groups: dict[ir.Node, list[ir.Node]] = collections.defaultdict(list)
    parent = _connected(decisions)
    for node in parent:
        groups[_root(parent, node)].append(node)
    for group in groups.values():
        if any(decisions[node].forced for node in group):
            continue
        if reason := quantized_part(group, decisions, _inward(group, decisions), objective):
            yield from ((node, reason) for node in group)


def _connected(decisions: Mapping[ir.Node, Decision]) -> dict[ir.Node, ir.Node]:
    """Return every low node with a parent in its group's tree (union-find)."""
    parent = {node: node for node, decision in decisions.items() if decision.form is not None}
    for node in parent:
        for value in map(_past_casts, _low_inputs(node, decisions)):
            producer = value.producer()
            if producer is not None and _makes_low(producer, value, decisions):
                parent[_root(parent, node)] = _root(parent, producer)
    return parent


def _past_casts(value: ir.Value) -> ir.Value:
    """The value that the source's own casts to float32 hand on: between two low nodes they disappear."""
    producer = value.producer()
    while producer is not None and producer.op_type == "Cast" and is_standard(producer):
        origin = producer.inputs[0]
        if origin is None or not (is_float32(origin) and is_float32(value)):
            break
        value, producer = origin, origin.producer()
    return value


def _low_inputs(node: ir.Node, decisions: Mapping[ir.Node, Decision]) -> Iterator[ir.Value]:
    form = decisions[node].form
    assert form is not None  # it is in a group
    for index in sorted(form.inputs):
        value = node.inputs[index]
        assert value is not None  # a low input is there
        yield value


def _makes_low(producer: ir.Node, value: ir.Value, decisions: Mapping[ir.Node, Decision]) -> bool:
    form = decisions[producer].form
    return form is not None and value.index() in form.outputs


def _inward(group: list[ir.Node], decisions: Mapping[ir.Node, Decision]) -> set[ir.Value]:
    """The values that would be cast on their way into the group."""
    inward: set[ir.Value] = set()
    for node in group:
        for value in _low_inputs(node, decisions):
            producer = value.producer()
            if constant_of(value) is None and (producer is None or not _makes_low(producer, value, decisions)):
                inward.add(value)
    return inward


def _root(parent: dict[ir.Node, ir.Node], node: ir.Node) -> ir.Node:
    while parent[node] is not node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node
