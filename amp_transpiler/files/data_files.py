"""Files of weights beside written models: their names, and which of them no model needs any more."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gc
import hashlib
import logging
import os
import pathlib
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping

import onnx

from amp_transpiler.files.external_data import files_in_use
from amp_transpiler.graph.proto import proto_graphs

__all__ = [
    "Identity",
    "data_name",
    "identity",
    "is_data_name",
    "locations",
    "model_of_weights",
    "own_data",
    "remove_unused",
]

logger = logging.getLogger(__name__)

Identity = tuple[int, int, int]  # inode, size, time of the last change

_HASH_DIGITS = 16
_CHUNK = 1 << 18  # bytes read at a time
_PART = 1 << 24  # bytes hashed by one thread; the name is a hash of these hashes
_READERS = 2  # threads that compare a file with its name


def data_name(model: str, data: pathlib.Path, threads: int = 1) -> str:
    """Return the name for the weights of a result called `model`, which is unique to the content of `data`.

    Args:
        model: the name of the model's file.
        data: the file of weights.
        threads: how many read it.
    """
    parts = range(0, data.stat().st_size, _PART)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        digests = list(pool.map(lambda start: _digest(data, start), parts))
    return f"{model}.{hashlib.sha256(b''.join(digests)).hexdigest()[:_HASH_DIGITS]}.data"


def _digest(data: pathlib.Path, start: int) -> bytes:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    with data.open("rb", buffering=0) as file:
        file.seek(start)
        for _ in range(_PART // _CHUNK):
            digest.update(buffer[: file.readinto(buffer)])
    return digest.digest()


def is_data_name(name: str, model: str) -> bool:
    """Whether a file of this name would hold the weights of a result called `model`."""
    return re.fullmatch(rf"{re.escape(model)}\.[0-9a-f]{{{_HASH_DIGITS}}}\.data", name) is not None


def identity(file: pathlib.Path) -> Identity:
    """Return what tells a file from a later one of its name. It survives a move on the same disk."""
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def locations(model: pathlib.Path) -> set[str]:
    """Return where the file of a model says that its external weights are; nowhere if it is no model."""
    try:
        proto = onnx.load_model(model, load_external_data=False)
    except Exception:  # noqa: BLE001 - each implementation of protobuf has a DecodeError of its own; loading reports it
        return set()
    entries = (entry for tensor in _tensors(proto) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in proto_graphs(proto.graph):
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)


def own_data(model: pathlib.Path) -> dict[str, Identity]:
    """Return the files of a model's weights that this package wrote: their names tell their content. All are beside it.

    Args:
        model: the place of a result, where there may be no file yet.
    """
    try:
        names = {name for name in os.listdir(model.parent) if is_data_name(name, model.name)}  # noqa: PTH208 - names
        if not names:
            return {}
        named = names & {posixpath.normpath(location) for location in locations(model)}
        files = {name: identity(model.parent / name) for name in named}
        return {name: known for name, known in files.items() if _has_its_content(model, name, known)}
    except OSError:
        return {}


@functools.lru_cache(maxsize=64)
def _has_its_content(model: pathlib.Path, name: str, _: Identity) -> bool:
    """Whether a file beside a model has the content that its name tells."""
    file = model.parent / name
    return file.is_file() and not file.is_symlink() and data_name(model.name, file, _READERS) == name


def model_of_weights(place: pathlib.Path) -> pathlib.Path | None:
    """Return a model, beside a file or in a folder above, whose external weights are in this file, or None.

    Args:
        place: the file, links resolved; it need not exist.
    """
    try:
        if not place.is_file():
            return None
        from amp_transpiler.files.mentions import is_protobuf_model, naming_models  # only where a file is replaced

        if is_protobuf_model(place):  # a model is nobody's weights
            return None
    except OSError:
        return None
    for model in naming_models(place):
        if any(os.path.realpath(model.parent / location) == str(place) for location in locations(model)):
            return model
    return None


def remove_unused(
    folder: pathlib.Path, files: Mapping[str, Identity], protected: Collection[pathlib.Path] = ()
) -> None:
    """Remove files of weights that nothing beside them or above may name, and that no program of this process reads.

    In doubt they are kept: see `mentioned`; and where a file is another one by now.

    Args:
        folder: the folder of the files, links resolved; nobody else may be placing files there.
        files: the files, by names relative to it, all written by this package.
        protected: files that stay in any case, links resolved.
    """
    read = files_in_use().union(protected)
    if any(folder / name in read for name in files):
        gc.collect()  # what reads it may no longer be used itself
        read = files_in_use().union(protected)
    try:
        unused = {
            name for name, known in files.items() if _is_unchanged(folder, name, known) and folder / name not in read
        }
    except OSError:
        return
    if not unused:
        return
    from amp_transpiler.files.mentions import mentioned  # only where a model with files of weights is replaced

    named = mentioned(folder, unused)
    for name in sorted(unused):
        if name in named:
            logger.info("%s stays, though its model was replaced: %s", folder / name, named[name])
        else:
            _delete(folder, folder / name)


def _is_unchanged(folder: pathlib.Path, name: str, known: Identity) -> bool:
    file = folder / name
    return file.is_relative_to(folder) and ".." not in file.parts and file.is_file() and identity(file) == known


def _delete(folder: pathlib.Path, file: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()
        for parent in file.parents:
            if parent == folder:
                break
            parent.rmdir()  # unless something else is in it
