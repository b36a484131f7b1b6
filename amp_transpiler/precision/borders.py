"""Nodes at the border of lower precision that cost more casts there than they would in float32.

A cheap node whose result is wanted in float32, and whose inputs are float32 or there in float32 anyway, only adds
casts. A node becomes float32 where that saves casts outright, which may make it worthwhile for its neighbours; each
change saves at least one, so few are asked twice.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.kinds import COMPUTE
from amp_transpiler.ops.names import operator_name
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import is_float32

__all__ = ["costly_borders"]


def costly_borders(
    decisions: Mapping[ir.Node, Decision], together: Collection[ir.Node], low_io: Collection[str] = ()
) -> Iterator[ir.Node]:
    """Yield the low nodes that are better in float32, in the order in which that becomes so.

    Args:
        decisions: of every node.
        together: nodes that are decided together with others, and stay.
        low_io: names of the graph's outputs that are wanted low.
    """
    border = _Border(decisions, low_io)
    pending = collections.deque(border.low)
    while pending:
        node = pending.popleft()
        if node not in border.low or node in together or _is_fixed(node, decisions[node]) or not border.saves(node):
            continue
        del border.low[node]
        yield node
        pending.extend(maker for maker in map(_maker, node.inputs) if maker is not None)
        pending.extend(use.node for value in node.outputs for use in value.uses())


def _is_passed_on(value: ir.Value) -> bool:
    """Whether control flow passes the value on, into a body or out of it: its precision is settled later."""
    if any(has_bodies(use.node) for use in value.uses()):
        return True
    producer = value.producer()
    if producer is not None and has_bodies(producer):
        return True
    graph = value.graph
    in_body = isinstance(graph, ir.Graph) and not graph.opset_imports  # only the main graph has any
    return in_body and (producer is None or value.is_graph_output())


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _is_fixed(node: ir.Node, decision: Decision) -> bool:
    return decision.forced or operator_name(node) in COMPUTE


class _Border:
    """Which values are low as things stand, and the casts that follow.

    Attributes:
        low: the nodes that are low.
    """

    def __init__(self, decisions: Mapping[ir.Node, Decision], low_io: Collection[str]) -> None:
        self._decisions = decisions
        self._low_io = low_io
        self.low = {node: None for node, decision in decisions.items() if decision.form is not None}

    def saves(self, node: ir.Node) -> bool:
        """Whether there are fewer casts with the node in float32."""
        form = self._decisions[node].form
        assert form is not None  # it is low
        values = {value for index in form.inputs if (value := node.inputs[index]) is not None and self._counts(value)}
        values.update(node.outputs[index] for index in form.outputs)
        if any(map(_is_passed_on, values)):
            return False
        before = sum(map(self._casts, values))
        del self.low[node]
        after = sum(map(self._casts, values))
        self.low[node] = None
        return after < before

    def _counts(self, value: ir.Value) -> bool:
        return is_float32(value) and constant_of(value) is None

    def _casts(self, value: ir.Value) -> bool:
        """Whether a cast of the value is needed: some reader wants it in the other format."""
        is_low = self._is_low(value)
        wants = (self._wants_low(use.node, use.idx) for use in value.uses())
        if value.is_graph_output() and (value.name in self._low_io) is not is_low:
            return True
        return any(want is not None and want is not is_low for want in wants)

    def _is_low(self, value: ir.Value) -> bool:
        producer = value.producer()
        if producer is None:
            return value.is_graph_input() and value.name in self._low_io
        form = self._decisions[producer].form
        return producer in self.low and form is not None and value.index() in form.outputs

    def _wants_low(self, node: ir.Node, index: int) -> bool | None:
        """Whether a reader wants a value low; None if it takes any."""
        decision = self._decisions[node]
        if decision.takes_any:
            return None
        return node in self.low and decision.form is not None and index in decision.form.inputs
