"""Giving every value of a model its type, from the operators' signatures."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.proto import holds_map, to_proto_without_weights
from amp_transpiler.graph.walk import all_nodes, bodies, control_ports
from amp_transpiler.ops.dtype_attributes import attribute_dtype, dtype_attribute
from amp_transpiler.ops.schema import Signature, Slot, opset_of, signature, type_string

__all__ = ["binding", "clear_type", "node_signature", "parse_type", "propagate_types", "set_dtype"]

logger = logging.getLogger(__name__)

_DTYPES = {type_string(ir.TensorType(dtype)): dtype for dtype in ir.DataType if dtype}

# Parameters that a schema leaves unbound because one type contains the other: output parameter -> how to get it.
_CONTAINERS: dict[tuple[str, int], tuple[int, str]] = {
    ("SequenceAt", 0): (0, "element"),
    ("ConcatFromSequence", 0): (0, "element"),
    ("OptionalGetElement", 0): (0, "element"),
    ("SequenceConstruct", 0): (0, "seq"),
    ("SplitToSequence", 0): (0, "seq"),
    ("Optional", 0): (0, "optional"),
}


def parse_type(text: str) -> ir.TypeProtocol | None:
    """Read a type as ONNX's schemas write it; None for types that hold no tensors this package works on (maps)."""
    if (dtype := _DTYPES.get(text)) is not None:
        return ir.TensorType(dtype)
    match = re.fullmatch(r"(seq|optional)\((.+)\)", text)
    inner = parse_type(match[2]) if match else None
    if match is None or inner is None:
        return None
    return ir.SequenceType(inner) if match[1] == "seq" else ir.OptionalType(inner)


def set_dtype(value: ir.Value, dtype: ir.DataType) -> None:
    """Make `value` a tensor of `dtype`, its shape unchanged."""
    value.type = ir.TensorType(dtype)


def clear_type(value: ir.Value) -> None:
    """Forget what is declared of `value`: type and shape together, since one without the other is noise in a file."""
    value.type = None
    value.shape = None


def node_signature(model: ir.Model, node: ir.Node) -> Signature | None:
    """Return the signature of `node` at the model's opset, or None for an unknown operator."""
    return signature(node.domain, node.op_type, opset_of(model, node.domain))


def binding(node: ir.Node, sig: Signature, *, outputs: bool = True) -> dict[str, str]:
    """Return what the type parameters of `sig` are bound to by the actual inputs (and outputs) of `node`."""
    bound: dict[str, str] = {}
    for slot, value in _actual(node, sig, outputs=outputs):
        text = type_string(value.type)
        if text is not None and slot.homogeneous:
            bound.setdefault(slot.type, text)
    return bound


def _actual(node: ir.Node, sig: Signature, *, outputs: bool) -> Iterator[tuple[Slot, ir.Value]]:
    for index, value in enumerate(node.inputs):
        if value is not None and (slot := sig.input(index)) is not None:
            yield slot, value
    if outputs:
        for index, value in enumerate(node.outputs):
            if (slot := sig.output(index)) is not None:
                yield slot, value


def propagate_types(model: ir.Model) -> None:
    """Set the type of every value that the signatures determine, declared types of intermediates notwithstanding.

    Shapes stay as declared. Values that only an operator of an unknown domain produces keep their declared type or,
    where the types of their readers determine it, get that.

    Raises:
        ModelError: ONNX has to be asked for a type, and refuses a node.
    """
    for graph in (model.graph, *(g for node in all_nodes(model) for _, g in bodies(node))):
        for value in graph.initializers.values():
            if value.const_value is not None and value.dtype != value.const_value.dtype:
                set_dtype(value, value.const_value.dtype)
    _propagate_graph(model, model.graph)
    if any(value.type is None for node in all_nodes(model) for value in node.outputs if value.name):
        _infer_missing(model)
        _propagate_graph(model, model.graph)
        _infer_from_readers(model)


def _propagate_graph(model: ir.Model, graph: ir.Graph) -> None:
    for node in graph:
        for port in control_ports(node):
            types = [use.value.type for use in port.uses if use.value is not None and isinstance(use.user, ir.Node)]
            for value in port.definitions:
                if value.producer() is None and types and types[0] is not None:
                    _set_type(value, types[0])
        for _, body in bodies(node):
            _propagate_graph(model, body)
        _type_outputs(model, node)


def _type_outputs(model: ir.Model, node: ir.Node) -> None:
    for port in control_ports(node):
        types = [use.value.type for use in port.uses if use.value is not None and isinstance(use.user, ir.Graph)]
        for value in port.definitions:
            if value.producer() is node and types and types[0] is not None and port.kind != "opaque":
                _set_type(value, types[0])
    sig = node_signature(model, node)
    if sig is None or node.op_type in ("If", "Loop", "Scan"):
        return
    rule, bound = dtype_attribute(node), binding(node, sig, outputs=False)
    for index, value in enumerate(node.outputs):
        slot = sig.output(index)
        if slot is None:
            continue
        if rule is not None and index in rule.outputs:
            dtype = attribute_dtype(node, rule)
            if dtype is not None:
                set_dtype(value, dtype)
        elif (found := _output_type(node, index, slot, sig, bound)) is not None:
            _set_type(value, found)


def _output_type(
    node: ir.Node, index: int, slot: Slot, sig: Signature, bound: dict[str, str]
) -> ir.TypeProtocol | None:
    if node.op_type == "Constant":
        tensor = node.attributes.get("value")
        if tensor is not None and not tensor.is_ref():
            return ir.TensorType(tensor.as_tensor().dtype)
    if (container := _CONTAINERS.get((node.op_type, index))) is not None and not node.domain:
        source = node.inputs[container[0]] if node.inputs else None
        return None if source is None or source.type is None else _contain(source.type, container[1])
    if not slot.homogeneous:
        return None
    if slot.type in bound:
        return parse_type(bound[slot.type])
    if slot.type not in sig.allowed:
        return parse_type(slot.type)
    only = sig.allowed[slot.type]
    return parse_type(next(iter(only))) if len(only) == 1 else None


def _contain(type_: ir.TypeProtocol, how: str) -> ir.TypeProtocol | None:
    if how == "seq":
        return ir.SequenceType(type_)
    if how == "optional":
        return ir.OptionalType(type_)
    inner = getattr(type_, "elem_type", None)
    return inner if isinstance(inner, (ir.TensorType, ir.SequenceType, ir.OptionalType)) else type_


def _set_type(value: ir.Value, type_: ir.TypeProtocol) -> None:
    if type_string(value.type) != type_string(type_):
        value.type = type_


def _infer_missing(model: ir.Model) -> None:
    """Ask ONNX's own inference for types that the signatures leave open (sequences, optionals, maps).

    Raises:
        ModelError: a node is one that ONNX has no such use of.
    """
    proto = to_proto_without_weights(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False)
    except onnx.shape_inference.InferenceError as error:  # its text names the operator and the node
        reason = " ".join(str(error).split())[:400]
        raise ModelError(
            f"the model is invalid as it is, before any conversion: ONNX cannot infer its types: {reason}"
        ) from error
    infos = (*inferred.graph.value_info, *inferred.graph.output)
    found = {info.name: info.type for info in infos if not holds_map(info.type)}
    for node in model.graph:
        for value in node.outputs:
            if value.type is None and value.name in found and found[value.name].WhichOneof("value"):
                described = ir.serde.deserialize_type_proto_for_type(found[value.name])
                if type_string(described) is not None:
                    value.type = described


def _infer_from_readers(model: ir.Model) -> None:
    """Type a value of an unknown operator by what its readers bind their parameter to elsewhere."""
    for node in all_nodes(model):
        sig = node_signature(model, node)
        if sig is None or not any(value is not None and value.type is None for value in node.inputs):
            continue
        bound = binding(node, sig)
        for index, value in enumerate(node.inputs):
            slot = sig.input(index)
            if value is not None and value.type is None and slot is not None and slot.type in bound:
                value.type = parse_type(bound[slot.type])
                logger.info("typed %s as %s from its reader %s", value.name, bound[slot.type], node.name)
