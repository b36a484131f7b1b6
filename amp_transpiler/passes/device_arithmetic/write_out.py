"""Functions without a kernel, written out as ONNX Runtime does: each node of the body rounds its result."""

from __future__ import annotations

import dataclasses
import logging

import onnx
import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import all_nodes, has_bodies
from amp_transpiler.ops.function_inlining import inline_schema_function
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.inserted_casts import rename_output
from amp_transpiler.passes.widening import is_low
from amp_transpiler.targets import Target
from amp_transpiler.targets.operator import imports_of, operator_of

__all__ = ["WrittenOut", "write_out", "write_out_functions"]

logger = logging.getLogger(__name__)


def write_out_functions(model: ir.Model, provider: Target) -> int:
    """Write out the low nodes of a model that are functions without a kernel in a provider; return how many.

    Args:
        model: a typed model.
        provider: the provider, in a release of ONNX Runtime.
    """
    imports = imports_of(model.graph.opset_imports)
    names = NameAllocator(model)
    count = 0
    for node in list(all_nodes(model)):
        if not is_standard(node) or has_bodies(node) or not any(map(is_low, node.outputs)):
            continue
        operator = operator_of(node, imports)
        formal = operator.signature
        if formal is None or not formal.has_function or provider.has_kernel(operator):
            continue
        count += write_out(model, node, names) is not None
    return count


@dataclasses.dataclass(frozen=True, slots=True)
class WrittenOut:
    """The body of a function in the place of its node.

    Attributes:
        nodes: the body's, in order.
        outputs: the values that took the place of the node's outputs; None for one that the node does not have.
    """

    nodes: list[ir.Node]
    outputs: list[ir.Value | None]


def write_out(model: ir.Model, node: ir.Node, names: NameAllocator) -> WrittenOut | None:
    """Put the body of a function in the place of its node; return it, None if ONNX cannot write it out."""
    written = _body(model, node)
    if written is None or node.graph is None:
        return None
    graph = written.graph
    inputs = {str(value.name): value for value in node.inputs if value is not None}
    for formal in graph.inputs:  # bodies inside the function read them, too
        ir.convenience.replace_all_uses_with(formal, inputs[_originals(node)[str(formal.name)]])
    computed = iter(list(graph.outputs))
    outputs = [next(computed) if value.name else None for value in node.outputs]
    nodes = list(graph)
    graph.outputs.clear()
    for inner in nodes:
        graph.remove(inner)
        inner.name = names.fresh(f"{node.name}__{inner.op_type}")
        for result in inner.outputs:
            result.name = names.fresh(f"{node.name}__{result.name}")
        node.graph.insert_before(node, inner)
    for old, new in zip(node.outputs, outputs, strict=True):
        if new is not None:
            _take_over(old, new, names)
    node.graph.remove(node, safe=True)
    return WrittenOut(nodes, outputs)


def _take_over(old: ir.Value, new: ir.Value, names: NameAllocator) -> None:
    new.type, new.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    rename_output(old, new, names, "function")


def _originals(node: ir.Node) -> dict[str, str]:
    """Return the name of an input in the model of the node -> its name."""
    return {f"input_{index}": str(value.name) for index, value in enumerate(node.inputs) if value is not None}


def _body(model: ir.Model, node: ir.Node) -> ir.Model | None:
    proto = ir.serde.serialize_node(node)
    del proto.input[:], proto.output[:]
    graph = onnx.GraphProto(name="body")
    for index, value in enumerate(node.inputs):
        proto.input.append("" if value is None else f"input_{index}")
        if value is not None:
            graph.input.append(_info(f"input_{index}", value))
    for index, value in enumerate(node.outputs):
        proto.output.append(f"output_{index}" if value.name else "")
        if value.name:
            graph.output.append(_info(f"output_{index}", value))
    _fill_defaults(proto, model)
    graph.node.append(proto)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.graph.opset_imports.items()]
    proto_model = onnx.ModelProto(ir_version=10, graph=graph, opset_import=opsets)
    try:
        inlined = inline_schema_function(proto_model)
        inferred = onnx.shape_inference.infer_shapes(inlined, check_type=True, data_prop=True)
    except (RuntimeError, onnx.shape_inference.InferenceError) as error:
        logger.info("the body of %s cannot be written out: %s", node.op_type, error)
        return None
    if any(inner.op_type == node.op_type and inner.domain == node.domain for inner in inferred.graph.node):
        return None
    return ir.from_proto(inferred)


def _fill_defaults(proto: onnx.NodeProto, model: ir.Model) -> None:
    """Write the schema's defaults down: onnx's inliner knows the attributes of a node only."""
    version = model.graph.opset_imports.get(proto.domain, 1)
    schema = onnx.defs.get_schema(proto.op_type, version, proto.domain)
    present = {attribute.name for attribute in proto.attribute}
    defaults = (formal.default_value for name, formal in schema.attributes.items() if name not in present)
    proto.attribute.extend(default for default in defaults if default.name)


def _info(name: str, value: ir.Value) -> onnx.ValueInfoProto:
    shape = None if value.shape is None else [size if isinstance(size, int) else size.value for size in value.shape]
    return onnx.helper.make_tensor_value_info(name, int(value.dtype or 0), shape)
