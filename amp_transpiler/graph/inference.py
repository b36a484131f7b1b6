"""Turning the graph of a training program into one that only predicts."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.roles import role_of
from amp_transpiler.ops.names import is_standard

__all__ = ["switch_to_inference"]


def switch_to_inference(model: ir.Model) -> None:
    """Remove backward pass and optimizer, and switch BatchNormalization and Dropout to inference, in place."""
    graph = model.graph
    for node in reversed(list(graph)):
        if role_of(node) != "forward":
            graph.remove(node, safe=True)
    for node in graph:
        if is_standard(node) and node.op_type == "BatchNormalization":
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
            node.resize_outputs(1)
        elif is_standard(node) and node.op_type == "Dropout" and len(node.inputs) > 2:
            node.resize_inputs(2)  # without its `training_mode` input, Dropout returns its data unchanged
