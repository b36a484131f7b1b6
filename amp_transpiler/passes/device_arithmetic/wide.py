"""A node computed in float32: what a kernel is before its result is rounded."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.passes.device_arithmetic.steps import STEP, Steps
from amp_transpiler.passes.widening import is_low, widen_attribute

__all__ = ["computed_wide"]


def computed_wide(node: ir.Node, steps: Steps) -> list[ir.Value]:
    """Insert a copy of a node that reads its low inputs in float32, and return the results of the copy."""
    names = [steps.names.fresh(f"{value.name}__device") if value.name else "" for value in node.outputs]
    results = [ir.Value(name=name) for name in names]  # an output that the node leaves out has no name
    for result, original in zip(results, node.outputs, strict=True):
        result.type, result.shape = original.type, None if original.shape is None else ir.Shape(original.shape)
    copy = ir.Node(
        node.domain,
        node.op_type,
        [steps.wide(value) for value in node.inputs],
        list(node.attributes.values()),
        outputs=results,
        name=steps.names.fresh(f"{node.name}__device"),
        version=node.version,
    )
    copy.meta[STEP] = True
    widen_attribute(copy)
    for result in results:
        if is_low(result):
            result.type = ir.TensorType(ir.DataType.FLOAT)
    steps.graph.insert_before(node, copy)
    return results
