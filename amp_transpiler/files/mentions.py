"""Which files of weights any other file may name: models of whatever suffix beside them and above, packed ones too."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import stat
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import IO, BinaryIO

__all__ = ["is_protobuf_model", "mentioned", "naming_models"]

_LARGEST = 2**31 - 1  # bytes of a protobuf message, so of a model
_SECONDS = 5.0  # for looking; who waits for the folder's lock waits longer
_CHUNK = 1 << 20  # bytes read at a time
_GAP = 16  # bytes; spans of a file with no more between them are read as one

# Fields of ONNX's messages: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types

_UNPACKERS = {b"\x1f\x8b\x08": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "lzma"}  # modules that a Python may lack
_ZIP = b"PK\x03\x04"
_NOT_UNPACKED = {  # how the files of other packers begin
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "rar",
    b"LZIP": "lzip",
    b"\x1f\x9d": "compress",
}
_HEAD = 8  # bytes that tell a packed file


class _Doubt(Exception):
    """It cannot be found out whether a file names the weights."""


class _Clock:
    """Ends a search that takes too long."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _SECONDS

    def look(self) -> None:
        """Raise _Doubt once the time is over."""
        if time.monotonic() > self._end:
            raise _Doubt("other files here may name it, and looking through them takes too long")


def mentioned(folder: pathlib.Path, names: Collection[str]) -> dict[str, str]:
    """Return which files any file beside them, or in a folder above, may name, and why.

    External weights lie in the folder of their model or below it, so no other folder can hold a model that names them;
    links to them are looked for one folder deeper, too. In doubt a file counts as named: where one cannot be read, is
    packed in a way that is not read here, or looking takes too long.

    Args:
        folder: the folder of the files, links resolved.
        names: the files, relative to it.

    Returns:
        Name -> who names it, in words.
    """
    weights = {os.path.realpath(folder / name) for name in names}
    wanted = {name: os.fsencode(pathlib.PurePath(name).name) for name in names}
    clock = _Clock()
    mentions: dict[str, str] = {}
    try:
        for name, link in _links(folder, names):
            mentions.setdefault(name, f"{link} leads to it")
        for path in _candidates(folder, weights):
            missing = {name: text for name, text in wanted.items() if name not in mentions}
            if not missing:
                break
            for name in _named_in(path, missing, clock):
                mentions[name] = f"{path} names it"
    except _Doubt as doubt:
        return {name: mentions.get(name, str(doubt)) for name in names}
    return mentions


def _links(folder: pathlib.Path, names: Collection[str]) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield the files that a symbolic link beside them, above or one folder deeper leads to, and the link."""
    targets = {os.path.realpath(folder / name): name for name in names}
    below = [pathlib.Path(entry.path) for entry in _entries(folder) if entry.is_dir(follow_symlinks=False)]
    for place in (folder, *folder.parents, *below):
        for entry in _entries(place):
            if entry.is_symlink() and (target := os.path.realpath(entry.path)) in targets:
                yield targets[target], pathlib.Path(entry.path)


def _entries(folder: pathlib.Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing where that cannot be read, since no model in it could be loaded either."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _candidates(folder: pathlib.Path, weights: Collection[str]) -> list[pathlib.Path]:
    """Return the files that may be models, in the folder and above, the small ones first; without the weights.

    Raises:
        _Doubt: a file in a folder that this process may write to cannot be read.
    """
    candidates = []
    for place in (folder, *folder.parents):
        is_ours = os.access(place, os.W_OK)
        for entry in _entries(place):
            path = pathlib.Path(entry.path)
            try:
                if entry.is_dir(follow_symlinks=False):  # tells without asking the file system
                    continue
                status = path.stat()
            except OSError:
                continue  # a link that leads nowhere, or a file that has just gone
            if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= _LARGEST:
                continue
            if os.path.realpath(path) in weights:
                continue
            if os.access(path, os.R_OK):
                candidates.append((status.st_size, path))
            elif is_ours:
                raise _Doubt(f"{path} cannot be read, and may name it")
    return [path for _, path in sorted(candidates)]


def _named_in(path: pathlib.Path, names: Mapping[str, bytes], clock: _Clock) -> set[str]:
    """Return those names that occur in a file, outside of weights that a model holds itself.

    Raises:
        _Doubt: that cannot be found out.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_HEAD)
            _refuse_packers(start, _NOT_UNPACKED)
            if start.startswith(_ZIP):
                return _in_zip(file, names, clock)
            file.seek(0)
            for head, module in _UNPACKERS.items():
                if start.startswith(head):
                    with importlib.import_module(module).open(file) as stream:
                        return _in_packed(stream, names, clock)
            return _in_file(file, names, clock)
    except FileNotFoundError:
        return set()
    except _Doubt:
        raise
    except Exception as error:  # each kind of packed file has errors of its own
        raise _Doubt(f"{path} cannot be read, and may name it: {error}") from error


def _refuse_packers(start: bytes, packers: Mapping[bytes, str]) -> None:
    if packer := next((name for head, name in packers.items() if start.startswith(head)), None):
        raise _Doubt(f"a file here is packed with {packer}, is not looked into, and may name it")


def _in_zip(file: BinaryIO, names: Mapping[str, bytes], clock: _Clock) -> set[str]:
    matches: set[str] = set()
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                matches |= _in_packed(stream, names, clock)
    return matches


def _in_packed(stream: IO[bytes], names: Mapping[str, bytes], clock: _Clock) -> set[str]:
    start = stream.read(_HEAD)
    _refuse_packers(start, {**_NOT_UNPACKED, **_UNPACKERS, _ZIP: "zip"})
    return _in_parts(start, stream.read, names, clock)


def _in_file(file: BinaryIO, names: Mapping[str, bytes], clock: _Clock) -> set[str]:
    size = file.seek(0, os.SEEK_END)
    try:
        spans = _joined(_spans_without_weights(file, size, clock))
    except ValueError:  # no protobuf
        spans = [(0, size)]
    matches: set[str] = set()
    for first, last in spans:
        file.seek(first)
        matches |= _in_parts(b"", _reader(file, last - first), names, clock)
    return matches


def _reader(file: BinaryIO, size: int) -> Callable[[int], bytes]:
    """Return a function that reads from a file until so many bytes were read."""
    left = size

    def read(count: int) -> bytes:
        nonlocal left
        part = file.read(min(count, left))
        left -= len(part)
        return part

    return read


def _in_parts(start: bytes, read: Callable[[int], bytes], names: Mapping[str, bytes], clock: _Clock) -> set[str]:
    longest = max(map(len, names.values()))
    matches: set[str] = set()
    tail = start
    while part := read(_CHUNK):
        clock.look()
        text = tail + part
        matches.update(name for name, wanted in names.items() if wanted in text)
        tail = text[-longest:]
    return matches


def naming_models(place: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the models beside a file, or in the folders above, in which its name occurs outside of their weights.

    Args:
        place: the file, links resolved.
    """
    wanted, clock = {place.name: os.fsencode(place.name)}, _Clock()
    for folder in (place.parent, *place.parent.parents):
        for entry in _entries(folder):
            with contextlib.suppress(OSError, _Doubt):
                if not entry.is_file():  # tells without asking the file system: a folder above may hold thousands
                    continue
                path = pathlib.Path(entry.path)
                if path != place and is_protobuf_model(path):
                    with path.open("rb") as file:
                        named = _in_file(file, wanted, clock)
                    if named:
                        yield path


def is_protobuf_model(path: pathlib.Path) -> bool:
    """Whether a file has the form of a model: one message, with a graph.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if not 0 < size <= _LARGEST:
        return False
    with path.open("rb") as file:
        try:
            numbers = [number for number, _, _ in _fields(file, 0, size, _Clock())]
        except (ValueError, _Doubt):
            return False
    return _GRAPH in numbers


def _spans_without_weights(file: BinaryIO, size: int, clock: _Clock) -> Iterator[tuple[int, int]]:
    for number, start, end in _fields(file, 0, size, clock):
        if number != _GRAPH:
            yield start, end
            continue
        for member, first, last in _fields(file, start, end, clock):
            if member != _INITIALIZER:
                yield first, last
                continue
            yield from ((a, b) for field, a, b in _fields(file, first, last, clock) if field != _RAW_DATA)


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        is_next = bool(joined) and first - joined[-1][1] <= _GAP
        joined.append((joined.pop()[0] if is_next else first, last))
    return joined


def _fields(file: BinaryIO, start: int, end: int, clock: _Clock) -> Iterator[tuple[int, int, int]]:
    """Yield number, beginning and end of every field of a message that holds bytes.

    Raises:
        ValueError: it is no message.
        _Doubt: it has too many fields to look at.
    """
    at = start
    while at < end:
        clock.look()
        file.seek(at)
        key, at = _varint(file, at, end)
        kind, number = key & 7, key >> 3
        if not number:
            raise ValueError("no field has the number 0")
        if kind == _BYTES:
            size, at = _varint(file, at, end)
            if size > end - at:
                raise ValueError("the field ends beyond its message")
            yield number, at, at + size
            at += size
        elif kind == _VARINT:
            _, at = _varint(file, at, end)
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} is unknown")


def _varint(file: BinaryIO, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        (byte,) = file.read(1) or b"\x80"  # a file that has become shorter does not end
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number does not end")
