"""A model's external weights: the files must be in the model's folder and complete."""

from __future__ import annotations

import os
import pathlib
import stat
import threading
import weakref
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import ModelError, innermost_text, visible
from amp_transpiler.files.model_file import LFS_REMEDY, is_lfs_pointer
from amp_transpiler.graph.tensors import stored_tensors
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.dtype_attributes import tensor_of

__all__ = [
    "check_external_data",
    "check_external_files",
    "external_files",
    "files_in_use",
    "in_memory",
    "is_link",
    "named_files",
]

_FILES = "amp_transpiler.external_files"  # key in `model.meta`: the files it was loaded from, for later size reports
_IN_USE: weakref.WeakSet[ir.ExternalTensor] = weakref.WeakSet()  # tensors of loaded files that somebody still holds
_IN_USE_LOCK = threading.Lock()
_SMALL = 1024  # bytes; constants up to this size, such as shapes, are read by inference and kept in memory


class _Weights(ir.ExternalTensor):
    """External weights whose file was checked when the model was loaded.

    They are read each time they are asked for, and not mapped: another process may cut the file off, and the end of a
    mapped file ends this process without a word (SIGBUS). A file that has changed since is an error.
    """

    __slots__ = ("_loaded",)

    _loaded: tuple[int, int, int]

    def bind(self, status: os.stat_result) -> None:
        """Note the state of the file when the model was loaded."""
        self._loaded = _state(status)

    def numpy(self) -> np.ndarray:
        """Return the values, which nobody else holds.

        Raises:
            ModelError: the file has changed since the model was loaded, or cannot be read any more.
        """
        self._check_validity()
        if self.dtype.bitwidth < 8:
            packed = ir.ExternalTensor.numpy(self)  # the original unpacks them, in memory of its own
            self.release()
            return packed
        return np.frombuffer(self._read(), self.dtype.numpy().newbyteorder("<")).reshape(self.shape.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype, copy=copy)

    def tobytes(self) -> bytes:
        """Return the bytes of the file; see `numpy`."""
        self._check_validity()
        return bytes(self._read())

    def tofile(self, file: Any) -> None:
        """Write the bytes of the file to another; see `numpy`."""
        try:
            super().tofile(file)
        except OSError:
            self._check_path()  # else it is the other file's
            raise
        self._check_path()

    def _read(self) -> bytearray:
        buffer = bytearray(self.nbytes)
        try:
            with open(self.path, "rb", buffering=0) as file:  # noqa: PTH123  # a string
                file.seek(self.offset or 0)
                view, done = memoryview(buffer), 0
                while done < len(buffer) and (count := file.readinto(view[done:])):
                    done += count
                self._check_state(os.fstat(file.fileno()))
        except OSError as error:
            raise self._changed() from error
        if done < len(buffer):
            raise self._changed()
        return buffer

    def _check_path(self) -> None:
        try:
            status = pathlib.Path(self.path).stat()
        except OSError as error:
            raise self._changed() from error
        self._check_state(status)

    def _check_state(self, status: os.stat_result) -> None:
        if _state(status) != self._loaded:
            raise self._changed()

    def _changed(self) -> ModelError:
        return ModelError(
            f"external data of '{visible(str(self.name), 60)}': '{visible(str(self.path), 80)}' changed since the "
            "model was loaded: another program writes it; begin again when it is whole"
        )

    def _check_path_containment(self) -> None:
        """Do not check again: the original refuses files with several hard links, as package stores make them."""


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def check_external_data(model: ir.Model, path: pathlib.Path) -> None:
    """Point every external tensor of `model` at its file beside `path`, and check that the file holds its bytes.

    Small tensors are read at once. So are tensors of attributes, which ONNX Runtime does not read from files.

    Raises:
        ModelError: a file is missing, too short, or outside the model's folder.
    """
    files, in_use = _Files(path), []
    for scope in scopes(model):
        for value in scope.graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                weights = files.weights(value.const_value)
                if weights.nbytes > _SMALL:
                    in_use.append(weights)
                value.const_value = in_memory(weights) if weights.nbytes <= _SMALL else weights
        for node in scope.graph:
            for name, attribute in list(
                node.attributes.data.items()
            ):  # the plain dict: its walk is several times faster
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    tensor = tensor_of(attribute)
                    if isinstance(tensor, ir.ExternalTensor):
                        node.attributes[name] = ir.AttrTensor(name, in_memory(files.weights(tensor)))
    model.meta[_FILES] = frozenset(files.seen)
    with _IN_USE_LOCK:
        _IN_USE.update(in_use)


class _Files:
    """The files of a model's weights, each checked once."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._folder = path.parent
        # ONNX Runtime reads from the folder of the path and, where that is a link, from the folder of its target.
        self._allowed = tuple({os.path.realpath(self._folder), os.path.dirname(os.path.realpath(path))})  # noqa: PTH120  strings
        # location -> base folder, location in it, state of the file
        self._places: dict[str, tuple[pathlib.Path, str, os.stat_result]] = {}
        self.seen: set[pathlib.Path] = set()

    def weights(self, tensor: ir.ExternalTensor) -> ir.ExternalTensor:
        """Return the tensor bound to its file.

        Raises:
            ModelError: there is no such file in a folder that weights may lie in, or it is too short.
        """
        location, name = str(tensor.location), visible(str(tensor.name), 60)
        where = f"{visible(str(self._path), 100)}: external data of '{name}'"
        if location not in self._places:
            self._places[location] = self._find(location, where)
        folder, inside, status = self._places[location]
        size = status.st_size
        offset, length = tensor.offset or 0, tensor.length or tensor.nbytes
        if offset + max(length, tensor.nbytes) > size or length < tensor.nbytes:
            end = offset + max(length, tensor.nbytes)
            raise ModelError(
                f"{where} ends at byte {end} and has {tensor.nbytes} bytes, length {length}, but "
                f"{visible(inside, 60)} has {size}: the file is truncated"
            )
        weights = _Weights(
            inside,
            tensor.offset,
            tensor.length or None,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=folder,
        )
        weights.bind(status)
        return weights

    def _find(self, location: str, where: str) -> tuple[pathlib.Path, str, os.stat_result]:
        shown = visible(location, 80)
        if not location:
            raise ModelError(f"{where} has no location: the entry that names its file is empty or missing")
        named = pathlib.PurePath(location)
        if named.is_absolute() or ".." in named.parts or "\0" in location:
            raise ModelError(f"{where} points outside the model's folder ({shown}); move the file beside the model")
        file = self._folder / location
        real = os.path.realpath(file)
        try:
            status = file.stat()
        except (FileNotFoundError, NotADirectoryError):
            status = None
        except OSError as error:
            raise ModelError(f"{where} is in '{shown}': {error.strerror}") from error
        base = next((folder for folder in self._allowed if _contains(folder, real)), None)
        if base is None:
            raise ModelError(f"{where} points outside the model's folder ({shown}); move the file beside the model")
        if status is None or not stat.S_ISREG(status.st_mode):
            kind = "is missing: no file" if status is None else "is not a regular file"
            raise ModelError(f"{where} {kind} '{shown}'; {_remedy(location)}")
        if is_lfs_pointer(file):
            raise ModelError(f"{where}: '{shown}' is a pointer of Git LFS, not the weights; {LFS_REMEDY}")
        self.seen.add(file)
        if not is_link(file, self._folder):
            return self._folder, location, status
        # Without links, which ONNX Runtime may refuse.
        return pathlib.Path(base), os.path.relpath(real, base), status


def _contains(folder: str, file: str) -> bool:
    return os.path.commonpath([folder, file]) == folder and file != folder


def _remedy(location: str) -> str:
    return "write the location with / for \\" if "\\" in location else "keep it beside the model"


def check_external_files(model: ir.Model, name: str) -> None:
    """Raise ModelError unless the external weights of a model that was read elsewhere are where it says, complete."""
    for tensor in stored_tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            where = f"{visible(name, 100)}: external data of '{visible(str(tensor.name), 60)}'"
            try:
                size = pathlib.Path(tensor.path).stat().st_size
            except (OSError, ValueError) as error:
                raise ModelError(
                    f"{where}: '{visible(str(tensor.path), 80)}' cannot be read: {innermost_text(error, 60)}; load the "
                    "model from its path"
                ) from error
            if (tensor.offset or 0) + tensor.nbytes > size:
                raise ModelError(f"{where} ends beyond its file '{visible(str(tensor.path), 80)}': it is truncated")


def named_files(model: ir.Model) -> set[pathlib.Path]:
    """Return the files of external weights by the names under which the file that was loaded knows them."""
    return set(model.meta.get(_FILES, ()))


def external_files(model: ir.Model) -> set[pathlib.Path]:
    """Return the files of the model's external weights, now and when it was loaded."""
    files = {pathlib.Path(tensor.path) for tensor in stored_tensors(model) if isinstance(tensor, ir.ExternalTensor)}
    return files | named_files(model)


def files_in_use() -> set[pathlib.Path]:
    """Return the files, links resolved, that hold weights of any program of this process."""
    with _IN_USE_LOCK:
        paths = {tensor.path for tensor in _IN_USE}
    return {pathlib.Path(os.path.realpath(path)) for path in paths}


def in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """Return a copy of a tensor that needs no file."""
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def is_link(file: pathlib.Path, folder: pathlib.Path) -> bool:
    """Whether `file`, or a folder between it and `folder`, is a symbolic link."""
    parts = [file, *(parent for parent in file.parents if parent != folder and folder in parent.parents)]
    return any(part.is_symlink() for part in parts)
