"""Turning the graph of a training program into one that only predicts."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.walk import all_nodes, bodies
from amp_transpiler.ops.names import is_standard

__all__ = ["switch_to_inference"]

_STATISTICS = 3  # the first of BatchNormalization's two inputs with running statistics


def switch_to_inference(model: ir.Model) -> None:
    """Remove backward pass and optimizer, and switch BatchNormalization and Dropout to inference, in place."""
    graph = model.graph
    for node in reversed(list(graph)):
        if role_of(node) != "forward":
            _remove(node)
    for node in all_nodes(model):
        if is_standard(node) and node.op_type == "BatchNormalization":
            _stop_updating(node)
        elif is_standard(node) and node.op_type in ("Loop", "Scan"):
            _stop_stacking(node)
        elif is_standard(node) and node.op_type == "Dropout" and len(node.inputs) > 2:
            node.resize_inputs(2)  # without its `training_mode` input, Dropout returns its data unchanged


def _stop_updating(node: ir.Node) -> None:
    """Normalise by the running statistics; what reads their updates, such as a later call of the layer, reads these."""
    node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
    for updated, running in zip(node.outputs[1:], node.inputs[_STATISTICS:], strict=False):
        if running is not None:
            updated.replace_all_uses_with(running)
    node.resize_outputs(1)


def _remove(node: ir.Node) -> None:
    """Remove a node and what is in its bodies, which would go on reading values from outside."""
    graph = node.graph
    assert graph is not None
    for _, body in bodies(node):
        body.outputs.clear()
        for inner in reversed(list(body)):
            _remove(inner)
    graph.remove(node, safe=True)


def _stop_stacking(node: ir.Node) -> None:
    """Remove from a loop what it stacks for the backward pass: the last of its outputs."""
    [(_, body)] = bodies(node)
    while body.outputs and (maker := body.outputs[-1].producer()) is not None and role_of(maker) != "forward":
        body.outputs.pop()
        body.remove(maker, safe=True)
        node.resize_outputs(len(node.outputs) - 1)
        for name in ("scan_output_directions", "scan_output_axes"):
            if (attribute := node.attributes.get(name)) is not None:
                node.attributes[name] = ir.AttrInt64s(name, attribute.as_ints()[:-1])
