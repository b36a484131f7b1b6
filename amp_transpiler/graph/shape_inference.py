"""Shapes for all values of a model, as far as ONNX can infer them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from amp_transpiler.graph.builder import infer_outputs
from amp_transpiler.graph.garbage import collection_paused
from amp_transpiler.graph.proto import proto_graphs, to_proto_without_weights
from amp_transpiler.graph.skeleton import skeleton
from amp_transpiler.graph.walk import all_nodes, scopes

__all__ = ["complete_shapes", "fill_in_shapes", "infer_shapes", "sizes_from_inputs"]

logger = logging.getLogger(__name__)


def infer_shapes(model: ir.Model) -> None:
    """Run ONNX's shape inference on the model without its weights, and set the shapes of its nodes' outputs.

    Inference evaluates shape computations on small constants. If it fails, shapes stay as declared.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(to_proto_without_weights(model), data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.warning("shapes could not be inferred: %s", " ".join(str(error).split())[:300])
        return
    found = _tensor_types(inferred.graph)
    for node in all_nodes(model):
        for value in node.outputs:
            type_ = found.get(str(value.name))
            if type_ is not None and isinstance(value.type, ir.TensorType | None):
                value.shape = ir.serde.deserialize_type_proto_for_shape(type_)
                if value.type is None:
                    value.type = ir.serde.deserialize_type_proto_for_type(type_)


@collection_paused()
def fill_in_shapes(model: ir.Model) -> None:
    """Infer shapes, and dimensions of shapes, that are not known yet; known ones stay as they are.

    ONNX Runtime fuses some operators only if it knows that shapes are equal, and infers less by itself. Unknown sizes
    get names where inference finds that several are equal, but not in the outputs of the model.
    """
    unknown = _values_of_unknown_size(model)
    if not unknown:
        return
    proto = skeleton(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.info("shapes could not be inferred: %s", " ".join(str(error).split())[:300])
        return
    symbols = {dim.dim_param for info in (*proto.graph.input, *proto.graph.output) for dim in _dims(info)}
    outputs = set(model.graph.outputs)
    for graph in proto_graphs(inferred.graph):
        for info in (*graph.value_info, *graph.output):
            value = unknown.get(info.name)
            if value is None or not info.type.tensor_type.HasField("shape"):
                continue
            sizes = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in _dims(info)]
            if value in outputs:
                sizes = [size if isinstance(size, int) or size in symbols else None for size in sizes]
            _fill_in(value, sizes)


def _values_of_unknown_size(model: ir.Model) -> dict[str, ir.Value]:
    """Return the results of nodes whose shape is not fully known, by name; names that two values have are left out."""
    found: dict[str, ir.Value] = {}
    seen: set[str] = set()
    for scope in scopes(model):
        seen.update(str(value.name) for value in scope.graph.inputs)
        for node in scope.graph:
            for value in node.outputs:
                name = value.name
                if not name:
                    continue
                if name in seen:
                    found.pop(name, None)
                elif _is_open(value):
                    found[name] = value
                seen.add(name)
    return found


def _is_open(value: ir.Value) -> bool:
    if value.shape is None:
        return value.type is None or isinstance(value.type, ir.TensorType)
    return any(map(_is_open_size, value.shape))


def _is_open_size(size: int | ir.SymbolicDim) -> bool:
    return size < 0 if isinstance(size, int) else size.value is None


def _fill_in(value: ir.Value, sizes: list[int | str | None]) -> None:
    known = value.shape
    if known is None:
        value.shape = ir.Shape(sizes)
    elif len(known) == len(sizes):
        pairs = zip(known, sizes, strict=True)
        value.shape = ir.Shape([new if _is_open_size(old) else old for old, new in pairs])


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
        if any(value.shape is None for value in node.outputs):
            infer_outputs(model, node)


def sizes_from_inputs(model: ir.Model) -> dict[str, list[int | None]]:
    """Return the dimensions of the main graph's values, inferred from its inputs and weights alone; None for open ones.

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
    found: dict[str, onnx.TypeProto] = {}
    ambiguous: set[str] = set()
    for part in proto_graphs(graph):
        for info in (*part.value_info, *part.output):
            known = info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape")
            if known and found.setdefault(info.name, info.type) != info.type:
                ambiguous.add(info.name)
    return {name: type_ for name, type_ in found.items() if name not in ambiguous}
