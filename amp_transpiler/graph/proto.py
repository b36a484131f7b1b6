"""Between protobuf messages and `onnx_ir`, types that `onnx_ir` does not know (maps) included."""

from __future__ import annotations

import onnx
import onnx_ir as ir

__all__ = ["from_proto", "has_opaque_types", "holds_map", "to_proto"]

_OPAQUE = "amp_transpiler.opaque_type"  # key in `Value.meta` of the message that describes such a type


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return the model that `proto` describes. Maps, which classifiers of ai.onnx.ml put out, stay untouched."""
    opaque = {v.name: v.type for v in (*proto.graph.input, *proto.graph.output) if holds_map(v.type)}
    if any(holds_map(info.type) for info in proto.graph.value_info):
        opaque.setdefault("", onnx.TypeProto())
    if not opaque:
        return ir.from_proto(proto)
    plain = onnx.ModelProto()
    plain.CopyFrom(proto)
    for info in (*plain.graph.input, *plain.graph.output, *plain.graph.value_info):
        if holds_map(info.type):
            info.ClearField("type")
    model = ir.from_proto(plain)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name in opaque:
            value.meta[_OPAQUE] = opaque[value.name]
    return model


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the message that describes `model`."""
    proto = ir.to_proto(model)
    for values, infos in ((model.graph.inputs, proto.graph.input), (model.graph.outputs, proto.graph.output)):
        for value, info in zip(values, infos, strict=True):
            if _OPAQUE in value.meta:
                info.type.CopyFrom(value.meta[_OPAQUE])
    return proto


def has_opaque_types(model: ir.Model) -> bool:
    """Whether an input or output of the model has a type that `onnx_ir` does not know."""
    return any(_OPAQUE in value.meta for value in (*model.graph.inputs, *model.graph.outputs))


def holds_map(type_: onnx.TypeProto) -> bool:
    """Whether a type is, or contains, a map: what `onnx_ir` does not know."""
    kind = type_.WhichOneof("value")
    if kind == "sequence_type":
        return holds_map(type_.sequence_type.elem_type)
    if kind == "optional_type":
        return holds_map(type_.optional_type.elem_type)
    return bool(kind == "map_type")
