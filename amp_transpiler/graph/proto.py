"""Conversion between protobuf messages and `onnx_ir`, including maps, which `onnx_ir` does not know."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.errors import visible
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.walk import scopes

__all__ = [
    "from_proto",
    "has_opaque_type",
    "holds_map",
    "proto_bodies",
    "proto_graphs",
    "route_log",
    "to_proto",
    "to_proto_without_weights",
]

logger = logging.getLogger(__name__)

_KEPT_WEIGHT_BYTES = 1024  # shape inference reads shapes, axes and the like, which are smaller

_OPAQUE = "amp_transpiler.opaque_type"  # key in `Value.meta`: the message of a type that `onnx_ir` does not know


@collection_paused()
def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return the model that `proto` describes. Maps, the outputs of ai.onnx.ml's classifiers, are kept as they are."""
    route_log()
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
    proto = ir.serde.serialize_model(model)
    for values, infos in ((model.graph.inputs, proto.graph.input), (model.graph.outputs, proto.graph.output)):
        for value, info in zip(values, infos, strict=True):
            if _OPAQUE in value.meta:
                info.type.CopyFrom(value.meta[_OPAQUE])
    return proto


def has_opaque_type(value: ir.Value) -> bool:
    """Whether an input or output of the model has a type that `onnx_ir` does not know."""
    return _OPAQUE in value.meta


def holds_map(type_: onnx.TypeProto) -> bool:
    """Whether a type is, or contains, a map."""
    kind = type_.WhichOneof("value")
    if kind == "sequence_type":
        return holds_map(type_.sequence_type.elem_type)
    if kind == "optional_type":
        return holds_map(type_.optional_type.elem_type)
    return bool(kind == "map_type")


def proto_bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield every body of `node`."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def proto_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and every body inside it."""
    yield graph
    for node in graph.node:
        for body in proto_bodies(node):
            yield from proto_graphs(body)


def to_proto_without_weights(model: ir.Model) -> onnx.ModelProto:
    """Return the model as a message in which larger initializers are graph inputs, for checks that only read types.

    An initializer inside a body keeps its data if another initializer of the model has the same name.
    """
    counts: dict[str, int] = {}
    large: list[ir.Value] = []
    for scope in scopes(model):
        for name, value in scope.graph.initializers.items():
            counts[name] = counts.get(name, 0) + 1
            if value.const_value is not None and value.const_value.nbytes > _KEPT_WEIGHT_BYTES:
                large.append(value)
    large = [value for value in large if counts[str(value.name)] == 1]
    tensors = {str(value.name): value.const_value for value in large}
    try:
        for value in large:
            value.const_value = ir.tensor(np.zeros(0, np.float32), name=value.name)
        proto = to_proto(model)
    finally:
        for value in large:
            value.const_value = tensors[str(value.name)]
    _drop_initializers(proto.graph, set(tensors))
    declared = {info.name for info in proto.graph.input}
    for name, tensor in tensors.items():
        if name not in declared and tensor is not None:
            shape = [int(size) for size in tensor.shape.numpy()]
            proto.graph.input.append(onnx.helper.make_tensor_value_info(name, int(tensor.dtype), shape))
    return proto


def _drop_initializers(graph: onnx.GraphProto, names: set[str]) -> None:
    for scope in proto_graphs(graph):
        remaining = [tensor for tensor in scope.initializer if tensor.name not in names]
        if len(remaining) < len(scope.initializer):
            del scope.initializer[:]
            scope.initializer.extend(remaining)


class _Router(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger.log(record.levelno, "%s", visible(record.getMessage()))


def route_log() -> None:
    """Make messages of `onnx_ir` messages of this package: it quotes names as they are, control characters, too."""
    source = logging.getLogger("onnx_ir")
    if not any(isinstance(handler, _Router) for handler in source.handlers):
        source.addHandler(_Router())
        source.propagate = False
