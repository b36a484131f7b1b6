"""PyTorch's autocast classes on CUDA, from the operator table."""

from __future__ import annotations

import enum

from amp_transpiler.ops.table import operator_table

__all__ = ["TORCH_CLASSES", "TorchClass"]


class TorchClass(enum.Enum):
    """How torch's autocast casts the inputs of an operator. The classes are the same for float16 and bfloat16.

    Attributes:
        LOWER_PRECISION_FP: all float32 inputs are cast to lower precision.
        FP32: all lower-precision inputs are cast to float32.
        PROMOTE: all float inputs are cast to the widest among them.
        FALL_THROUGH: no cast; the result has the type of torch's own promotion.
    """

    LOWER_PRECISION_FP = "lower_precision_fp"
    FP32 = "fp32"
    PROMOTE = "promote"
    FALL_THROUGH = "fall_through"


TORCH_CLASSES: dict[str, tuple[TorchClass, str]] = {
    operator: (TorchClass(row.cells["torch"]), row.cells["torch names"])
    for operator, row in operator_table().items()
    if "torch" in row.cells
}
"""Operator -> its class and torch's name for it."""
