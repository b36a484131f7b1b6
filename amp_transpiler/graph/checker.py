"""ONNX's checker for models of any size, and repair of declared shapes that it rejects."""

from __future__ import annotations

import re
from collections.abc import Collection

import onnx
import onnx_ir as ir

from amp_transpiler.graph.form_check import einsum_faults
from amp_transpiler.graph.proto import proto_graphs, to_proto_without_weights
from amp_transpiler.graph.walk import PLUGIN, all_nodes, scopes
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import only_in_runtime, opset_of

__all__ = ["checker_fault", "fault_in_words", "mend_declared_ranks", "mend_declared_shapes", "runtime_operators"]

# ValueError: of element types and messages that the C++ side cannot take.
_REFUSALS = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError)
_SHAPE_INPUTS = {"Reshape": 1, "ConstantOfShape": 0}  # operator -> the input whose entries are the output's sizes
_APART = "amp_transpiler.runtime"  # a domain that onnx.checker does not look into


def checker_fault(model: ir.Model, *, full: bool = True) -> str:
    """Return the message of `onnx.checker` on the model without its weights; empty if the model is valid.

    Operators that ONNX Runtime keeps in ONNX's domain, and plugins there whose types the user declares, are no fault:
    like those of other domains, they are skipped.

    Args:
        model: the program.
        full: with strict shape and type inference.
    """
    for node in all_nodes(model):
        if node.op_type == "Einsum" and (fault := next(einsum_faults(node), "")):  # the checker never ends on some
            return f"Einsum '{node.name}' {fault}"
    proto = to_proto_without_weights(model)
    _set_apart(proto, opset_of(model, ""), {node.op_type for node in all_nodes(model) if PLUGIN in node.meta})
    try:
        onnx.checker.check_model(proto, full_check=full)
    except _REFUSALS as error:
        return " ".join(str(error).split())[:400]
    return ""


# A message of onnx.checker -> what is wrong with the node, and what to do.
_IN_WORDS = (
    (
        re.compile(r"No Op registered for (\S+) with domain_version of (\d+)"),
        (
            "opset {1} has no operator {0}; correct its name or domain, or the opset that the model imports; if it is "
            "a plugin, declare its types: --custom-op-types '{0}:fp16'"
        ),
    ),
    (
        re.compile(r"Op registered for (\S+) is deprecated in domain_version of (\d+)"),
        "opset {1} no longer has operator {0}; export the model anew, or import the opset that it was written for",
    ),
    (
        re.compile(r"Unrecognized attribute: (\S+) for operator (\S+)"),
        "{1} has no attribute '{0}' in the opset that the model imports; remove it, or import the opset that has it",
    ),
)
_NODE = re.compile(r"Bad node spec for node\. Name: (\S+) OpType:")


def fault_in_words(fault: str) -> str:
    """Return a message of `checker_fault` in one sentence with a remedy, where it is a usual one."""
    for pattern, sentence in _IN_WORDS:
        if match := pattern.search(fault):
            node = _NODE.search(fault)
            where = f"node '{node[1]}': " if node else ""
            return where + sentence.format(*match.groups())
    return f"onnx.checker says: {fault}; export the model anew"


def runtime_operators(model: ir.Model) -> list[str]:
    """Return the operators of the model that ONNX Runtime keeps in ONNX's domain, each once, sorted."""
    opset = opset_of(model, "")
    return sorted({operator_name(n) for n in all_nodes(model) if only_in_runtime(n.domain, n.op_type, opset)})


def _set_apart(proto: onnx.ModelProto, opset: int, plugins: Collection[str]) -> None:
    """Move nodes whose operator only ONNX Runtime knows, and plugins of ONNX's domain, to a domain of their own."""
    nodes = [node for graph in proto_graphs(proto.graph) for node in graph.node]
    nodes += [node for function in proto.functions for node in function.node]
    runtime_nodes = [
        node
        for node in nodes
        if (node.op_type in plugins and node.domain in ("", "ai.onnx"))
        or only_in_runtime(node.domain, node.op_type, opset)
    ]
    for node in runtime_nodes:
        node.domain = _APART
    for imports in (
        (proto.opset_import, *(function.opset_import for function in proto.functions)) if runtime_nodes else ()
    ):
        imports.append(onnx.helper.make_opsetid(_APART, 1))


def mend_declared_shapes(model: ir.Model) -> str:
    """Drop declared shapes that contradict the operators; return the fault, empty if there is none.

    The shapes of intermediate values are dropped first: inference finds them again. If outputs of the model are
    declared wrongly, their sizes become unknown, then their ranks are inferred. If nothing helps, nothing changes.
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


def mend_declared_ranks(model: ir.Model) -> list[str]:
    """Correct declared ranks where an operator gets another number of sizes; return what was wrong.

    In older opsets ONNX's inference and its checker say nothing of such outputs as long as the sizes themselves are
    computed, and ONNX Runtime warns at most. It needs the shapes of inputs: run inference before, and again if
    something was wrong.
    """
    corrections = []
    for node in all_nodes(model):
        if node.op_type not in _SHAPE_INPUTS or not is_standard(node):
            continue
        sizes, value = node.inputs[_SHAPE_INPUTS[node.op_type]], node.outputs[0]
        count = sizes.shape[0] if sizes is not None and sizes.shape is not None and len(sizes.shape) == 1 else None
        if not isinstance(count, int) or value.shape is None or len(value.shape) == count:
            continue
        axes = ", ".join("?" if str(size) == "None" else str(size) for size in value.shape)
        corrections.append(
            f"'{value.name}' is declared as [{axes}], but {node.op_type} '{node.name}' makes {count} axes; the sizes "
            "are left open. Correct the declaration in the file"
        )
        value.shape = ir.Shape([None] * count)
    return corrections


def _inferred_ranks(model: ir.Model) -> dict[str, int]:
    """Return the ranks that ONNX infers for outputs without a declared shape."""
    proto = to_proto_without_weights(model)
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto).graph.output
    except _REFUSALS:
        return {}
    return {
        info.name: len(info.type.tensor_type.shape.dim) for info in inferred if info.type.tensor_type.HasField("shape")
    }
