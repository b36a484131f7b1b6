"""The shape and type of every value, by name, with sizes for what a model leaves open."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import onnx
import onnx_ir as ir

from amp_transpiler.graph.proto import proto_graphs, to_proto_without_weights
from amp_transpiler.graph.walk import all_nodes

__all__ = ["Sizes", "sizes_of"]

logger = logging.getLogger(__name__)
UNNAMED = 1  # the size of a dimension that has neither a size nor a name with one


class _Tensor(NamedTuple):
    dtype: ir.DataType
    shape: tuple[int, ...]


class Sizes:
    """How many elements and bytes each value of a model has."""

    def __init__(self, inferred: Mapping[str, _Tensor], dims: Mapping[str, int]) -> None:
        self._inferred, self._dims = inferred, dims

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the type of a value's elements, or None where it is not known."""
        if value is None:
            return None
        inferred = self._inferred.get(str(value.name))
        return value.dtype if inferred is None or value.dtype is not None else inferred.dtype

    def shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the sizes of a value, or None where its rank is not known."""
        if value is None:
            return None
        if value.const_value is not None:
            return tuple(int(size) for size in value.const_value.shape.numpy())
        if str(value.name) in self._inferred:
            return self._inferred[str(value.name)].shape
        if value.shape is None:
            return None
        return tuple(
            size if isinstance(size, int) else self._dims.get(size.value or "", UNNAMED) for size in value.shape
        )

    def elements(self, value: ir.Value | None) -> int:
        """Return how many elements a value has; 0 where that is not known."""
        shape = self.shape(value)
        if shape is None:
            return 0
        total = 1
        for size in shape:
            total *= size
        return total

    def bytes(self, value: ir.Value | None) -> int:
        """Return the bytes of a value; 0 where they are not known."""
        dtype = self.dtype(value)
        if dtype is None or dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
            return 0
        return -(-self.elements(value) * dtype.bitwidth // 8)


def sizes_of(model: ir.Model, dims: Mapping[str, int] | None = None) -> Sizes:
    """Return the sizes of all values of a model.

    Args:
        model: a model; shapes that its values have are taken, what is missing is inferred by ONNX.
        dims: name of an open dimension of the inputs -> its size. Others count as 1.
    """
    given = dict(dims or {})
    if all(_is_known(value) for node in all_nodes(model) for value in node.outputs):
        return Sizes({}, given)
    proto = to_proto_without_weights(model)
    for graph in proto_graphs(proto.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            _fix(info, given, open_size=UNNAMED if info in proto.graph.input else None)
    known = [info for info in proto.graph.value_info if _sizes(info) is not None]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(known)  # operators that ONNX does not know may be between
    for info in proto.graph.output:
        if _sizes(info) is None:
            info.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.info("shapes could not be inferred: %s", " ".join(str(error).split())[:300])
        return Sizes({}, given)
    found = {}
    for graph in proto_graphs(inferred.graph):
        for info in (*graph.input, *graph.value_info, *graph.output):
            shape = _sizes(info)
            if shape is not None:
                found[info.name] = _Tensor(ir.DataType(info.type.tensor_type.elem_type), shape)
    return Sizes(found, given)


def _sizes(info: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)


def _is_known(value: ir.Value) -> bool:
    if not value.name or value.const_value is not None:
        return True
    return value.dtype is not None and value.shape is not None and all(isinstance(size, int) for size in value.shape)


def _fix(info: onnx.ValueInfoProto, dims: Mapping[str, int], open_size: int | None) -> None:
    """Give the open dimensions of a tensor their sizes."""
    for dim in info.type.tensor_type.shape.dim:
        if not dim.HasField("dim_value"):
            size = dims.get(dim.dim_param, open_size)
            if size is not None:
                dim.dim_value = size
