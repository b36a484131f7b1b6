"""Writes a BatchNormalization whose statistics a model computes as plain operators, which gradients pass."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, rank_of
from amp_transpiler.graph.take_over import take_over

__all__ = ["can_be_written_out", "write_out"]


def can_be_written_out(node: ir.Node) -> bool:
    """Whether a BatchNormalization uses the statistics it is given, in the one element type of all its inputs."""
    mode = node.attributes.get("training_mode")
    one_type = len({None if value is None else value.dtype for value in node.inputs}) == 1
    return (
        one_type
        and (mode is None or not mode.as_int())
        and node.inputs[0] is not None
        and node.inputs[0].shape is not None
    )


def write_out(model: ir.Model, node: ir.Node) -> None:
    """Replace a BatchNormalization by `(x - mean) / sqrt(variance + epsilon) * scale + bias`; its output's name stays.

    Exporters write standardised weights so: the statistics are those of the weight itself, and it learns through them.
    """
    graph, old = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    builder = GraphBuilder(model, graph=graph, before=node, metadata=dict(node.metadata_props))
    x, scale, bias, mean, variance = (value for value in node.inputs if value is not None)
    behind = list(range(1, rank_of(x) - 1))
    scale, bias, mean, variance = (builder.unsqueeze(value, behind) for value in (scale, bias, mean, variance))
    epsilon = node.attributes.get("epsilon")
    root = builder.op("Sqrt", [builder.add(variance, 1e-5 if epsilon is None else epsilon.as_float())])
    scaled = builder.mul(builder.div(builder.sub(x, mean), root), scale)
    take_over(old, builder.add(scaled, bias), builder.names)
    graph.remove(node, safe=True)
