"""Copies a program without its control flow, for analyses that only look at it.

Both branches of an If are computed, and one is chosen by Where. Of a Loop and a Scan one turn is computed. Names are
kept, so what is found in the copy is found in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.names import adopt_initializers
from amp_transpiler.ops.names import is_standard

__all__ = ["flattened", "has_control_flow"]


def has_control_flow(model: ir.Model) -> bool:
    """Whether the main graph has an If, a Loop or a Scan."""
    return any(map(_is_control_flow, model.graph))


def flattened(model: ir.Model) -> ir.Model:
    """Return a copy in which the bodies of control flow stand in the main graph, a turn of each."""
    copy = model.clone()
    while (node := next(filter(_is_control_flow, copy.graph), None)) is not None:
        _Dissolved(copy.graph, node).run()
    return copy


def _is_control_flow(node: ir.Node) -> bool:
    return node.op_type in _FORMS and is_standard(node)


class _Dissolved:
    """One node of control flow, replaced by its bodies."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self._graph, self._node = graph, node

    def run(self) -> None:
        results = _FORMS[self._node.op_type](self)
        for old, new in zip(self._node.outputs, results, strict=False):
            identity = self._append("Identity", [new], old.name)
            identity.type, identity.shape = old.type, old.shape
            old.replace_all_uses_with(identity, replace_graph_outputs=True)
        self._graph.remove(self._node)

    def branches(self) -> list[ir.Value]:
        """Both branches of an If."""
        first, second = (self._inlined(name, ()) for name in ("then_branch", "else_branch"))
        condition = self._node.inputs[0]
        return [self._append("Where", [condition, a, b]) for a, b in zip(first, second, strict=True)]

    def loop(self) -> list[ir.Value]:
        """The first turn of a Loop."""
        body = self._node.attributes["body"].as_graph()
        states = self._node.inputs[2:]
        fed = [self._constant(0), self._node.inputs[1] or self._constant(True), *states]
        results = self._inlined("body", fed[: len(body.inputs)])[1:]
        return [*results[: len(states)], *map(self._stacked, results[len(states) :])]

    def scan(self) -> list[ir.Value]:
        """The first turn of a Scan."""
        count = self._node.attributes["num_scan_inputs"].as_int()
        inputs = list(self._node.inputs[-len(self._node.attributes["body"].as_graph().inputs) :])
        states = len(inputs) - count
        fed = [*inputs[:states], *(self._append("Gather", [value, self._constant(0)]) for value in inputs[states:])]
        results = self._inlined("body", fed)
        return [*results[:states], *map(self._stacked, results[states:])]

    def _inlined(self, name: str, fed: Iterable[ir.Value | None]) -> list[ir.Value]:
        """Move a body in front of the node, and return the values of its outputs."""
        body = self._node.attributes[name].as_graph()
        # A body may hand an input on as it is: an output stands for what was fed, which belongs to another graph.
        handed_on = {inner: outer for inner, outer in zip(body.inputs, fed, strict=True) if outer is not None}
        results = [handed_on.get(value, value) for value in body.outputs]
        body.outputs.clear()
        for inner, outer in handed_on.items():
            inner.replace_all_uses_with(outer)
        nodes, tensors = list(body), list(body.initializers.values())
        body.remove(nodes)
        body.initializers.clear()
        self._graph.insert_before(self._node, nodes)
        adopt_initializers(self._graph, tensors)
        return results

    def _stacked(self, value: ir.Value) -> ir.Value:
        return self._append("Unsqueeze", [value, self._constant([0])])

    def _constant(self, number: object) -> ir.Value:
        tensor = ir.tensor(np.asarray(number))
        return self._append("Constant", [], attributes=[ir.AttrTensor("value", tensor)])

    def _append(
        self,
        op_type: str,
        inputs: list[ir.Value | None],
        name: str | None = None,
        attributes: Iterable[ir.Attr] = (),
    ) -> ir.Value:
        count = len(self._graph)
        value = ir.Value(name=name or f"{self._node.name}/{op_type}/{count}")
        node = ir.Node("", op_type, inputs, attributes, outputs=[value], name=f"{self._node.name}/{op_type}/{count}")
        self._graph.insert_before(self._node, node)
        return value


_FORMS: dict[str, Callable[[_Dissolved], list[ir.Value]]] = {
    "If": _Dissolved.branches,
    "Loop": _Dissolved.loop,
    "Scan": _Dissolved.scan,
}
