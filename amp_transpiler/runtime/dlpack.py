"""Values of ONNX Runtime as DLPack capsules and back, in the same memory, with every release of ONNX Runtime.

Up to 1.31 ONNX Runtime writes bool as uint8, and the reader of a capsule says whether it means bool. From 1.32 on a
capsule says it itself (`kDLBool`), and its reader takes no second argument.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

__all__ = ["capsule_of", "device_index", "knows_bool", "value_of"]

_bindings = onnxruntime.capi.onnxruntime_pybind11_state
_BOOL = 6  # kDLBool of dlpack.h


class _DLTensor(ctypes.Structure):
    """The beginning of DLPack's tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
    )


@functools.cache
def knows_bool() -> bool:
    """Whether the installed ONNX Runtime tells bool from uint8 in a capsule."""
    truth = onnxruntime.OrtValue.ortvalue_from_numpy(np.array([True]))
    return bool(_tensor(truth).type_code == _BOOL)


def capsule_of(value: onnxruntime.OrtValue) -> Any:
    """Return a DLPack capsule with the memory of a tensor."""
    return value._ortvalue.to_dlpack()  # noqa: SLF001  # the public wrapper has no way to it on every release


def value_of(capsule: Any, dtype: ir.DataType | None = None) -> onnxruntime.OrtValue:
    """Return a value in the memory of a DLPack capsule.

    Args:
        capsule: of a tensor; of bool as `knows_bool` says.
        dtype: the element type; only BOOL matters, and only to a release that reads it as uint8.
    """
    read = _bindings.OrtValue.from_dlpack
    return onnxruntime.OrtValue(read(capsule) if knows_bool() else read(capsule, dtype == ir.DataType.BOOL))


def device_index(value: onnxruntime.OrtValue) -> int:
    """Return the index of the device that a tensor lies on, among those of its kind."""
    return int(_tensor(value).device_id)


def _tensor(value: onnxruntime.OrtValue) -> _DLTensor:
    """Return a copy of what DLPack says of a value."""
    capsule = capsule_of(value)
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return _DLTensor.from_buffer_copy(_DLTensor.from_address(read(capsule, b"dltensor")))
