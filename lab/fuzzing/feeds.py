"""Inputs made for a mutant, so that the package and the judge run it on the same numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

_FLOATS: dict[int, np.dtype] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_INTEGERS: dict[int, type[np.integer]] = {
    TensorProto.INT64: np.int64,
    TensorProto.INT32: np.int32,
    TensorProto.UINT8: np.uint8,
    TensorProto.INT8: np.int8,
}
_LARGEST = 50_000  # elements of an input


def make_feeds(model: onnx.ModelProto, index: int) -> dict[str, np.ndarray] | None:
    """Return random inputs; None if an input's type or shape is none to fill."""
    random = np.random.default_rng(index)
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        array = _array(value.type, random)
        if array is None or not value.name:
            return None
        feeds[value.name] = array
    return feeds


def _array(type_: onnx.TypeProto, random: np.random.Generator) -> np.ndarray | None:
    if not type_.HasField("tensor_type") or not type_.tensor_type.HasField("shape"):
        return None
    shape = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else 2 for dim in type_.tensor_type.shape.dim
    ]
    # Of a shape with a zero the product says nothing, and numpy counts the other sizes all the same.
    if len(shape) > 16 or np.prod([max(size, 1) for size in shape], dtype=np.float64) > _LARGEST:
        return None
    dtype = type_.tensor_type.elem_type
    if dtype in _FLOATS:
        return random.normal(size=shape).astype(_FLOATS[dtype])
    if dtype in _INTEGERS:
        return random.integers(0, 2, shape).astype(_INTEGERS[dtype])
    if dtype == TensorProto.BOOL:
        return random.integers(0, 2, shape).astype(bool)
    return None
