"""Reads named arrays from the pickles that Paddle writes (`.pdparams`, `.pdopt`) without running what they name.

A pickle is a program, which may call whatever it names. Here it gets stand-ins for the few functions of numpy that
arrays are pickled with, and no other name at all; the stand-ins only collect element type, shape and bytes.
"""

from __future__ import annotations

import collections
import math
import pathlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Literal

import ml_dtypes
import numpy as np

from amp_transpiler.errors import InputError, OutputError
from amp_transpiler.files.durable import replacing

__all__ = ["PARAMETERS_SUFFIX", "STATE_SUFFIX", "looks_pickled", "read_pickled", "write_pickled"]

PARAMETERS_SUFFIX, STATE_SUFFIX = ".pdparams", ".pdopt"

_BFLOAT16: np.dtype = np.dtype(ml_dtypes.bfloat16)
_STRUCTURED = "StructuredToParameterName@@"  # names of a Layer's attributes -> names of parameters
_DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    MemoryError,
    OverflowError,
)
_PARTS = "UnpackBigParamInfor@@"  # arrays that were cut, since old pickles hold no more than 4 GB at once
_ORDERS: Mapping[bool, Literal["C", "F"]] = {False: "C", True: "F"}


def looks_pickled(path: pathlib.Path) -> bool:
    """Whether a file begins as a pickle of protocol 2 or later does."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
    except OSError:
        return False
    return len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= pickle.HIGHEST_PROTOCOL


def read_pickled(path: pathlib.Path, *, structured: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays of a file that Paddle's `static.save` or `paddle.save` wrote, by the names of parameters.

    16-bit unsigned numbers are bfloat16, in which form Paddle stores it. What is no array, such as the state of a
    scheduler, is left out.

    Args:
        path: the file.
        structured: name what a Layer's `state_dict` held by the Layer's attributes (`0.weight`), not by its parameters
            (`linear_0.w_0`).

    Raises:
        InputError: the file cannot be read, is damaged, or names something else than arrays.
    """
    try:
        with path.open("rb") as file:
            content = _Reader(file, encoding="latin1").load()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _Refused as error:
        raise InputError(
            f"{path}: names {error}, which a file of arrays does not need; it was not called. Save arrays only, or "
            "convert the file to safetensors where you trust it"
        ) from error
    except _DAMAGED as error:
        raise InputError(f"{path}: damaged, or no pickle of arrays: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds {type(content).__name__}, expected names and arrays")
    try:
        return _arrays(content, structured=structured)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: damaged: {error}") from error


def write_pickled(path: pathlib.Path, arrays: Mapping[str, np.ndarray], protocol: int = 4) -> None:
    """Write arrays as Paddle's `static.save` does. If it fails, the old file is unchanged.

    Args:
        path: the file; a missing folder is created.
        arrays: name -> array; bfloat16 is written as its bits, as Paddle does.
        protocol: that of pickle, 2 to 4.

    Raises:
        OutputError: the file cannot be written.
    """
    plain = {name: array.view(np.uint16) if array.dtype == _BFLOAT16 else array for name, array in arrays.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: its folder cannot be made: {error.strerror}") from error
    with replacing(path) as file:
        pickle.dump(plain, file, protocol=protocol)


# ---- what a pickle of arrays may name ----


class _Refused(Exception):
    """Says that a pickle names something that is not among the stand-ins."""


class _Dtype:
    """Stands in for numpy's element types."""

    def __init__(self, code: Any, _align: Any = False, _copy: Any = False) -> None:
        self.code = code
        self.is_big_endian = False

    def __setstate__(self, state: Any) -> None:
        self.is_big_endian = state[1] == ">"

    def numpy(self) -> np.dtype:
        """Return the element type.

        Raises:
            ValueError: it is none of numbers or truth values.
        """
        if self.code is _Bfloat16:
            return _BFLOAT16
        dtype: np.dtype = np.dtype(str(self.code))
        if dtype.kind not in "fiubc" or dtype.hasobject:
            raise ValueError(f"arrays of {dtype} hold no numbers")
        return dtype.newbyteorder(">" if self.is_big_endian else "<")


class _Array:
    """Stands in for numpy's arrays: collects what they are made of."""

    def __init__(self) -> None:
        self.content: tuple[tuple[int, ...], _Dtype, bool, bytes] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.content = (tuple(map(int, shape)), dtype, bool(is_fortran), _bytes(data))

    def numpy(self) -> np.ndarray:
        """Return the array.

        Raises:
            ValueError: shape and bytes do not fit, or it holds no numbers.
        """
        if self.content is None:
            raise ValueError("an array without content")
        shape, kind, is_fortran, data = self.content
        dtype = kind.numpy()
        if math.prod(shape) * dtype.itemsize != len(data) or any(size < 0 for size in shape):
            raise ValueError(f"{len(data)} bytes are no {dtype} of shape {list(shape)}")
        array = np.frombuffer(data, dtype).reshape(shape, order=_ORDERS[is_fortran])
        return array.astype(dtype.newbyteorder("="))


class _ArrayType:
    """Stands in for `numpy.ndarray`, which is named and never called."""


class _Bfloat16:
    """Stands in for `ml_dtypes.bfloat16`, which is named and never called."""


def _bytes(data: Any) -> bytes:
    if isinstance(data, str):  # protocol 2 of Python 2
        return data.encode("latin1")
    if not isinstance(data, (bytes, bytearray)):
        raise TypeError("an array of Python objects")
    return bytes(data)


def _reconstruct(_type: Any, _shape: Any, _code: Any) -> _Array:
    return _Array()


def _from_buffer(data: Any, dtype: _Dtype, shape: Any, order: str) -> _Array:
    array = _Array()
    array.content = (tuple(map(int, shape)), dtype, order == "F", _bytes(data))
    return array


def _scalar(dtype: _Dtype, data: Any) -> _Array:
    array = _Array()
    array.content = ((), dtype, False, _bytes(data))
    return array


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes in {encoding}")
    return text.encode("latin1")


def _eval(text: str, names: Mapping[str, Any]) -> Any:
    """Paddle pickles a tensor as `eval("data", {"data": array})`; nothing else is looked up, and nothing evaluated."""
    if text != "data":
        raise _Refused(f"eval({text!r:.60})")
    return names["data"]


_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")
_ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
    **{(module, "_reconstruct"): _reconstruct for module in _NUMPY},
    **{(module, "scalar"): _scalar for module in _NUMPY},
    **{(module, "_frombuffer"): _from_buffer for module in ("numpy.core.numeric", "numpy._core.numeric")},
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): _Dtype,
    ("ml_dtypes", "bfloat16"): _Bfloat16,
    ("_codecs", "encode"): _encode,
    ("builtins", "eval"): _eval,
    ("__builtin__", "eval"): _eval,
    ("builtins", "tuple"): tuple,
    ("__builtin__", "tuple"): tuple,
    ("collections", "OrderedDict"): collections.OrderedDict,
}


class _Reader(pickle.Unpickler):
    """Finds the stand-ins, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a function or class.

        Raises:
            _Refused: there is none.
        """
        stand_in = _ALLOWED.get((module, name))
        if stand_in is None:
            raise _Refused(f"{module}.{name}")
        return stand_in


# ---- from what was read to arrays ----


def _arrays(content: Mapping[Any, Any], *, structured: bool) -> dict[str, np.ndarray]:
    names = content.get(_STRUCTURED)
    renamed: Mapping[Any, Any] = names if isinstance(names, dict) and not structured else {}
    arrays = {}
    for key, item in content.items():
        stored = item[1] if isinstance(item, tuple) and len(item) == 2 else item  # (name, array) of `paddle.save`
        if isinstance(stored, _Array):
            arrays[str(renamed.get(key, key))] = _number(stored.numpy())
    parts = content.get(_PARTS)
    for key, part in (parts if isinstance(parts, dict) else {}).items():
        flat = np.concatenate([arrays.pop(str(name)).reshape(-1) for name in part["slices"]])
        arrays[str(renamed.get(key, key))] = flat.reshape(tuple(int(size) for size in part["OriginShape"]))
    return arrays


def _number(array: np.ndarray) -> np.ndarray:
    return array.view(_BFLOAT16) if array.dtype == np.uint16 else array
