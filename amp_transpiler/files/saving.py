"""Saving programs: written into a hidden folder beside the destination, then moved there, the model last."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from amp_transpiler.errors import OutputError
from amp_transpiler.files.data_files import data_name, identity, locations, model_of_weights, own_data, remove_unused
from amp_transpiler.files.durable import regular_place, sync_file, sync_folder
from amp_transpiler.files.external_data import files_in_use, in_memory
from amp_transpiler.files.file_lock import LockBusy
from amp_transpiler.files.loading import load
from amp_transpiler.files.occupied import files_of, same_file
from amp_transpiler.files.staging import note, placing, staging_folder
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.shape_inference import add_shapes
from amp_transpiler.graph.tensors import stored_tensors
from amp_transpiler.program.assemble import with_algorithms, written_model
from amp_transpiler.program.program import Program

__all__ = ["DefaultPlace", "Staged", "check_data_place", "check_destination", "save", "stage"]

_WRITERS = 2  # threads that convert and write weights; each holds one tensor in memory
_OUTSIDE = 256  # bytes; larger weights go outside, and ONNX Runtime wants shapes and axes inside
_INLINE_LIMIT = 1_900_000_000  # bytes of weights; a protobuf message ends at 2 GiB, and the graph needs some of it
_DISK_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO, errno.ENAMETOOLONG}
_SHORT = re.compile(r"\d+ requested and \d+ written")  # numpy's error for a write that ends early, without a number
_PLACE_FAULTS = {errno.EBUSY, errno.EPERM}  # a file that is mounted by itself, or that may not be changed


@dataclasses.dataclass(frozen=True, slots=True)
class DefaultPlace:
    """A destination that nobody named, or of which the user named only the folder.

    Attributes:
        path: the file.
        float32: the file where all of the result is float32; None for the same.
        is_named: the folder was named, so that a source which is what was asked for already is copied there.
    """

    path: pathlib.Path
    float32: pathlib.Path | None = None
    is_named: bool = False

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__


@dataclasses.dataclass(frozen=True, slots=True)
class Staged:
    """A model written to a folder beside its destination.

    Attributes:
        path: the written file; ONNX Runtime can load it from here.
        destination: the path that `commit` moves it to, links resolved.
        data: the name of the file that holds its weights, beside both; None: the model holds them.
        durable: whether the files should survive a power failure.
        kept: files that are never removed.
    """

    path: pathlib.Path
    destination: pathlib.Path
    data: str | None = None
    durable: bool = True
    kept: frozenset[pathlib.Path] = frozenset()

    def commit(self) -> None:
        """Move the files to the destination: weights first, then the model; then remove the old model's weights.

        Raises:
            OutputError: another process keeps writing there.
        """
        folder, place = self.path.parent, self.destination.parent
        if self.durable:
            for file in self._files():
                sync_file(file)
        own_data(self.destination)  # reads the old weights, so that nobody waits for that in `_move`
        try:
            with placing(place):
                self._move(folder, place)
        except LockBusy as error:
            raise OutputError(f"{self.destination}: another process is writing there; try again later") from error

    def _move(self, folder: pathlib.Path, place: pathlib.Path) -> None:
        old = own_data(self.destination)
        new = {} if self.data is None else {self.data: identity(folder / self.data)}
        if old or new:
            note(folder, old | new)  # a kill from here on leaves one of them without a model
        try:
            if self.data is not None and place / self.data not in self.kept:  # else the source's has the same content
                (folder / self.data).replace(place / self.data)
                sync_folder(place)
            self.path.replace(self.destination)
        except BaseException:
            remove_unused(place, new, self.kept)
            raise
        sync_folder(place)
        remove_unused(place, {name: known for name, known in old.items() if name not in new}, self.kept)

    def _files(self) -> list[pathlib.Path]:
        return [self.path] if self.data is None else [self.path.parent / self.data, self.path]

    @property
    def file_bytes(self) -> int:
        """Size of the model and its external data."""
        return sum(file.stat().st_size for file in self._files())


def check_destination(destination: pathlib.Path, program: Program) -> None:
    """Raise OutputError if `destination` is not writable, or if writing there would destroy a source."""
    _check_destination(destination, program, files_of(program))


def _check_destination(destination: pathlib.Path, program: Program, sources: Iterable[pathlib.Path]) -> None:
    place = regular_place(destination)
    if taken := same_file(place, sources):
        if program.source is not None and taken == pathlib.Path(os.path.realpath(program.source)):
            raise OutputError(f"{destination}: output and input are the same file; the source is never overwritten")
        raise OutputError(f"{destination}: is external data of {program!r}; choose another output")
    if place in files_in_use():
        raise OutputError(f"{destination}: is external data of a model in use; choose another output")
    if model := model_of_weights(place):
        raise OutputError(f"{destination}: holds weights of {model}; choose another output")
    folder = place.parent
    if not folder.is_dir():
        raise OutputError(f"{destination}: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{destination}: the folder {folder} is not writable; choose another with -o")


@contextlib.contextmanager
def stage(
    program: Program,
    destination: str | os.PathLike[str],
    external: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    durable: bool = True,
    verbatim: bool = False,
) -> Iterator[Staged]:
    """Write `program` into a hidden folder beside `destination`; `Staged.commit` moves it there.

    Args:
        program: the program to write.
        destination: the final path.
        external: write weights to a file of their own, `DESTINATION.HASH.data`; None: if the source has external
            weights, or if the model exceeds protobuf's limit.
        progress: called with the number of tensors written, and of all tensors.
        durable: whether the files should survive a power failure; no for temporary ones.
        verbatim: copy the file that the program was loaded from, byte for byte, if that holds all of it.

    Raises:
        InputError: the program has no outputs, or its `outputs` name none of its values.
        OutputError: the destination is unusable, or the disk is full. Nothing is left behind.
    """
    sources = frozenset(files_of(program))
    _check_destination(pathlib.Path(destination), program, sources)
    model = written_model(program)
    target = regular_place(pathlib.Path(destination))
    if external is None:
        external = _belongs_outside(list(stored_tensors(model)))
    if external:
        check_data_place(pathlib.Path(destination), target)
    try:
        with staging_folder(target.parent) as folder:
            path = folder / target.name
            data = None
            if verbatim and not external and model is program.model and (whole := _whole_file(program)) is not None:
                shutil.copyfile(whole, path)
            else:
                data = _write(program, model, path, external, durable, progress)
            yield Staged(path, target, data, durable, sources)
    except OSError as error:
        if error.errno in _DISK_FAULTS | _PLACE_FAULTS:
            raise OutputError(f"{target}: cannot be written: {error.strerror}; nothing was left behind") from error
        if error.errno is None and _SHORT.fullmatch(str(error)):
            raise OutputError(
                f"{target}: cannot be written whole: the disk is full, or a limit on the size of files is reached; "
                "nothing was left behind"
            ) from error
        raise


def _whole_file(program: Program) -> pathlib.Path | None:
    """Return the file that a program was loaded from, if it holds all weights: small ones outside are in memory."""
    return None if program.source is None or locations(program.source) else program.source


def check_data_place(destination: pathlib.Path, target: pathlib.Path) -> None:
    """Raise OutputError if no weights could be beside a model at `target`, which `destination` leads to."""
    if target.parent != pathlib.Path(os.path.realpath(destination.parent)):
        raise OutputError(
            f"{destination}: is a symbolic link into another folder, through which external data is not found; "
            f"write to {target}"
        )
    regular_place(target.with_name(f"{target.name}.{'0' * 16}.data"))
    try:
        target.name.encode()
    except UnicodeEncodeError as error:
        raise OutputError(f"{target}: a model with external data needs a name in UTF-8; choose another") from error


def save(
    program: Program | ir.Model | onnx.ModelProto,
    path: str | os.PathLike[str],
    external: bool | None = None,
    *,
    durable: bool = True,
) -> None:
    """Write `program` to `path`, atomically: after a failure, an old file is still there.

    `Program.outputs` are its outputs, with the updates of a training program; if empty, those of the loaded model.

    Args:
        program: the program to write; beyond 2 GB, weights go to a file of their own.
        path: the .onnx file; replaced if present.
        external: see `stage`.
        durable: see `stage`.

    Raises:
        InputError: the program has no outputs, or its `outputs` name none of its values.
        OutputError: the destination is unusable, or the disk is full.
    """
    with stage(load(program), path, external, durable=durable) as staged:
        staged.commit()


@collection_paused()
def _write(
    program: Program,
    model: ir.Model,
    path: pathlib.Path,
    external: bool,
    durable: bool,
    progress: Callable[[int, int], None] | None,
) -> str | None:
    """Write a model to `path`, and return the name of the file beside it that holds its weights, if it is not alone."""
    if not external:
        with _restoring(model) as values:
            for value in values:
                if isinstance(value.const_value, ir.ExternalTensor):  # else it would go on naming the source's file
                    value.const_value = in_memory(value.const_value)
            onnx.save_model(with_algorithms(add_shapes(to_proto(model)), program), path)
        return None
    with _weights_outside(model, path, durable, progress) as data:
        onnx.save_model(with_algorithms(add_shapes(to_proto(model)), program), path)
    return data


@contextlib.contextmanager
def _weights_outside(
    model: ir.Model, path: pathlib.Path, durable: bool, progress: Callable[[int, int], None] | None
) -> Iterator[str | None]:
    """Write the larger weights to a file beside `path`, and let the model's initializers name it meanwhile."""

    def report(_: Any, info: Any) -> None:
        if progress is not None:
            progress(info.index, info.total)

    file = path.with_name(f"{path.name}.data")
    with _restoring(model) as values:
        ir.external_data.unload_from_model(
            model, path.parent, file.name, size_threshold_bytes=_OUTSIDE, callback=report, max_workers=_WRITERS
        )
        if file.stat().st_size == 0:
            file.unlink()
            yield None
            return
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            flushed = pool.submit(sync_file, file) if durable else None  # the disk works meanwhile
            name = data_name(path.name, file, _WRITERS)
            if flushed is not None:
                flushed.result()
        file.rename(file.with_name(name))
        for value in values:
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = ir.ExternalTensor(
                    name, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=str(tensor.name)
                )
        yield name


@contextlib.contextmanager
def _restoring(model: ir.Model) -> Iterator[list[ir.Value]]:
    """Provide all initializers of a model, and give them back their tensors in the end."""
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    tensors = [value.const_value for value in values]
    try:
        yield values
    finally:
        for value, tensor in zip(values, tensors, strict=True):
            value.const_value = tensor


def _belongs_outside(tensors: Sequence[ir.TensorProtocol]) -> bool:
    """Whether weights are outside already, or are too large for a message."""
    outside = any(isinstance(tensor, ir.ExternalTensor) or getattr(tensor, "streamed", False) for tensor in tensors)
    return outside or sum(tensor.nbytes for tensor in tensors) > _INLINE_LIMIT
