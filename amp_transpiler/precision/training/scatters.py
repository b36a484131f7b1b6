"""Finds updates that add rows to a table in place: the gradient is in what is added."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.training.linearity import is_zero
from amp_transpiler.precision.training.operators import is_elementwise

__all__ = ["before_scatters"]

_SCATTERS = ("ScatterElements", "ScatterND")


def before_scatters(graph: ir.Graph, step: TrainingStep) -> TrainingStep:
    """Return the step with gradients that are scattered into the state itself taken before the optimizer's arithmetic.

    Args:
        graph: the main graph.
        step: its states and gradients.
    """
    by_name = {str(value.name): value for node in graph for value in node.outputs}
    gradients = {
        name: tuple(
            dict.fromkeys(str(_rows(by_name[border]).name) if border in by_name else border for border in borders)
        )
        for name, borders in step.gradients.items()
    }
    return dataclasses.replace(step, gradients=gradients)


def _rows(border: ir.Value) -> ir.Value:
    """Return the rows that a scatter adds to something, without factors of single numbers; else the value itself."""
    node = border.producer()
    if node is None or not is_standard(node) or node.op_type not in _SCATTERS or is_zero(node.inputs[0]):
        return border
    value = node.inputs[2]
    while value is not None and (before := _unscaled(value.producer())) is not None:
        value = before
    return border if value is None or value.producer() is None else value


def _unscaled(node: ir.Node | None) -> ir.Value | None:
    """Return what a node multiplies with a single number or negates."""
    if node is None or not is_standard(node):
        return None
    if node.op_type == "Neg":
        return node.inputs[0]
    if node.op_type not in ("Mul", "Div"):
        return None
    many = [value for value in node.inputs if not _is_number(value)]
    return many[0] if len(many) == 1 and (node.op_type == "Mul" or many[0] is node.inputs[0]) else None


def _is_number(value: ir.Value | None) -> bool:
    """Whether a value has one element: by its shape or, where that is not known, by how it is computed."""
    if value is None or value.shape is not None:
        return value is not None and value.shape is not None and all(size == 1 for size in value.shape)
    node = value.producer()
    return node is not None and is_elementwise(node) and all(map(_is_number, node.inputs))
