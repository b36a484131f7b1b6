"""Reading .npz files of inputs. Each array's header is checked against the model before its data is read."""

from __future__ import annotations

import dataclasses
import lzma
import math
import pathlib
import stat
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO

import numpy as np

from amp_transpiler.errors import InputError, innermost_text, visible
from amp_transpiler.files.model_file import LFS_REMEDY, is_lfs_pointer
from amp_transpiler.runtime.feeds import ValueInfo, check_feeds

__all__ = ["check_regular", "read_npz"]

_LARGEST = 2**32  # bytes of one input
_ENCRYPTED = 1  # flag of a member
_NPY = b"\x93NUMPY"
_FAULTS = (
    OSError,
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    NotImplementedError,  # a compression that Python does not know
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
)


def read_npz(path: pathlib.Path, inputs: Mapping[str, ValueInfo]) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file.

    Args:
        path: the file.
        inputs: the model's inputs by name. The array of another name is returned empty, without its data.

    Raises:
        InputError: it is no such file, or an array fits no input of the model. Pickles are never loaded.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            single = file.read(len(_NPY)) == _NPY
        if not single:
            with zipfile.ZipFile(path) as archive:
                return {name: _read(archive, member, name, inputs, path) for name, member in _members(archive, path)}
    except InputError:
        raise
    except _FAULTS as error:
        raise InputError(f"{path}: not an .npz file of plain arrays: {innermost_text(error)}") from error
    raise InputError(f"{path}: holds one unnamed array; write it with numpy.savez(path, INPUT_NAME=array)")


def check_regular(path: pathlib.Path) -> None:
    """Raise InputError unless `path` is a regular file, no pointer of Git LFS: a pipe or device would be waited for."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise InputError(f"{visible(str(path))}: cannot be read: {innermost_text(error)}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device, not a regular file"
        raise InputError(f"{path}: is {kind}; expected a file of arrays")
    if is_lfs_pointer(path):
        raise InputError(f"{path}: is a pointer of Git LFS, not the arrays; {LFS_REMEDY}")


def _members(archive: zipfile.ZipFile, path: pathlib.Path) -> list[tuple[str, zipfile.ZipInfo]]:
    members = []
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise InputError(f"{path}: '{visible(name, 60)}' in it is no array (.npy); write it with numpy.savez")
        if member.flag_bits & _ENCRYPTED:
            raise InputError(f"{path}: '{visible(name, 60)}' in it is encrypted; write it with numpy.savez")
        members.append((name, member))
    return members


def _read(
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    name: str,
    inputs: Mapping[str, ValueInfo],
    path: pathlib.Path,
) -> np.ndarray:
    where = f"{path}: array '{visible(name, 60)}'"
    with archive.open(member) as file:
        shape, dtype = _header(file, where)
        start = file.tell()
    size = math.prod(shape) * dtype.itemsize
    described = f"{dtype.name}[{visible(', '.join(map(str, shape)), 60)}]"
    if name not in inputs:
        return np.empty(0, dtype)
    if size > _LARGEST or (shape and min(shape) < 0):
        raise InputError(f"{where} is {described} by its header, {size} bytes; an input has at most {_LARGEST}")
    _check_header(name, inputs[name], shape, dtype, str(path))
    if start + size > member.file_size:
        raise InputError(f"{where} is {described} by its header, {size} bytes, but has {member.file_size - start}")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise InputError(f"{where} has version {version} of numpy's format, for records; expected plain numbers")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise InputError(f"{where} holds Python objects, a pickle, which is never loaded; expected plain numbers")
    return shape, dtype


def _check_header(name: str, info: ValueInfo, shape: tuple[int, ...], dtype: np.dtype, where: str) -> None:
    """Raise InputError if an array of this shape and type does not fit the input."""
    check_feeds({name: np.empty(0, dtype)}, [dataclasses.replace(info, shape=None)], lenient=True, where=where)
    if info.numpy is not None:
        element = np.zeros((), info.numpy)
        check_feeds({name: np.broadcast_to(element, shape)}, [info], lenient=True, where=where)  # takes no memory
