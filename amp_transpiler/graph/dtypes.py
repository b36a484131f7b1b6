"""The low-precision formats, the sets of element types that rules go by, and which conversions lose nothing."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import OptionError

__all__ = [
    "AMP_DTYPES",
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "FLOAT_DTYPES",
    "INTEGER_DTYPES",
    "LOW_DTYPES",
    "LOW_NUMPY_DTYPES",
    "LowFormat",
    "cast_is_lossless",
    "dtype_name",
    "float_format",
    "low_format",
    "parse_dtype",
]


@dataclasses.dataclass(frozen=True, slots=True)
class LowFormat:
    """A 16-bit floating-point format.

    Attributes:
        name: the ONNX and numpy name, `float16` or `bfloat16`.
        short: the form used in file names, `fp16` or `bf16`.
        dtype: the ONNX element type.
        numpy: the numpy element type (`ml_dtypes.bfloat16` for bfloat16).
        max: the largest finite magnitude.
        smallest: the smallest positive magnitude; half of it and less rounds to zero.
        digits: significant bits, the implicit one included.
    """

    name: str
    short: str
    dtype: ir.DataType
    numpy: np.dtype
    max: float
    smallest: float
    digits: int

    def __str__(self) -> str:
        return self.name


FLOAT16 = LowFormat("float16", "fp16", ir.DataType.FLOAT16, np.dtype(np.float16), 65504.0, 2.0**-24, 11)
BFLOAT16 = LowFormat(
    "bfloat16",
    "bf16",
    ir.DataType.BFLOAT16,
    np.dtype(ml_dtypes.bfloat16),
    (2.0 - 2.0**-7) * 2.0**127,
    2.0**-133,
    8,
)
FLOAT32 = LowFormat(
    "float32",
    "fp32",
    ir.DataType.FLOAT,
    np.dtype(np.float32),
    (2.0 - 2.0**-23) * 2.0**127,
    2.0**-149,
    24,
)
"""Not a low format: that of a conversion which makes 16-bit floats float32."""

_BY_NAME = {"float16": FLOAT16, "fp16": FLOAT16, "bfloat16": BFLOAT16, "bf16": BFLOAT16}


def low_format(dtype: object) -> LowFormat:
    """Return the format that `dtype` names.

    Args:
        dtype: `float16`, `bfloat16`, `fp16`, `bf16` in any case, a numpy dtype or an ONNX element type.

    Raises:
        OptionError: `dtype` names neither format.
    """
    if isinstance(dtype, LowFormat):
        return dtype
    name = dtype.name if isinstance(dtype, (np.dtype, ir.DataType)) else getattr(dtype, "__name__", dtype)
    low = _BY_NAME.get(str(name).lower())
    if low is None:
        raise OptionError(f"unknown low-precision dtype {dtype!r}: expected 'float16' or 'bfloat16'")
    return low


def float_format(dtype: object) -> LowFormat:
    """Return the format that `dtype` names, float32 included.

    Args:
        dtype: as for `low_format`, or `float32` and `fp32` besides.

    Raises:
        OptionError: `dtype` names no such format.
    """
    name = dtype.name if isinstance(dtype, (np.dtype, ir.DataType)) else getattr(dtype, "__name__", dtype)
    if str(name).lower() in ("float32", "fp32", "float"):
        return FLOAT32
    try:
        return low_format(dtype)
    except OptionError as error:
        raise OptionError(f"unknown dtype {dtype!r}: expected 'float16', 'bfloat16' or 'float32'") from error


def dtype_name(dtype: ir.DataType | None) -> str:
    """Return numpy's name of an element type: `float32`, `bfloat16`, `int64`, `bool`, ...; `unknown` for None."""
    return "unknown" if dtype is None else _NAMES[dtype]


_NAMES = {dtype: dtype.name.lower() for dtype in ir.DataType} | {
    ir.DataType.FLOAT: "float32",
    ir.DataType.DOUBLE: "float64",
}
# Significand bits (the implicit one included), smallest and largest exponent.
_FLOATS = {
    ir.DataType.FLOAT16: (11, -24, 15),
    ir.DataType.BFLOAT16: (8, -133, 127),
    ir.DataType.FLOAT: (24, -149, 127),
    ir.DataType.DOUBLE: (53, -1074, 1023),
}
_INTEGER_BITS = {
    ir.DataType.BOOL: 1,
    ir.DataType.INT8: 8,
    ir.DataType.UINT8: 8,
    ir.DataType.INT16: 16,
    ir.DataType.UINT16: 16,
    ir.DataType.INT32: 32,
    ir.DataType.UINT32: 32,
    ir.DataType.INT64: 64,
    ir.DataType.UINT64: 64,
}

LOW_DTYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
AMP_DTYPES = LOW_DTYPES | {ir.DataType.FLOAT}
"""The types that mixed precision converts between. float64 is converted only where `--float64` asks for it."""

FLOAT_DTYPES = frozenset(_FLOATS)
INTEGER_DTYPES = frozenset(_INTEGER_BITS)
"""Integers of whole bytes, and bool."""

LOW_NUMPY_DTYPES = frozenset({FLOAT16.numpy, BFLOAT16.numpy})


def cast_is_lossless(source: ir.DataType, target: ir.DataType) -> bool:
    """Whether every value of `source` is a value of `target`.

    Floats into floats are compared by significand and exponent range, integers into floats by bits. Everything
    else but identity counts as lossy.
    """
    if source == target:
        return True
    if target not in _FLOATS:
        return False
    digits, lowest, highest = _FLOATS[target]
    if source in _FLOATS:
        source_digits, source_lowest, source_highest = _FLOATS[source]
        return source_digits <= digits and source_lowest >= lowest and source_highest <= highest
    return source in _INTEGER_BITS and _INTEGER_BITS[source] <= digits and _INTEGER_BITS[source] - 1 <= highest


def parse_dtype(dtype: object) -> ir.DataType:
    """Return the element type that `dtype` names: `float32`, `int64`, `bool`, `bfloat16`, a numpy dtype, ...

    Raises:
        OptionError: it names none.
    """
    if isinstance(dtype, ir.DataType):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    try:
        return ir.DataType.from_numpy(np.dtype(getattr(ml_dtypes, name, name)))
    except (TypeError, AttributeError) as error:
        raise OptionError(f"unknown dtype {dtype!r}: expected one such as 'float32', 'float16' or 'int64'") from error
