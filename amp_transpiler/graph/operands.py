"""The two operands of an operator between a value and a value, a number or an array: in one element type, as in Paddle.

A number takes the element type of the value, and so does an array, unless that would lose what is in it: a value of
integers meets a fraction as float32, and a bool meets an integer as int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, Operand

__all__ = ["is_operand", "unified"]

_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL


def is_operand(content: Any) -> bool:
    """Whether `content` is a number or an array of numbers or of truth values."""
    if isinstance(content, (bool, int, float)):
        return True
    return isinstance(content, (np.ndarray, np.generic)) and _kind(np.asarray(content)) is not None


def unified(
    builder: GraphBuilder, value: ir.Value, other: ir.Value | Any, *, divides: bool = False
) -> tuple[ir.Value, Operand]:
    """Return both operands in one element type, with casts where one differs; a number stays one.

    Args:
        builder: appends the casts and the constant.
        value: a value of the program.
        other: another one, or what `is_operand` takes.
        divides: the operator is a true division, which integers meet as float32.
    """
    if isinstance(other, ir.Value):
        wanted = _common(value.dtype, other.dtype)
    else:
        wanted = _wide_enough(value.dtype, np.asarray(other))
    if divides and _is_whole(wanted):
        wanted = _FLOAT
    if isinstance(other, ir.Value):
        return builder.cast(value, wanted), builder.cast(other, wanted)
    return builder.cast(value, wanted), builder.constant(other, wanted) if np.ndim(other) else np.asarray(other).item()


def _kind(array: np.ndarray) -> str | None:
    """Return whether an array holds floats (`f`), integers (`i`) or truth values (`b`); None for anything else."""
    kind = {"f": "f", "i": "i", "u": "i", "b": "b"}.get(array.dtype.kind)
    return "f" if array.dtype.name == "bfloat16" else kind


def _is_whole(dtype: ir.DataType | None) -> bool:
    return dtype is not None and (dtype == _BOOL or dtype.is_integer())


def _wide_enough(dtype: ir.DataType | None, array: np.ndarray) -> ir.DataType | None:
    """Return the element type in which a value of type `dtype` meets an array."""
    kind = _kind(array)
    if not _is_whole(dtype) or dtype is None:
        return dtype
    if kind == "f":
        return _FLOAT
    if kind == "i" and (dtype == _BOOL or not np.array_equal(array.astype(dtype.numpy()), array)):
        return _INT64
    return dtype


def _common(a: ir.DataType | None, b: ir.DataType | None) -> ir.DataType | None:
    """Return the type in which values of two types meet: a float before integers, else the one that holds both."""
    if a is None or b is None or a == b:
        return a
    if _is_whole(a) != _is_whole(b):
        return b if _is_whole(a) else a
    try:
        return ir.DataType.from_numpy(np.promote_types(a.numpy(), b.numpy()))
    except TypeError:  # numpy knows nothing that holds both float16 and bfloat16
        return _FLOAT
