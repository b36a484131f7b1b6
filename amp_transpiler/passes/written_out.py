"""Lowering of a model to an opset that lacks some of its operators, which are written out by their own definition."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of, signature
from amp_transpiler.passes.inline_functions import InlineFunctions
from amp_transpiler.passes.lower_opset import LowerOpset, needing
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.passes.standard_opset import OpsetConversionError
from amp_transpiler.passes.unify_constants import UnifyConstants
from amp_transpiler.phrases import first_few

__all__ = ["lower_by_definition"]

logger = logging.getLogger(__name__)

_MOST_NAMED = 3
_DOMAIN = "amp_transpiler.written_out"  # of the functions that stand for the operators until they are inlined


def lower_by_definition(model: ir.Model, newest: int) -> list[str]:
    """Bring a model that is above opset `newest` to it, in place; return the operator of each node written out.

    Args:
        model: imports ONNX's own domain as `""`.
        newest: the opset.

    Raises:
        OpsetConversionError: an operator is newer and has no function body.
        ModelError: an operator cannot be written out, since the rank of its inputs is not known.
    """
    try:
        LowerOpset(newest)(model)
    except OpsetConversionError:
        own_nodes, opset = frozenset(all_nodes(model)), opset_of(model, "")
        newer = (node for node in own_nodes if is_standard(node) and _is_newer(node, opset, newest))
        named = [f"{node.op_type} '{node.name}'" for node in newer]
        written = _write_out_newer(model, newest)
        propagate_types(model)  # what a definition computes has no types yet, and lowering asks for them
        _lower(model, newest, own_nodes, sorted(named))
        UnifyConstants()(model)
        NameNodes()(model)
        return written
    return []


def _lower(model: ir.Model, newest: int, own_nodes: Collection[ir.Node], written: Sequence[str]) -> None:
    """Lower the opset; where a node of a definition stands in the way, name the operators that were written out."""
    opset = opset_of(model, "")
    foreign = next((node for node in needing(model, newest) if node not in own_nodes), None)
    try:
        LowerOpset(newest)(model)
    except OpsetConversionError as error:
        if foreign is None or next(needing(model, newest)) in own_nodes:
            raise
        raise OpsetConversionError(
            f"opset {opset} is needed by {first_few(written, _MOST_NAMED)}: written out by definition, "
            f"{'it uses' if len(written) == 1 else 'they use'} {foreign.op_type} of that opset"
        ) from error


def _write_out_newer(model: ir.Model, newest: int) -> list[str]:
    """Replace operators that came after opset `newest` by their function body; return the operator of each node."""
    opset = opset_of(model, "")
    nodes = [node for node in all_nodes(model) if is_standard(node) and _is_newer(node, opset, newest)]
    written = [node.op_type for node in nodes]
    for index, node in enumerate(nodes):
        function = ir.serde.deserialize_function(_definition(node, opset, f"{node.op_type}_{index}"))
        model.functions[function.identifier()] = function
        node.domain, node.op_type = _DOMAIN, function.name
    if nodes:
        model.graph.opset_imports[_DOMAIN] = 1
        InlineFunctions()(model)
        logger.info("written out by their definition: %s", ", ".join(sorted(set(written))))
    return written


def _is_newer(node: ir.Node, opset: int, newest: int) -> bool:
    sig = signature("", node.op_type, opset)
    return sig is not None and sig.has_function and sig.since_version > newest


def _definition(node: ir.Node, opset: int, name: str) -> onnx.FunctionProto:
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")  # onnx's type stubs lack the properties used here
    if schema.has_context_dependent_function:
        types = [_type_bytes(value) for value in node.inputs]
        body = schema.get_context_dependent_function(ir.serde.serialize_node(node).SerializeToString(), types)
        function: onnx.FunctionProto = onnx.FunctionProto.FromString(body)
        if not function.node:
            raise ModelError(
                f"{node.op_type} '{node.name}' is newer than ONNX Runtime and cannot be written out: its inputs have "
                "no known rank; run shape inference on the model first"
            )
    else:
        function = onnx.FunctionProto()
        function.CopyFrom(schema.function_body)
    function.domain, function.name = _DOMAIN, name
    if not function.input:  # some builders leave the interface to the schema
        function.input.extend(formal.name for formal in schema.inputs)
        function.output.extend(formal.name for formal in schema.outputs)
    computed = {name for step in function.node for name in step.output}
    outputs = [name for name in function.output if name in computed]  # a body may leave out outputs that the node does
    del function.output[:]
    function.output.extend(outputs)
    _give_attributes(function, schema)
    del function.opset_import[:]  # the body of the schema in force is written for the opset in force
    function.opset_import.append(onnx.helper.make_opsetid("", opset))
    return function


def _give_attributes(function: onnx.FunctionProto, schema: Any) -> None:
    """Let references to attributes that a node may leave out find the schema's defaults."""
    required = [name for name, formal in schema.attributes.items() if not formal.default_value.name]
    defaults: Sequence[onnx.AttributeProto] = [
        formal.default_value for formal in schema.attributes.values() if formal.default_value.name
    ]
    del function.attribute[:]
    function.attribute.extend(required)
    function.attribute_proto.extend(defaults)


def _type_bytes(value: ir.Value | None) -> bytes:
    known = value is not None and isinstance(value.type, ir.TensorType)
    type_: onnx.TypeProto = ir.to_proto(value).type if value is not None and known else onnx.TypeProto()
    return bytes(type_.SerializeToString())  # with the shape: some builders read the rank
