"""Stacks of persistable values in ONNX Runtime's form: packing values into rows of a matrix, and reading a row."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np
import onnxruntime

from amp_transpiler.graph.stack import Stack
from amp_transpiler.runtime.places import to_host
from amp_transpiler.runtime.values import to_ort

__all__ = ["Stack", "pack", "row_of"]


def pack(stack: Stack, rows: Iterable[np.ndarray]) -> onnxruntime.OrtValue:
    """Return a matrix in main memory that has these values as its rows; they are read one at a time."""
    matrix = np.empty(stack.stacked_shape, stack.dtype.numpy())
    for target, row in zip(matrix, rows, strict=True):
        target[...] = row.reshape(-1)
    return to_ort(matrix)


def row_of(stack: Stack, matrix: onnxruntime.OrtValue, row: int) -> np.ndarray:
    """Return a copy of one value of a stack."""
    if matrix.device_name() != "cpu":
        found: np.ndarray = to_host(matrix)[row].reshape(stack.shape)
        return found
    dtype = stack.dtype.numpy()
    size = stack.size * dtype.itemsize
    data = bytearray(ctypes.string_at(matrix.data_ptr() + row * size, size)) if size else bytearray()
    return np.frombuffer(data, dtype).reshape(stack.shape)
