"""Files of weights beside written models: their names, and which of them no model needs any more."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import hashlib
import mmap
import os
import pathlib
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping

import onnx

from amp_transpiler.graph.external_data import files_in_use
from amp_transpiler.graph.proto import proto_graphs

__all__ = ["Identity", "data_name", "identity", "is_data_name", "locations", "own_data", "remove_unused"]

Identity = tuple[int, int, int]  # inode, size, time of the last change

_HASH_DIGITS = 16
_CHUNK = 1 << 18  # bytes read at a time
_PART = 1 << 24  # bytes hashed by one thread; the name is a hash of these hashes
_MODEL_SUFFIXES = frozenset({".onnx", ".ort"})

# Fields of ONNX's messages: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types


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
    """Whether a file of this name would hold the weights of a result called `model`, also one of earlier versions."""
    middle = name.removeprefix(model).removesuffix("data")
    return name == model + middle + "data" and re.fullmatch(rf"\.|\.[0-9a-f]{{{_HASH_DIGITS}}}\.", middle) is not None


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
    """Return the files that hold the weights of the model written at `model`, if there is one. All are beside it."""
    try:
        names = {name for name in os.listdir(model.parent) if is_data_name(name, model.name)}  # noqa: PTH208 - names
        if not names or not _named_in(model, names):  # without reading weights
            return {}
        named = {posixpath.normpath(location) for location in locations(model)}
        return {name: identity(model.parent / name) for name in names & named}
    except OSError:
        return {}


def remove_unused(folder: pathlib.Path, files: Mapping[str, Identity], kept: Collection[pathlib.Path] = ()) -> None:
    """Remove files of weights that no model in the folder names and no program of this process reads.

    In doubt they are kept: where a model cannot be read, or where the file is another one by now.

    Args:
        folder: the folder of the models, links resolved; nobody else may be placing files there.
        files: the files, by names relative to it.
        kept: files that stay in any case, links resolved.
    """
    try:
        unused = {name for name, known in files.items() if _is_unchanged(folder, name, known)}
        if unused:
            models = [file for file in folder.iterdir() if file.suffix.lower() in _MODEL_SUFFIXES and file.is_file()]
            for model in models:
                unused -= _named_in(model, unused)
    except OSError:
        return
    read = files_in_use().union(kept)
    if any(folder / name in read for name in unused):
        gc.collect()  # what reads it may no longer be used itself
        read = files_in_use().union(kept)
    for name in unused:
        if folder / name not in read:
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


def _named_in(model: pathlib.Path, names: Collection[str]) -> set[str]:
    """Return those files whose names occur in a model's file, outside of weights that it holds itself."""
    if model.stat().st_size == 0:
        return set()
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            spans = list(_spans_without_weights(data))
        except ValueError:  # no protobuf
            spans = [(0, len(data))]
        texts = {name: os.fsencode(pathlib.PurePath(name).name) for name in names}
        return {name for name, text in texts.items() if any(data.find(text, *span) >= 0 for span in spans)}


def _spans_without_weights(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    for number, start, end in _fields(data, 0, len(data)):
        if number != _GRAPH:
            yield start, end
            continue
        for member, first, last in _fields(data, start, end):
            if member != _INITIALIZER:
                yield first, last
                continue
            yield from ((a, b) for field, a, b in _fields(data, first, last) if field != _RAW_DATA)


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, beginning and end of every field of a message that holds bytes.

    Raises:
        ValueError: it is no message.
    """
    at = start
    while at < end:
        key, at = _varint(data, at, end)
        kind = key & 7
        if kind == _BYTES:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise ValueError("the field ends beyond its message")
            yield key >> 3, at, at + size
            at += size
        elif kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} is unknown")


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number does not end")
