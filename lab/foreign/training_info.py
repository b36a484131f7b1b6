"""A step as ONNX's own form of one: an inference graph, and a training algorithm beside it."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from foreign.writer import ForeignStep

__all__ = ["with_training_info"]


def with_training_info(step: ForeignStep) -> onnx.ModelProto:
    """Return the model whose own graph computes what the softmax reads, and whose algorithm does the rest.

    The states become initializers: parameters and statistics that the graph reads, of the graph; the others, of the
    algorithm.
    """
    graph = step.model.graph
    logits = next(node.input[0] for node in graph.node if node.op_type == "LogSoftmax")
    typed = {value.name: value for value in onnx.shape_inference.infer_shapes(step.model).graph.value_info}
    wanted, needed = {logits}, set()
    for index in reversed(range(len(graph.node))):
        if wanted & set(graph.node[index].output):
            needed.add(index)
            wanted.update(graph.node[index].input)
    starts = [numpy_helper.from_array(row.start, row.input) for row in step.states]
    states = {row.input for row in step.states}
    inference = onnx.helper.make_graph(
        [node for index, node in enumerate(graph.node) if index in needed],
        "inference",
        [value for value in graph.input if value.name in wanted - states],
        [typed[logits]],
        [tensor for tensor in (*graph.initializer, *starts) if tensor.name in wanted],
    )
    algorithm = onnx.helper.make_graph(
        [node for index, node in enumerate(graph.node) if index not in needed],
        "algorithm",
        [value for value in graph.input if value.name not in wanted | states],
        list(graph.output),
        [tensor for tensor in (*graph.initializer, *starts) if tensor.name not in wanted],
    )
    model = onnx.helper.make_model(inference, opset_imports=step.model.opset_import, ir_version=10)
    info = model.training_info.add()
    info.algorithm.CopyFrom(algorithm)
    info.update_binding.extend(onnx.StringStringEntryProto(key=row.input, value=row.output) for row in step.states)
    return model
