"""Provides those names of `paddle.base.core`, Paddle's compiled core, that static programs use."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.paddle.device import is_compiled_with_cuda, is_compiled_with_rocm, is_compiled_with_xpu
from amp_transpiler.paddle.device.cuda import device_count as get_cuda_device_count
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace, Place
from amp_transpiler.runtime.scope import Scope

__all__ = [
    "CPUPlace",
    "CUDAPlace",
    "DataType",
    "Scope",
    "VarDesc",
    "get_cuda_device_count",
    "is_bfloat16_supported",
    "is_compiled_with_cuda",
    "is_compiled_with_mkldnn",
    "is_compiled_with_rocm",
    "is_compiled_with_xpu",
    "is_float16_supported",
    "supports_bfloat16",
]


class VarDesc:
    """Holds Paddle's older names of element types."""

    class VarType:
        """Holds Paddle's older names of element types: `VarDesc.VarType.FP16` is float16."""

        BOOL = ir.DataType.BOOL
        INT8 = ir.DataType.INT8
        UINT8 = ir.DataType.UINT8
        INT16 = ir.DataType.INT16
        INT32 = ir.DataType.INT32
        INT64 = ir.DataType.INT64
        FP16 = ir.DataType.FLOAT16
        BF16 = ir.DataType.BFLOAT16
        FP32 = ir.DataType.FLOAT
        FP64 = ir.DataType.DOUBLE


class DataType:
    """Holds Paddle's newer names of element types: `DataType.FLOAT16` is float16."""

    BOOL = ir.DataType.BOOL
    INT8 = ir.DataType.INT8
    UINT8 = ir.DataType.UINT8
    INT16 = ir.DataType.INT16
    INT32 = ir.DataType.INT32
    INT64 = ir.DataType.INT64
    FLOAT16 = ir.DataType.FLOAT16
    BFLOAT16 = ir.DataType.BFLOAT16
    FLOAT32 = ir.DataType.FLOAT
    FLOAT64 = ir.DataType.DOUBLE


def is_compiled_with_mkldnn() -> bool:
    """Return False: programs run in ONNX Runtime."""
    return False


def supports_bfloat16() -> bool:
    """Return True: on a CPU bfloat16 is emulated."""
    return True


def is_bfloat16_supported(place: Place | None = None) -> bool:  # noqa: ARG001  # Paddle's
    """Return True: every place runs bfloat16, a CPU by emulation."""
    return True


def is_float16_supported(place: Place | None = None) -> bool:  # noqa: ARG001  # Paddle's
    """Return True: every place runs float16, a CPU by emulation."""
    return True
