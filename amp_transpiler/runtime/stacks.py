"""Stacks of persistable values in ONNX Runtime's form: packing values into one matrix, and reading one of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np
import onnxruntime

from amp_transpiler.program.packed_state import Stack
from amp_transpiler.runtime import cuda_runtime
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.values import device_of, to_ort

__all__ = ["Stack", "member_of", "pack"]


def pack(stack: Stack, values: Iterable[np.ndarray]) -> onnxruntime.OrtValue:
    """Return a matrix in main memory that has these values one after the other; they are read one at a time."""
    return to_ort(stack.joined(values))


def member_of(stack: Stack, matrix: onnxruntime.OrtValue, index: int) -> np.ndarray:
    """Return a copy of one value of a stack, and copy nothing else from a device."""
    array = np.empty(stack.shapes[index], stack.dtype.numpy())
    device, device_id = device_of(matrix)
    source = matrix.data_ptr() + stack.starts[index] * array.itemsize
    if not array.size:
        return array
    if device == CPUPlace.device:
        ctypes.memmove(array.ctypes.data, source, array.nbytes)
    else:
        cuda_runtime.wait_for_steps(device_id)
        cuda_runtime.copy_to_host(array.ctypes.data, source, array.nbytes)
    return array
