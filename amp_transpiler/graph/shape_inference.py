"""Shapes for all values of a model, as far as ONNX can infer them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from itertools import starmap

import onnx
import onnx_ir as ir

from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.builder import is_static
from amp_transpiler.graph.infer_outputs import infer_outputs
from amp_transpiler.graph.proto import proto_graphs, to_proto_without_weights
from amp_transpiler.graph.walk import all_nodes, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import signature

__all__ = ["add_shapes", "complete_shapes", "infer_shapes", "sizes_from_inputs", "written_bytes"]

logger = logging.getLogger(__name__)

_SMALL = 64  # elements of a constant that shapes, axes or sizes may depend on
_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")
_DATA = {
    onnx.TensorProto.INT64,
    onnx.TensorProto.INT32,
    onnx.TensorProto.FLOAT,
}  # of shapes and axes, of Resize's scales


def infer_shapes(model: ir.Model) -> None:
    """Run ONNX's shape inference on the model without its weights, and set the shapes of its nodes' outputs.

    Inference evaluates shape computations on small constants. If it fails, shapes stay as declared. Operators of ONNX
    Runtime that ONNX does not know have stand-ins.
    """
    named = (value for node in all_nodes(model) for value in node.outputs if value.name)
    if all(value.type is not None and is_static(value) for value in named):
        return  # a step of fixed sizes knows its shapes from when it was built
    try:
        proto = to_proto_without_weights(model)
        if any(not is_standard(node) for node in all_nodes(model)):
            proto = _skeleton(proto)
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.warning("shapes could not be inferred: %s", " ".join(str(error).split())[:300])
        return
    inferred_types = _tensor_types(inferred.graph)
    for node in all_nodes(model):
        for value in node.outputs:
            type_ = inferred_types.get(str(value.name))
            if type_ is not None and isinstance(value.type, ir.TensorType | None):
                value.shape = ir.serde.deserialize_type_proto_for_shape(type_)
                if value.type is None:
                    value.type = ir.serde.deserialize_type_proto_for_type(type_)


@collection_paused()
def add_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infer shapes, and sizes in shapes, that a message leaves open; known ones stay. Return the message.

    ONNX Runtime fuses some operators only if it knows that shapes are equal, and infers less by itself. Open sizes
    get made-up names, equal ones the same, but not in the outputs of the model.
    """
    wanted = _open_values(proto)
    if not wanted:
        return proto
    try:
        inferred = onnx.shape_inference.infer_shapes(_skeleton(proto), data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.info("shapes could not be inferred: %s", " ".join(str(error).split())[:300])
        return proto
    outputs = {info.name for info in proto.graph.output}
    symbols = {dim.dim_param for info in (*proto.graph.input, *proto.graph.output) for dim in _dims(info)}
    for graph in _graphs(inferred.graph):
        for info in (*graph.value_info, *graph.output):
            mine = wanted.get(info.name)
            if mine is not None:
                inferred_type, tensor = info.type.tensor_type, mine.type.tensor_type
                if not inferred_type.HasField("shape"):
                    continue
                if not tensor.HasField("shape"):
                    tensor.shape.CopyFrom(inferred_type.shape)
                else:
                    _fill_in(tensor.shape, inferred_type.shape)
                if info.name in outputs:
                    _drop_other_names(tensor.shape, symbols)
    return proto


def written_bytes(model: ir.Model) -> int:
    """Return about how many bytes a model takes once it is written, with shapes and weights. No weights are read."""
    proto = add_shapes(to_proto_without_weights(model))
    inside = {tensor.name for graph in proto_graphs(proto.graph) for tensor in graph.initializer}
    values = (value for scope in scopes(model) for value in scope.graph.initializers.values())
    outside = (value.const_value for value in values if value.const_value is not None and value.name not in inside)
    return int(proto.ByteSize()) + sum(tensor.nbytes for tensor in outside)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and the bodies of control flow in it."""
    yield graph
    for node in graph.node:
        if node.op_type in _CONTROL_FLOW:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from _graphs(attribute.g)


def _open_values(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the tensors of which the shape or a size is not known, by name; without names that sibling bodies share.

    Negative sizes are cleared: they mean the same, and inference takes them for numbers.
    """
    open_values: dict[str, onnx.ValueInfoProto] = {}
    twice: set[str] = set()
    seen: set[str] = set()
    for graph in _graphs(proto.graph):
        for info in (*graph.value_info, *graph.output):
            name, type_ = info.name, info.type
            if name in seen:
                twice.add(name)
            elif type_.HasField("tensor_type"):
                tensor = type_.tensor_type
                if not tensor.HasField("shape") or _has_open_size(tensor.shape):
                    open_values[name] = info
            seen.add(name)
    return {name: info for name, info in open_values.items() if name not in twice} if twice else open_values


def _has_open_size(shape: onnx.TensorShapeProto) -> bool:
    is_open = False
    for dim in shape.dim:
        if _is_open_size(dim):
            is_open = True
            if dim.dim_value < 0:
                dim.Clear()
    return is_open


def _is_open_size(dim: onnx.TensorShapeProto.Dimension) -> bool:
    kind = dim.WhichOneof("value")
    return kind is None or (dim.dim_value < 0 if kind == "dim_value" else not dim.dim_param)


def _fill_in(shape: onnx.TensorShapeProto, inferred: onnx.TensorShapeProto) -> None:
    """Take over inferred sizes where `shape` has none."""
    if len(shape.dim) == len(inferred.dim):
        for old, new in zip(shape.dim, inferred.dim, strict=True):
            if _is_open_size(old):
                old.CopyFrom(new)


def _drop_other_names(shape: onnx.TensorShapeProto, names: set[str]) -> None:
    """Leave sizes open that have a name which is not one of `names`."""
    for dim in shape.dim:
        if dim.WhichOneof("value") == "dim_param" and dim.dim_param not in names:
            dim.ClearField("dim_param")


def _dims(info: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = info.type.tensor_type.shape.dim
    return dims


def complete_shapes(model: ir.Model) -> None:
    """Infer the outputs of nodes of the main graph that have no shape yet, node by node.

    For nodes that a pass has inserted: shapes that are already known stay as they are.

    Raises:
        ModelError: a node does not fit its inputs.
    """
    for node in model.graph:
        if any(value.shape is None for value in node.outputs if value.name):
            infer_outputs(model, node)


def sizes_from_inputs(model: ir.Model) -> dict[str, list[int | None]]:
    """Return the dimensions of the main graph's values, inferred only from its inputs and weights; None for open ones.

    Shapes that the model declares for other values do not count, since they may be wrong. If inference fails, the
    result is empty.
    """
    proto = to_proto_without_weights(model)
    for graph in proto_graphs(proto.graph):
        del graph.value_info[:]
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.info("sizes could not be inferred: %s", " ".join(str(error).split())[:300])
        return {}
    return {
        info.name: [dim.dim_value if dim.HasField("dim_value") else None for dim in info.type.tensor_type.shape.dim]
        for info in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
        if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape")
    }


def _tensor_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """Return the tensor types with a shape by name, without names that sibling bodies use for different types."""
    types_by_name: dict[str, onnx.TypeProto] = {}
    ambiguous: set[str] = set()
    for part in proto_graphs(graph):
        for info in (*part.value_info, *part.output):
            known = info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape")
            if known and types_by_name.setdefault(info.name, info.type) != info.type:
                ambiguous.add(info.name)
    return {name: type_ for name, type_ in types_by_name.items() if name not in ambiguous}


def _skeleton(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return nodes, known shapes and small constants of a model; of larger constants, types and shapes.

    Operators that ONNX does not have are replaced by stand-ins or left out.
    """
    return _Skeleton(proto).result


class _Skeleton:
    """A message with what shape inference reads, and nothing else."""

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
                target.node.append(self._with_bodies(node) if node.op_type in _CONTROL_FLOW else node)

    def _is_plain(self, domain: str, op_type: str) -> bool:
        """Whether nodes of an operator can be taken as they are."""
        return op_type not in _CONTROL_FLOW and self._is_known(domain, op_type)

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
