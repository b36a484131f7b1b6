"""Reads and writes named arrays in one safetensors file, bfloat16 included; it is written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from amp_transpiler.errors import InputError, OutputError
from amp_transpiler.files.durable import regular_place, replacing
from amp_transpiler.files.external_data import files_in_use

__all__ = ["SUFFIX", "read_header", "read_tensors", "with_suffix", "write_tensors"]

SUFFIX = ".safetensors"
_LENGTH = 8  # bytes at the beginning that say how long the header is, little-endian
_DTYPES: Mapping[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def with_suffix(path: str | os.PathLike[str]) -> pathlib.Path:
    """Return `path` ending in .safetensors."""
    file = pathlib.Path(path)
    return file if file.suffix == SUFFIX else file.with_name(file.name + SUFFIX)


def write_tensors(
    path: pathlib.Path, arrays: Mapping[str, np.ndarray], names: Iterable[str], metadata: Mapping[str, str]
) -> None:
    """Write arrays to a safetensors file, one after the other. If it fails, the old file is unchanged.

    Args:
        path: the file; a missing folder is created.
        arrays: name -> array; each is read twice, so that only one is in memory at a time.
        names: which arrays to write.
        metadata: strings for the header.

    Raises:
        OutputError: the file cannot be written, or the format lacks an element type.
    """
    described = {name: (array.dtype, array.shape) for name, array in ((name, arrays[name]) for name in names)}
    order = sorted(
        described, key=lambda name: (-described[name][0].itemsize, name)
    )  # largest items first: so every tensor is aligned
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name in order:
        dtype, shape = described[name]
        code = _CODES.get(dtype.newbyteorder("<") if dtype.kind in "fiu" else dtype)
        if code is None:
            raise OutputError(f"{path}: '{name}' is {dtype}, which a safetensors file cannot hold")
        end = at + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    if regular_place(path) in files_in_use():
        raise OutputError(f"{path}: is external data of a model in use; choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: its folder cannot be made: {error.strerror}") from error
    with replacing(path) as file:
        file.write(len(text).to_bytes(_LENGTH, "little"))
        file.write(text)
        for name in order:
            file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)


def read_header(path: pathlib.Path) -> tuple[dict[str, tuple[np.dtype, tuple[int, ...]]], dict[str, str]]:
    """Return element type and shape of everything in a safetensors file, and its metadata.

    Raises:
        InputError: there is no such file, or it is damaged or has another format.
    """
    entries, metadata, _ = _parse(path)
    return {name: (dtype, shape) for name, (dtype, shape, _) in entries.items()}, metadata


def read_tensors(path: pathlib.Path, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of these names, memory-mapped.

    Raises:
        InputError: there is no such file, or it is damaged or has another format.
    """
    entries, _, start = _parse(path)
    data = np.memmap(path, np.uint8, mode="r")
    for name in names:
        dtype, shape, (begin, end) = entries[name]
        yield name, data[start + begin : start + end].view(dtype).reshape(shape)


def _parse(
    path: pathlib.Path,
) -> tuple[dict[str, tuple[np.dtype, tuple[int, ...], tuple[int, int]]], dict[str, str], int]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="np"), path.open("rb") as file:  # safe_open checks every offset
            length = int.from_bytes(file.read(_LENGTH), "little")
            header = json.loads(file.read(length))
    except (SafetensorError, ValueError) as error:
        raise InputError(f"{path}: damaged, or no safetensors file: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    metadata = header.pop("__metadata__", {})
    entries = {}
    for name, entry in header.items():
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise InputError(f"{path}: '{name}' is of element type {entry['dtype']}, which programs do not have")
        entries[name] = dtype, tuple(entry["shape"]), tuple(entry["data_offsets"])
    return entries, metadata, _LENGTH + length
