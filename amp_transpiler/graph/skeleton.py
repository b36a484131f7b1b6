"""The skeleton of a model: a message with what shape inference reads, and nothing else."""

from __future__ import annotations

import collections

import onnx
import onnx_ir as ir

from amp_transpiler.graph.stand_ins import stand_ins
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of, signature

__all__ = ["skeleton"]

_SMALL = 64  # elements of a constant that shapes, axes or sizes may depend on


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return nodes, attributes, small constants and known shapes of a model.

    Larger constants are graph inputs. Operators that only ONNX Runtime knows are replaced by stand-ins or left out.
    Names of nodes, metadata and documentation are missing.
    """
    return _Writer(model).write()


class _Writer:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._proto = onnx.ModelProto(ir_version=model.ir_version)
        self._known: dict[tuple[str, str], bool] = {}  # operator -> whether ONNX has it
        names = (name for scope in scopes(model) for name in scope.graph.initializers)
        self._counts = collections.Counter(names)

    def write(self) -> onnx.ModelProto:
        for domain, version in self._model.graph.opset_imports.items():
            self._proto.opset_import.append(onnx.helper.make_opsetid(domain, version))
        self._proto.graph.name = "skeleton"
        self._graph(self._model.graph, self._proto.graph)
        return self._proto

    def _graph(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        for value in graph.initializers.values():
            self._constant(value, proto)
        for value in graph.inputs:
            if not value.is_initializer():
                _describe(value, proto.input.add())
        for value in graph.outputs:
            _describe(value, proto.output.add())
        outputs = set(graph.outputs)
        for node in graph:
            known = self._is_known(node)
            if known:
                self._node(node, proto.node.add())
            else:
                proto.node.extend(stand_ins(node, self._placeholder))
            for value in node.outputs:
                if (value.shape is not None or not known) and value.type is not None and value not in outputs:
                    _describe(value, proto.value_info.add())

    def _is_known(self, node: ir.Node) -> bool:
        key = (node.domain, node.op_type)
        known = self._known.get(key)
        if known is None:
            formal = signature(*key, opset_of(self._model, node.domain))
            known = self._known[key] = formal is not None and formal.in_onnx
        return known

    def _node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        proto.op_type = node.op_type
        if not is_standard(node):
            proto.domain = node.domain
        proto.input.extend(["" if value is None else value.name or "" for value in node.inputs])
        proto.output.extend([value.name or "" for value in node.outputs])
        for attribute in node.attributes.data.values():
            if attribute.type is ir.AttributeType.GRAPH and not attribute.is_ref():
                body = proto.attribute.add()
                body.name, body.type, body.g.name = attribute.name, onnx.AttributeProto.GRAPH, "body"
                self._graph(attribute.as_graph(), body.g)
            else:
                ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)

    def _constant(self, value: ir.Value, proto: onnx.GraphProto) -> None:
        """Write a small constant that may hold sizes, the type and shape of another."""
        tensor = value.const_value
        if tensor is None:
            return
        if tensor.size <= _SMALL and (tensor.dtype.is_integer() or tensor.dtype == ir.DataType.FLOAT):
            proto.initializer.append(onnx.numpy_helper.from_array(tensor.numpy(), value.name))
        elif self._counts[str(value.name)] == 1:  # a weight of a body may be an input of the whole model
            info = self._proto.graph.input.add()
            info.name, info.type.tensor_type.elem_type = str(value.name), int(tensor.dtype)
            info.type.tensor_type.shape.SetInParent()  # a scalar has no dimensions, but a shape
            for size in tensor.shape.numpy():
                info.type.tensor_type.shape.dim.add().dim_value = int(size)

    def _placeholder(self, sizes: list[int | None], element: int) -> str:
        name = f"amp_transpiler.placeholder_{len(self._proto.graph.input)}"
        self._proto.graph.input.append(onnx.helper.make_tensor_value_info(name, element, sizes))
        return name


def _describe(value: ir.Value, info: onnx.ValueInfoProto) -> None:
    """Write name, type and shape of `value`, as far as they are known."""
    info.name = value.name or ""
    if isinstance(value.type, ir.TensorType):
        tensor = info.type.tensor_type
        tensor.elem_type = int(value.type.dtype)
        if value.shape is not None:
            tensor.shape.SetInParent()
            for size in value.shape:
                dim = tensor.shape.dim.add()
                if isinstance(size, int):
                    if size >= 0:  # a negative size is an open one, as ONNX Runtime sees it
                        dim.dim_value = size
                elif size.value is not None:
                    dim.dim_param = size.value
    elif value.type is not None:
        ir.serde.serialize_type_into(info.type, value.type)
