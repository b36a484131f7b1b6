"""`paddle.static.amp.fp16_lists`: holds Paddle's default lists of operators under Paddle's names."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.systems.paddle.default_colours import DEFAULT_COLOURS, Colour
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.systems.paddle.operator_set import OperatorSet

__all__ = [
    "AutoMixedPrecisionLists",
    "black_list",
    "check_amp_dtype",
    "get_low_precision_dtypestr",
    "get_low_precision_vartype",
    "gray_list",
    "white_list",
]


def _listed(colour: Colour) -> OperatorSet:
    return OperatorSet(key for key, (operator_colour, _) in DEFAULT_COLOURS.items() if operator_colour is colour)


white_list = _listed(Colour.WHITE)
black_list = _listed(Colour.BLACK)
gray_list = _listed(Colour.GRAY)
_extra_black_list = _listed(Colour.UNSUPPORTED)
_only_supported_fp16_list = OperatorSet()  # Paddle's fused operators of one device, which ONNX does not have


def check_amp_dtype(dtype: Any) -> None:
    """Check that an element type is one of the two low formats.

    Raises:
        OptionError: (a ValueError) it is another one.
    """
    low_format(dtype)


def get_low_precision_dtypestr(dtype: Any) -> str:
    """Return `float16` or `bfloat16` for any name of the format.

    Raises:
        OptionError: (a ValueError) it names another type.
    """
    return low_format(dtype).name


def get_low_precision_vartype(dtype: Any) -> ir.DataType:
    """Return the element type itself, `core.VarDesc.VarType.FP16` or `BF16`, for any name of the format.

    Raises:
        OptionError: (a ValueError) it names another type.
    """
    return low_format(dtype).dtype


check_arguments(globals(), __all__)
