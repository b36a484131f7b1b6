"""Sets the element type of floats that are created without one."""

from __future__ import annotations

from typing import Any

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import FLOAT_DTYPES, dtype_name, parse_dtype

__all__ = ["get_default_dtype", "set_default_dtype"]

_state = {"dtype": "float32"}


def set_default_dtype(d: Any) -> None:
    """Set the element type of tensors and parameters that are made without one: a float type.

    Raises:
        OptionError: it is no float type.
    """
    dtype = parse_dtype(d)
    if dtype not in FLOAT_DTYPES:
        raise OptionError(f"set_default_dtype: expected float16, bfloat16, float32 or float64, got {d!r}")
    _state["dtype"] = dtype_name(dtype)


def get_default_dtype() -> str:
    """Return the element type of tensors and parameters that are made without one, `float32` at first."""
    return _state["dtype"]
