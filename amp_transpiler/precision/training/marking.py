"""Marks the nodes of an optimizer: everything between the gradients and the new state."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.precision.training.flatten import flattened, has_control_flow
from amp_transpiler.precision.training.operators import is_elementwise, is_movement, reads, updates_statistics

__all__ = ["mark_optimizer"]


def mark_optimizer(model: ir.Model, step: TrainingStep) -> int:
    """Give the nodes between the gradients and the new state the optimizer's role; return how many.

    What the gradients themselves are computed from keeps its role, even if an update reads it as well. There are two
    exceptions: updates inside the step, and a BatchNormalization that updates running statistics.
    """
    seen = flattened(model) if has_control_flow(model) else model
    names = {node.name for node in _optimizer_nodes(seen, step)}
    members = [node for node in all_nodes(model) if node.name in names]
    for node in members:
        node.metadata_props[ROLE_KEY] = "optimize"
    return len(members)


def _optimizer_nodes(model: ir.Model, step: TrainingStep) -> set[ir.Node]:
    borders = {name for names in step.gradients.values() for name in names}
    values = {str(output.name): output for node in model.graph for output in node.outputs}
    outputs = {str(value.name): value for value in model.graph.outputs}
    stop = _producers_above([values[name] for name in borders if name in values], set())
    updates = [outputs[state.output] for state in step.states if state.output in outputs]
    statistics = {node for value in updates if (node := value.producer()) is not None and updates_statistics(node)}
    inner = _arithmetic_above([values[name] for name in step.inner if name in values])
    return _producers_above(updates, stop) | inner | statistics


def _arithmetic_above(values: list[ir.Value]) -> set[ir.Node]:
    """Return the elementwise operators and movement right above `values`."""
    pending, arithmetic = list(values), set[ir.Node]()
    while pending:
        node = pending.pop().producer()
        if node is None or node in arithmetic or not (is_elementwise(node) or is_movement(node)):
            continue
        arithmetic.add(node)
        pending.extend(reads(node))
    return arithmetic


def _producers_above(values: list[ir.Value], stop: set[ir.Node]) -> set[ir.Node]:
    pending, seen, producers = list(values), set[ir.Value](), set[ir.Node]()
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None or value in seen or node in stop:
            continue
        seen.add(value)
        producers.add(node)
        pending.extend(reads(node, value))
    return producers
