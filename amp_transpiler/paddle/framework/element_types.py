"""Translates the element types that Paddle's programs declare."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.dtypes import parse_dtype

__all__ = ["declared_dtype"]


def declared_dtype(dtype: Any) -> ir.DataType:
    """Return the element type that a program declares a variable with: `uint16` is how Paddle's write bfloat16.

    Raises:
        OptionError: `dtype` names no element type.
    """
    if dtype == "uint16" or dtype is np.uint16 or dtype == np.dtype(np.uint16):
        return ir.DataType.BFLOAT16
    return parse_dtype(dtype)
