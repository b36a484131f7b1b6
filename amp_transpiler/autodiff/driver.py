"""Reverse-mode differentiation of a graph. It knows no operator: those are in the rule tables.

The gradient of a value has its shape and element type: so the backward pass of low nodes is low, and gradients of
keep-high slots are float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import find_rule
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder, low_or_float
from amp_transpiler.graph.walk import bodies

__all__ = ["Driver", "differentiate"]


def differentiate(
    builder: GraphBuilder,
    seeds: Mapping[ir.Value, ir.Value],
    wanted: Collection[ir.Value],
    stop: Collection[ir.Value] = (),
) -> dict[ir.Value, ir.Value]:
    """Append the backward pass to the builder's graph.

    Args:
        builder: appends to the graph that the targets are in.
        seeds: target -> its gradient, of the target's shape and element type.
        wanted: values whose gradient is asked for.
        stop: values that no gradient passes through.

    Returns:
        wanted value -> gradient, for those that the targets depend on.

    Raises:
        ModelError: an operator in between has no gradient rule, or cannot be differentiated as it is used.
    """
    return Driver(builder, set(wanted), set(stop)).run(builder.graph, seeds)


class Driver:
    """One differentiation: what is wanted, and where gradients stop."""

    def __init__(self, builder: GraphBuilder, wanted: set[ir.Value], stop: set[ir.Value]) -> None:
        self.builder = builder
        self._wanted = wanted - stop
        self._stop = stop

    def run(self, graph: ir.Graph, seeds: Mapping[ir.Value, ir.Value]) -> dict[ir.Value, ir.Value]:
        """Differentiate the nodes that are in `graph` now; a gradient of a value from outside is returned as well."""
        nodes = list(graph)
        active = self._active(nodes)
        parts: dict[ir.Value, list[ir.Value]] = {}
        for target, seed in seeds.items():
            parts.setdefault(target, []).append(seed)
        total: dict[ir.Value, ir.Value] = {}

        def settle(value: ir.Value) -> ir.Value | None:
            if value in parts:
                total[value] = self._sum(parts.pop(value))
            return total.get(value)

        for node in reversed(nodes):
            if not any(value in active for value in (*node.inputs, *_captured(node)) if value is not None):
                continue
            grads = [settle(value) for value in node.outputs]
            if all(grad is None for grad in grads):
                continue
            for value, grad in self._node(node, grads, active):
                parts.setdefault(value, []).append(grad)
        for value in list(parts):
            settle(value)
        return {value: grad for value, grad in total.items() if value in self._wanted}

    def _active(self, nodes: Sequence[ir.Node]) -> set[ir.Value]:
        """The values that depend on a wanted one, and through which gradients may pass."""
        active = set(self._wanted)
        for node in nodes:
            if any(value in active for value in (*node.inputs, *_captured(node))):
                active.update(v for v in node.outputs if low_or_float(v) and v not in self._stop)
        return active

    def _node(
        self, node: ir.Node, grads: Sequence[ir.Value | None], active: set[ir.Value]
    ) -> list[tuple[ir.Value, ir.Value]]:
        rule = find_rule(node.domain, node.op_type)
        context = NodeGradient(node, self.builder, grads, lambda value: value in active, self)
        if rule is None:
            raise context.error(
                "there is no gradient rule for this operator; add one to a table in amp_transpiler/autodiff/rules/, or "
                "keep gradients from passing (stop_gradient, no_grad_set)"
            )
        found = rule(context)
        if found is None or isinstance(found, ir.Value):
            found = [found]
        if len(found) > len(node.inputs) and any(value not in active for value in node.inputs if value is not None):
            found = list(found)[: len(node.inputs)]
        pairs = []
        for value, grad in zip((*node.inputs, *_captured(node)), found, strict=False):
            if value is not None and grad is not None and value in active:
                pairs.append((value, self._fit(grad, value)))
        return pairs

    def _fit(self, grad: ir.Value, value: ir.Value) -> ir.Value:
        """Give a gradient the shape and the element type of its value."""
        return self.builder.cast(self.builder.sum_to(grad, value), value.dtype)

    def _sum(self, parts: Sequence[ir.Value]) -> ir.Value:
        if len(parts) == 1:
            return parts[0]
        # In float32: a sum of many float16 contributions loses those that are small.
        high = [self.builder.high(part) for part in parts]
        result = high[0]
        for part in high[1:]:
            result = self.builder.add(result, part)
        return self.builder.cast(result, parts[0].dtype)


def _captured(node: ir.Node) -> list[ir.Value]:
    """The values from outside that the bodies of a node read, each once, in order."""
    inside: set[ir.Value] = set()
    found: dict[ir.Value, None] = {}
    for _, body in bodies(node):
        inside.update(body.inputs)
        inside.update(body.initializers.values())
        for inner in body:
            for value in (*inner.inputs, *_captured(inner)):
                if value is not None and value not in inside:
                    found[value] = None
            inside.update(inner.outputs)
        for value in body.outputs:
            if value not in inside:
                found[value] = None
    return list(found)


captured = _captured


def require_grads(grads: Mapping[ir.Value, ir.Value], wanted: Collection[ir.Value]) -> None:
    """Raise ModelError if a wanted value has no gradient."""
    missing = [str(value.name) for value in wanted if value not in grads]
    if missing:
        raise ModelError(f"the target does not depend on {', '.join(missing)}: there is no gradient to compute")
