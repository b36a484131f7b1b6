"""A model's external weights: the files must be in the model's folder and complete."""

from __future__ import annotations

import os
import pathlib
import threading
import weakref

import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.tensors import stored_tensors
from amp_transpiler.graph.walk import scopes

__all__ = ["check_external_data", "external_files", "files_in_use", "in_memory", "is_link"]

_FILES = "amp_transpiler.external_files"  # key in `model.meta`: the files it was loaded from, for later size reports
_IN_USE: weakref.WeakSet[ir.ExternalTensor] = weakref.WeakSet()  # tensors of loaded files that somebody still holds
_IN_USE_LOCK = threading.Lock()
_SMALL = 1024  # bytes; constants up to this size, such as shapes, are read by inference and kept in memory


def check_external_data(model: ir.Model, path: pathlib.Path) -> None:
    """Point every external tensor of `model` at its file beside `path`, and check that the file holds its bytes.

    Small tensors are read at once. So are tensors of attributes, which ONNX Runtime does not read from files.

    Raises:
        ModelError: a file is missing, too short, a symbolic link, or outside the model's folder.
    """
    folder = path.parent
    files = set()
    for tensor in _external_tensors(model):
        tensor.base_dir = folder
        location = pathlib.PurePosixPath(str(tensor.location).replace("\\", "/"))
        where = f"{path}: external data of '{tensor.name}'"
        if location.is_absolute() or ".." in location.parts:
            raise ModelError(f"{where} points outside the model's folder ({location}); move the file beside the model")
        file = folder / location
        if is_link(file, folder):
            raise ModelError(f"{where} is a symbolic link ({file}); put a copy in its place, for example with cp -L")
        if not file.is_file():
            raise ModelError(f"{where} is missing: no file {file}; keep it beside the model")
        end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
        if end > file.stat().st_size or (tensor.length is not None and tensor.length < tensor.nbytes):
            raise ModelError(f"{where} ends at byte {end}, but {file} has {file.stat().st_size}: the file is truncated")
        files.add(file)
    model.meta[_FILES] = frozenset(files)
    with _IN_USE_LOCK:
        _IN_USE.update(_external_tensors(model))
    _read_small(model)


def external_files(model: ir.Model) -> set[pathlib.Path]:
    """Return the files of the model's external weights, now and when it was loaded."""
    return {pathlib.Path(tensor.path) for tensor in _external_tensors(model)} | set(model.meta.get(_FILES, ()))


def files_in_use() -> set[pathlib.Path]:
    """Return the files, links resolved, that hold weights of any program of this process."""
    with _IN_USE_LOCK:
        paths = {tensor.path for tensor in _IN_USE}
    return {pathlib.Path(os.path.realpath(path)) for path in paths}


def _read_small(model: ir.Model) -> None:
    for scope in scopes(model):
        for value in scope.graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor) and value.const_value.nbytes <= _SMALL:
                value.const_value = in_memory(value.const_value)
        for node in scope.graph:
            for name, attribute in list(node.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    tensor = attribute.as_tensor()
                    if isinstance(tensor, ir.ExternalTensor):
                        node.attributes[name] = ir.AttrTensor(name, in_memory(tensor))


def in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """Return a copy of a tensor that needs no file."""
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def is_link(file: pathlib.Path, folder: pathlib.Path) -> bool:
    """Whether `file`, or a folder between it and `folder`, is a symbolic link."""
    parts = [file, *(parent for parent in file.parents if parent != folder and folder in parent.parents)]
    return any(part.is_symlink() for part in parts)


def _external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    return [tensor for tensor in stored_tensors(model) if isinstance(tensor, ir.ExternalTensor)]
