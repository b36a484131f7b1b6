"""Turning a training program into the one that only predicts."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.program import Program, role_of
from amp_transpiler.ops.names import is_standard

__all__ = ["make_inference"]


def make_inference(program: Program) -> None:
    """Drop backward pass and optimizer, and switch BatchNormalization and Dropout to inference, in place."""
    graph = program.model.graph
    for node in reversed(list(graph)):
        if role_of(node) != "forward":
            graph.remove(node, safe=True)
    kept = {str(value.name) for node in graph for value in node.outputs}
    program.updates.clear()
    for node in graph:
        if is_standard(node) and node.op_type == "BatchNormalization":
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
            node.resize_outputs(1)
        elif is_standard(node) and node.op_type == "Dropout" and len(node.inputs) > 2:
            node.resize_inputs(2)  # without `training_mode` it passes its input on
    read = {str(value.name) for node in graph for value in node.inputs if value is not None}
    for name, about in list(program.persistables.items()):
        if about.kind == "state" and name not in read:
            graph.inputs.remove(program.value(name))
            del program.persistables[name]
    sources = {str(v.name) for v in graph.inputs} | set(graph.initializers)
    program.outputs = [name for name in program.outputs if name in kept | sources]
    program.touch()
