"""The skeleton of a model: a message with what shape inference reads, and nothing else."""

from __future__ import annotations

import math
from itertools import starmap

import onnx

from amp_transpiler.ops.schema import signature

__all__ = ["CONTROL_FLOW", "skeleton"]

_SMALL = 64  # elements of a constant that shapes, axes or sizes may depend on
CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")
_DATA = {
    onnx.TensorProto.INT64,
    onnx.TensorProto.INT32,
    onnx.TensorProto.FLOAT,
}  # of shapes and axes, of Resize's scales


def skeleton(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return nodes, known shapes and small constants of a model; of larger constants, types and shapes.

    Operators that ONNX does not have are replaced by stand-ins or left out.
    """
    return _Writer(proto).result


class _Writer:
    def __init__(self, proto: onnx.ModelProto) -> None:
        self.result = onnx.ModelProto(ir_version=proto.ir_version)
        self.result.opset_import.extend(proto.opset_import)
        self._imports = {entry.domain: entry.version for entry in proto.opset_import}
        self._known: dict[tuple[str, str], bool] = {}  # operator -> whether ONNX has it
        self._weights: dict[str, onnx.TensorProto] = {}
        self._graph(proto.graph, self.result.graph)

    def _graph(self, source: onnx.GraphProto, target: onnx.GraphProto) -> None:
        target.name = "skeleton"
        target.input.extend(source.input)
        target.output.extend(source.output)
        target.value_info.extend(source.value_info)
        for info in source.input:  # where weights are inputs
            sizes = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
            if all(sizes):
                self._weights[info.name] = onnx.TensorProto(name=info.name, dims=sizes)
        for tensor in source.initializer:
            self._constant(tensor, target)
        if all(starmap(self._is_plain, {(node.domain, node.op_type) for node in source.node})):
            target.node.extend(source.node)
            return
        from amp_transpiler.graph.stand_ins import stand_ins  # few models have operators that ONNX lacks, or bodies

        for node in source.node:
            if not self._is_known(node.domain, node.op_type):
                target.node.extend(stand_ins(node, self._weights, self._placeholder))
            else:
                target.node.append(self._with_bodies(node) if node.op_type in CONTROL_FLOW else node)

    def _is_plain(self, domain: str, op_type: str) -> bool:
        """Whether nodes of an operator can be taken as they are."""
        return op_type not in CONTROL_FLOW and self._is_known(domain, op_type)

    def _is_known(self, domain: str, op_type: str) -> bool:
        known = self._known.get((domain, op_type))
        if known is None:
            formal = signature(domain, op_type, self._imports.get(domain, self._imports.get("ai.onnx", 1)))
            known = self._known[domain, op_type] = formal is not None and formal.in_onnx
        return known

    def _with_bodies(self, node: onnx.NodeProto) -> onnx.NodeProto:
        copy = onnx.NodeProto(op_type=node.op_type, input=node.input, output=node.output)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                body = copy.attribute.add()
                body.name, body.type = attribute.name, attribute.type
                self._graph(attribute.g, body.g)
            else:
                copy.attribute.append(attribute)
        return copy

    def _constant(self, tensor: onnx.TensorProto, target: onnx.GraphProto) -> None:
        self._weights[tensor.name] = tensor
        if tensor.data_type in _DATA and math.prod(tensor.dims) <= _SMALL:
            target.initializer.append(tensor)
        else:
            empty = target.initializer.add()  # inference reads the data of small ones only
            empty.name, empty.data_type = tensor.name, tensor.data_type
            empty.dims.extend(tensor.dims)

    def _placeholder(self, rows: int, columns: int) -> str:
        name = f"amp_transpiler.placeholder_{len(self.result.graph.initializer)}"
        tensor = self.result.graph.initializer.add()
        tensor.name, tensor.data_type = name, onnx.TensorProto.FLOAT
        tensor.dims.extend((rows, columns))
        return name
