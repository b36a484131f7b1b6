"""Operators between a value and a value, a number or an array, in one element type, as in Paddle.

A number takes the element type of the value, and so does an array, unless that would lose what is in it: a value of
integers meets a fraction as float32, and a bool meets an integer as int64. Where a number would become infinite or 0 in
the 16-bit format of a value, the operator computes in float32 and its result is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, Operand
from amp_transpiler.graph.dtypes import LOW_DTYPES

__all__ = ["common_dtype", "is_operand", "operate"]

_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
_ORDERS = {"Greater", "GreaterOrEqual", "Less", "LessOrEqual"}  # only of numbers, in ONNX


def is_operand(content: Any) -> bool:
    """Whether `content` is a number, or an array or a list of numbers or of truth values."""
    if isinstance(content, (bool, int, float)):
        return True
    if isinstance(content, (list, tuple)):
        return _is_regular(content)
    return isinstance(content, (np.ndarray, np.generic)) and _kind(np.asarray(content)) is not None


def _is_regular(items: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list, perhaps of lists, holds numbers, and lists in it are of one length."""
    nested = [item for item in items if isinstance(item, (list, tuple))]
    if len(nested) not in (0, len(items)) or len({len(item) for item in nested}) > 1:
        return False
    return bool(items) and all(_is_regular(item) if nested else isinstance(item, (bool, int, float)) for item in items)


def operate(
    builder: GraphBuilder, op_type: str, value: ir.Value, other: ir.Value | Any, *, swapped: bool = False
) -> ir.Value:
    """Append an operator on two operands, with casts where their types differ, and return its result.

    Args:
        builder: appends.
        op_type: the operator. Integers meet as float32 at Div, since Paddle's division is a true one.
        value: a value of the program.
        other: another one, or what `is_operand` takes.
        swapped: `other` comes first.
    """
    wanted = common_dtype(value.dtype, other.dtype) if isinstance(other, ir.Value) else _wide_enough(value.dtype, other)
    if op_type == "Div" and _is_whole(wanted):
        wanted = _FLOAT
    elif op_type in _ORDERS and wanted == _BOOL:
        wanted = _INT64
    narrow = not isinstance(other, ir.Value) and _vanishes(other, wanted)
    a, b = builder.cast(value, _FLOAT if narrow else wanted), _operand(builder, other, _FLOAT if narrow else wanted)
    result = builder.binary(op_type, *((b, a) if swapped else (a, b)))
    return builder.cast(result, wanted) if narrow and result.dtype != _BOOL else result


def _operand(builder: GraphBuilder, other: ir.Value | Any, dtype: ir.DataType | None) -> Operand:
    if isinstance(other, ir.Value):
        return builder.cast(other, dtype)
    if np.ndim(other):
        return builder.constant(other, dtype)
    number: float = np.asarray(other).item()
    return number


def _vanishes(content: Any, dtype: ir.DataType | None) -> bool:
    """Whether a finite number becomes infinite in a 16-bit format, or one that is not 0 becomes 0."""
    if dtype not in LOW_DTYPES:
        return False
    array = np.asarray(content, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        low = array.astype(dtype.numpy()).astype(np.float64)
    return bool(np.any((np.isfinite(array) & ~np.isfinite(low)) | ((array != 0) & (low == 0))))


def _kind(array: np.ndarray) -> str | None:
    """Return whether an array holds floats (`f`), integers (`i`) or truth values (`b`); None for anything else."""
    kind = {"f": "f", "i": "i", "u": "i", "b": "b"}.get(array.dtype.kind)
    return "f" if array.dtype.name == "bfloat16" else kind


def _is_whole(dtype: ir.DataType | None) -> bool:
    return dtype is not None and (dtype == _BOOL or dtype.is_integer())


def _wide_enough(dtype: ir.DataType | None, content: Any) -> ir.DataType | None:
    """Return the element type in which a value of type `dtype` meets a number or an array."""
    array = np.asarray(content)
    kind = _kind(array)
    if not _is_whole(dtype) or dtype is None:
        return dtype
    if kind == "f":
        return _FLOAT
    if kind == "i" and (dtype == _BOOL or not np.array_equal(array.astype(dtype.numpy()), array)):
        return _INT64
    return dtype


def common_dtype(a: ir.DataType | None, b: ir.DataType | None) -> ir.DataType | None:
    """Return the type in which values of two types meet: a float before integers, else the one that holds both."""
    if a is None or b is None or a == b:
        return a
    if _is_whole(a) != _is_whole(b):
        return b if _is_whole(a) else a
    try:
        return ir.DataType.from_numpy(np.promote_types(a.numpy(), b.numpy()))
    except TypeError:  # numpy knows nothing that holds both float16 and bfloat16
        return _FLOAT
