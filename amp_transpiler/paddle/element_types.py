"""Names of element types: `paddle.float32` is `"float32"`, which is what `Variable.dtype` says."""

from __future__ import annotations

from typing import Any

import numpy as np

from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.program.program import Variable

__all__ = [
    "bfloat16",
    "bool",
    "double",
    "dtype",
    "finfo",
    "float",
    "float16",
    "float32",
    "float64",
    "half",
    "iinfo",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_complex",
    "is_floating_point",
    "is_integer",
    "is_tensor",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

bfloat16 = "bfloat16"
bool = "bool"  # noqa: A001  # Paddle's name
float16 = "float16"
float32 = "float32"
float64 = "float64"
double = "float64"
float = "float32"  # noqa: A001  # Paddle's name
half = "float16"
int8 = "int8"
int16 = "int16"
int32 = "int32"
int64 = "int64"
uint8 = "uint8"
uint16 = "uint16"
uint32 = "uint32"
uint64 = "uint64"
dtype = str


def finfo(dtype: Any) -> Any:
    """Return the limits of a float type: `min`, `max`, `eps`, `tiny`, `bits`, ..."""
    import ml_dtypes  # beside numpy's own floats it knows bfloat16

    return ml_dtypes.finfo(parse_dtype(dtype).numpy())  # type: ignore[no-untyped-call]  # it has no types


def iinfo(dtype: Any) -> Any:
    """Return the limits of an integer type: `min`, `max`, `bits`."""
    return np.iinfo(parse_dtype(dtype).numpy())


def is_tensor(x: Any) -> Any:
    """Whether `x` is a variable."""
    return isinstance(x, Variable)


def is_floating_point(x: Variable) -> Any:
    """Whether `x` holds floats."""
    return is_float_tensor(x.value)


def is_integer(x: Variable) -> Any:
    """Whether `x` holds integers."""
    return x.value.dtype is not None and x.value.dtype.is_integer()


def is_complex(x: Variable) -> Any:
    """Whether `x` holds complex numbers, which no variable does."""
    return x.dtype.startswith("complex")
