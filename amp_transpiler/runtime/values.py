"""Arrays in and out of ONNX Runtime, for element types that its Python bindings do not pass on.

numpy has no bfloat16, and `InferenceSession.run` takes no such array, nor does `OrtValue.numpy()` return one. Here such
an array goes in as an `OrtValue` made from its bits (`to_ort`) and comes out by reading the bits at the value's address
(`from_ort`). Callers see arrays of `ml_dtypes.bfloat16`.

Values also go in and out as DLPack capsules, in the same memory. Up to 1.31 ONNX Runtime writes bool as uint8, and the
reader of a capsule says whether it means bool. From 1.32 on a capsule says it itself (`kDLBool`), and its reader takes
no second argument.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import InputError

__all__ = [
    "capsule_of",
    "detached",
    "device_of",
    "element_type",
    "from_ort",
    "has_bool_capsules",
    "is_extension",
    "run_session",
    "to_ort",
    "value_of",
]

_bindings = onnxruntime.capi.onnxruntime_pybind11_state
_DLPACK_BOOL = 6  # kDLBool of dlpack.h

# ONNX Runtime's names of element types, as in `tensor(float)`, where they differ from ONNX's.
_ELEMENT_TYPES = {"float": ir.DataType.FLOAT, "double": ir.DataType.DOUBLE}

_DLPACK_TYPES = frozenset(
    ir.DataType[name]
    for name in "FLOAT DOUBLE FLOAT16 BFLOAT16 BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64".split()
)


def element_type(ort_type: str) -> ir.DataType | None:
    """Return the element type of a name such as `tensor(float)`; None if it does not name a tensor."""
    match = re.fullmatch(r"tensor\((\w+)\)", ort_type)
    if match is None:
        return None
    return _ELEMENT_TYPES.get(match[1]) or ir.DataType[match[1].upper()]


def is_extension(dtype: np.dtype) -> bool:
    """Whether an element type comes from `ml_dtypes`: bfloat16, float8, 4-bit integers."""
    return dtype.isbuiltin == 2


def detached(value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
    """Return an output of a run by itself, in the same memory.

    An output keeps all outputs of its run, and what was bound to it, in memory: a loss that a caller keeps, or a
    learning rate that no step replaces, would keep a whole set of parameters.
    """
    if not value.is_tensor() or ir.DataType(value.element_type()) not in _DLPACK_TYPES:
        return value
    return value_of(capsule_of(value), ir.DataType(value.element_type()))


def device_of(value: onnxruntime.OrtValue) -> tuple[str, int]:
    """Return ONNX Runtime's name of the device that a tensor lies on, and the device's index."""
    name = value.device_name()
    if name == "cpu" or ir.DataType(value.element_type()) not in _DLPACK_TYPES:
        return name, 0
    return name, int(_tensor(value).device_id)


def to_ort(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return a value in main memory that holds `array`, of any element type.

    The value may share the array's memory: keep the array unchanged while the value is in use.
    """
    array = np.asarray(array, order="C")
    if not is_extension(array.dtype):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    dtype = ir.DataType.from_numpy(array.dtype)
    if dtype.bitwidth < 8:
        # ONNX Runtime takes the shape from this array, and the packed bytes from its beginning.
        packed = np.frombuffer(ir.Tensor(array).tobytes(), np.uint8)
        bits = np.zeros(array.shape, np.uint8)
        bits.reshape(-1)[: packed.size] = packed
    else:
        bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, dtype.value)


def from_ort(value: onnxruntime.OrtValue) -> np.ndarray:
    """Return the array of a tensor, copied to main memory.

    Raises:
        InputError: it is a bfloat16 tensor on a device: bind that to main memory instead.
    """
    dtype = ir.DataType(value.element_type())
    if not is_extension(dtype.numpy()):
        array: np.ndarray = value.numpy()
        return array
    if value.device_name() != "cpu":
        raise InputError(f"a {dtype} value on {value.device_name()} cannot be read: bind that output to the CPU")
    shape = tuple(value.shape())
    size = -(-math.prod(shape) * dtype.bitwidth // 8)  # ONNX Runtime before 1.23 does not tell it
    bits = ctypes.string_at(value.data_ptr(), size) if size else b""
    if dtype.bitwidth >= 8:
        return np.frombuffer(bits, dtype.numpy()).reshape(shape)
    # Several share a byte: onnx_ir knows how, of every type; onnx does from 1.19 on.
    return ir.serde.deserialize_tensor(onnx.TensorProto(data_type=dtype.value, dims=shape, raw_data=bits)).numpy()


def run_session(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, Any], fetch: Sequence[str] | None = None
) -> list[Any]:
    """Run once, through main memory.

    Args:
        session: an open session.
        feeds: input name -> array, or list of arrays for a sequence. bfloat16 arrays are `ml_dtypes.bfloat16`.
        fetch: names of outputs; None for all, in the model's order.

    Returns:
        One array per output, in the order of `fetch`; a list for a sequence, None for an empty optional.

    Raises:
        ORT_ERRORS: the run failed.
        InputError: ONNX Runtime's Python bindings cannot pass these types, such as a sequence of bfloat16.
    """
    types_of = {output.name: output.type for output in session.get_outputs()}
    names = list(types_of) if fetch is None else list(fetch)
    inputs = {name: to_ort(value) if _has_extension(value) else value for name, value in feeds.items()}
    by_value = [name for name in names if _names_extension(types_of[name])]
    if not by_value:
        return list(session.run(names, inputs))
    _refuse_unbindable(inputs, {name: types_of[name] for name in by_value})
    values = {name: v if isinstance(v, onnxruntime.OrtValue) else to_ort(np.asarray(v)) for name, v in inputs.items()}
    results = dict(zip(by_value, map(from_ort, session.run_with_ort_values(by_value, values)), strict=True))
    others = [name for name in names if name not in results]
    if others:  # a second run: only `run` reads sequences, and only `run_with_ort_values` reads bfloat16
        results.update(zip(others, session.run(others, inputs), strict=True))
    return [results[name] for name in names]


def _has_extension(value: Any) -> bool:
    return isinstance(value, np.ndarray) and is_extension(value.dtype)


def _names_extension(ort_type: str) -> bool:
    inner = re.search(r"tensor\(\w+\)", ort_type)
    dtype = element_type(inner[0]) if inner else None
    return dtype is not None and is_extension(dtype.numpy())


def _refuse_unbindable(feeds: Mapping[str, Any], outputs: Mapping[str, str]) -> None:
    for name, kind in outputs.items():
        if element_type(kind) is None:
            raise InputError(f"output {name!r} is {kind}: ONNX Runtime's Python bindings cannot read it")
    for name, value in feeds.items():
        if not isinstance(value, onnxruntime.OrtValue) and (
            isinstance(value, list) or value is None or np.asarray(value).dtype.kind in "OUS"
        ):
            raise InputError(
                f"input {name!r} is a sequence, optional or string and output {next(iter(outputs))!r} is "
                f"{next(iter(outputs.values()))}: ONNX Runtime's Python bindings cannot do both in one run"
            )


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
def has_bool_capsules() -> bool:
    """Whether the installed ONNX Runtime tells bool from uint8 in a capsule."""
    truth = onnxruntime.OrtValue.ortvalue_from_numpy(np.array([True]))
    return bool(_tensor(truth).type_code == _DLPACK_BOOL)


def capsule_of(value: onnxruntime.OrtValue) -> Any:
    """Return a DLPack capsule with the memory of a tensor."""
    return value._ortvalue.to_dlpack()  # noqa: SLF001  # the public wrapper has no way to it on every release


def value_of(capsule: Any, dtype: ir.DataType | None = None) -> onnxruntime.OrtValue:
    """Return a value in the memory of a DLPack capsule.

    Args:
        capsule: of a tensor; of bool as `has_bool_capsules` says.
        dtype: the element type; only BOOL matters, and only to a release that reads it as uint8.
    """
    read = _bindings.OrtValue.from_dlpack
    return onnxruntime.OrtValue(read(capsule) if has_bool_capsules() else read(capsule, dtype == ir.DataType.BOOL))


def _tensor(value: onnxruntime.OrtValue) -> _DLTensor:
    """Return a copy of what DLPack says of a value."""
    capsule = capsule_of(value)
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return _DLTensor.from_buffer_copy(_DLTensor.from_address(read(capsule, b"dltensor")))
