"""Types and shapes of what one node computes. Equal nodes on equal inputs are inferred once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import onnx
import onnx_ir as ir

from amp_transpiler.errors import MisfitError, ModelError
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of, type_string

__all__ = ["infer_outputs"]

_SMALL = 4096  # elements; shape inference gets the data of constants up to this size
_MOST = 4096  # results kept
_UNTYPED = "the types of its inputs must be known: declare them in the model's value_info"
_Found: TypeAlias = "tuple[ir.DataType, tuple[int | str | None, ...] | None] | onnx.TypeProto"  # tensors are the former
# Operators whose results have a shape that no number among their inputs changes.
_OF_SHAPES = frozenset("Add And Cast Div Equal Gather Greater Less Max Min Mul Or Pow Sub Sum Where".split())
# ONNX defines them by functions and says nothing of their types and shapes, which are those of their first input.
_LIKE_THE_FIRST_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
_PLAIN = frozenset({"INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS"})

# The inference of ONNX takes most of the time that building a program takes, and the layers and parameters of a network
# are alike. So its results are kept: what it depends on -> what is known of every output.
_known: dict[Hashable, tuple[_Found | None, ...]] = {}


def infer_outputs(model: ir.Model, node: ir.Node) -> None:
    """Set types and shapes of the outputs of a node without bodies, as far as ONNX can infer them from its inputs.

    Raises:
        ModelError: ONNX refuses the operator on these inputs.
    """
    if has_bodies(node):
        return
    if node.op_type in _LIKE_THE_FIRST_INPUT and is_standard(node) and (first := node.inputs[0]) is not None:
        node.outputs[0].type = first.type
        node.outputs[0].shape = None if first.shape is None else ir.Shape(first.shape)
        return
    key = _key(model, node)
    inferred = None if key is None else _known.get(key)
    if inferred is None:
        inferred = _inferred(model, node)
        if key is not None:
            if len(_known) >= _MOST:
                _known.clear()
            _known[key] = inferred
    for value, output_type in zip(node.outputs, inferred, strict=True):
        if isinstance(output_type, tuple):
            value.type = ir.TensorType(output_type[0])
            shape = None if output_type[1] is None else ir.Shape(output_type[1])
        elif output_type is not None:
            value.type = ir.serde.deserialize_type_proto_for_type(output_type)
            shape = ir.serde.deserialize_type_proto_for_shape(output_type)
        else:
            continue
        value.shape = value.shape if shape is None else shape


def _key(model: ir.Model, node: ir.Node) -> Hashable | None:
    """Return all that the inference depends on; None for a node with large tensors, types or others as attributes."""
    attributes: list[tuple[str, str, Hashable]] = []
    for name, attribute in node.attributes.data.items():  # the plain dict behind a UserDict, which is slow
        kind, content = attribute.type.name, attribute.value
        if kind == "TENSOR" and content.size <= _SMALL and content.dtype != ir.DataType.STRING:
            content = (content.dtype, tuple(content.shape), content.tobytes())
        elif kind not in _PLAIN:
            return None
        attributes.append((name, kind, content))
    versions = tuple(model.graph.opset_imports.items())
    # Which optional outputs are left out matters as well.
    outputs = tuple([value.name == "" for value in node.outputs])
    domain, op_type = node.domain, node.op_type
    numbers = bool(domain) or op_type not in _OF_SHAPES
    inputs = tuple([None if value is None else _facts(value, numbers) for value in node.inputs])
    return domain, op_type, versions, inputs, outputs, tuple(sorted(attributes))


def _facts(value: ir.Value, numbers: bool) -> Hashable:
    tensor = constant_of(value) if numbers else None
    small = tensor is not None and tensor.size <= _SMALL and tensor.dtype != ir.DataType.STRING
    data = tensor.tobytes() if tensor is not None and small else None
    shape = value.shape
    sizes = None if shape is None else tuple([d if isinstance(d, int) else (d.value,) for d in shape.dims])
    return type_string(value.type), sizes, data


def _inferred(model: ir.Model, node: ir.Node) -> tuple[_Found | None, ...]:
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.graph.opset_imports.items()]
    try:
        schema = onnx.defs.get_schema(node.op_type, opset_of(model, node.domain), node.domain)
    except onnx.defs.SchemaError as error:
        version = opset_of(model, node.domain)
        raise ModelError(
            f"there is no operator {node.domain or 'ai.onnx'}::{node.op_type} at opset {version}"
        ) from error
    types, data = {}, {}
    for value in node.inputs:
        if value is None:
            continue
        if value.type is None:
            raise _misfit_error(model, node, _UNTYPED)
        types[str(value.name)] = _type_proto(value)
        tensor = constant_of(value)
        if tensor is not None and tensor.size <= _SMALL:
            data[str(value.name)] = ir.serde.serialize_tensor(tensor)
    # `ir.to_proto` would ask one protocol after another whether it fits: in Python 3.11 half of the time of all this.
    try:
        type_protos = onnx.shape_inference.infer_node_outputs(
            schema, ir.serde.serialize_node(node), types, data, opset_imports=imports, ir_version=10
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise _misfit_error(model, node, str(error)) from error
    return tuple(_type_and_shape(type_protos.get(str(value.name))) for value in node.outputs)


def _misfit_error(model: ir.Model, node: ir.Node, why: str) -> MisfitError:
    from amp_transpiler.graph.misfit_messages import misfit  # here: only an error needs it

    return MisfitError(misfit(node, opset_of(model, node.domain), why))


def _type_and_shape(proto: onnx.TypeProto | None) -> _Found | None:
    if proto is None or proto.WhichOneof("value") is None:
        return None
    if proto.WhichOneof("value") != "tensor_type":
        return proto
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    sizes = None if shape is None else tuple(size if isinstance(size, int) else size.value for size in shape)
    return ir.DataType(proto.tensor_type.elem_type), sizes


def _type_proto(value: ir.Value) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    ir.serde.serialize_type_into(proto, value.type)  # type: ignore[arg-type]  # checked by the caller
    if value.shape is not None:
        ir.serde.serialize_shape_into(proto, value.shape)
    return proto
