"""ONNX's own checker on a model of any size, and declared shapes that it refutes."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from amp_transpiler.graph.proto import to_proto_without_weights
from amp_transpiler.graph.walk import all_nodes, scopes

__all__ = ["checker_fault", "mend_declared_shapes"]


def checker_fault(model: ir.Model, *, full: bool = True) -> str:
    """Return what `onnx.checker` says against the model, weights left out; empty if it accepts it.

    Args:
        model: the program.
        full: with strict shape and type inference.
    """
    try:
        onnx.checker.check_model(to_proto_without_weights(model), full_check=full)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return " ".join(str(error).split())[:400]
    return ""


def mend_declared_shapes(model: ir.Model) -> str:
    """Forget declared shapes that contradict what the operators compute; return what was wrong, empty if nothing was.

    First the shapes of intermediates are forgotten, since inference finds them anyway; then, if outputs of the model
    are declared wrongly, their sizes become unknown. Where neither helps, everything stays as it was.
    """
    fault = checker_fault(model)
    if not fault:
        return ""
    outputs = {value for scope in scopes(model) for value in scope.graph.outputs if value.producer() is not None}
    inner = {value for node in all_nodes(model) for value in node.outputs} - outputs
    before = {value: value.shape for value in (*inner, *outputs)}
    for value in inner:
        value.shape = None
    if not checker_fault(model):
        return f"declared shapes of intermediate values were wrong and are left out: {fault}"
    for value in outputs:
        value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
    if not checker_fault(model):
        return f"the declared shape of an output was wrong, its sizes are left open: {fault}"
    for value in model.graph.outputs:
        if value in outputs and value.name in (ranks := _inferred_ranks(model)):
            value.shape = ir.Shape([None] * ranks[value.name])
    if not checker_fault(model):
        return f"the declared rank of an output was wrong: {fault}"
    for value, shape in before.items():
        value.shape = shape
    return ""


def _inferred_ranks(model: ir.Model) -> dict[str, int]:
    """Return the ranks that ONNX's inference gives the outputs when nothing is declared of them."""
    proto = to_proto_without_weights(model)
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(proto).graph.output
    return {
        info.name: len(info.type.tensor_type.shape.dim) for info in inferred if info.type.tensor_type.HasField("shape")
    }
