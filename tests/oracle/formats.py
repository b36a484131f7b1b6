"""The 16-bit formats as numpy has them: a low array is float16 or bfloat16, and is widened to be computed with."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx

LOW = {
    onnx.TensorProto.FLOAT16: np.dtype(np.float16),
    onnx.TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
FLOATS = {**LOW, onnx.TensorProto.FLOAT: np.dtype(np.float32), onnx.TensorProto.DOUBLE: np.dtype(np.float64)}


def float_dtype(value: Any) -> np.dtype | None:
    """Return the type of a float array, or of the first float array in a list; None of anything else."""
    if isinstance(value, np.ndarray):
        return value.dtype if value.dtype in FLOATS.values() else None
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(float_dtype, value)), None)
    return None


def is_low(value: Any) -> bool:
    return float_dtype(value) in LOW.values()


def widen(value: Any) -> Any:
    """Make low arrays float32, also those in lists; everything else stays."""
    if isinstance(value, (list, tuple)):
        return [widen(item) for item in value]
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype in LOW.values() else value


def rounded(value: Any, dtype: np.dtype) -> Any:
    """Round float arrays, also those in lists, to a format; nearest, ties to even, beyond the largest: infinite."""
    if isinstance(value, (list, tuple)):
        return [rounded(item, dtype) for item in value]
    if float_dtype(value) in (None, dtype):
        return value
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return value.astype(dtype)
