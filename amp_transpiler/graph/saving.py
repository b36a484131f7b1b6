"""Saving programs atomically: written into a hidden folder beside the destination, then moved there."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import onnx_ir as ir

from amp_transpiler.errors import OutputError
from amp_transpiler.graph.external_data import external_files
from amp_transpiler.graph.garbage import collection_paused
from amp_transpiler.graph.loading import load
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.proto import has_opaque_types, to_proto
from amp_transpiler.graph.tensors import initializer_tensors, tensor_bytes

__all__ = ["Staged", "check_destination", "save", "stage"]

_WRITERS = 2  # threads that convert and write weights; each holds one tensor in memory
_INLINE_LIMIT = 1_900_000_000  # bytes of weights; a protobuf message ends at 2 GiB, and the graph needs some of it


@dataclasses.dataclass(frozen=True, slots=True)
class Staged:
    """A model written to a folder beside its destination.

    Attributes:
        path: the written file; ONNX Runtime can load it from here.
        destination: the path that `commit` moves it to.
    """

    path: pathlib.Path
    destination: pathlib.Path

    def commit(self) -> None:
        """Move the files to the destination, replacing old ones: weights first, then the model."""
        for file in sorted(self.path.parent.iterdir(), key=lambda file: file == self.path):
            file.replace(self.destination.parent / file.name)

    @property
    def file_bytes(self) -> int:
        """Size of the model and its external data."""
        return sum(file.stat().st_size for file in self.path.parent.iterdir())


def check_destination(destination: pathlib.Path, program: Program) -> None:
    """Raise OutputError if `destination` is not writable, or if writing there would destroy the source."""
    source = program.source
    beside = destination.with_name(f"{destination.name}.data")
    if beside.exists() and any(file.samefile(beside) for file in external_files(program.model) if file.exists()):
        raise OutputError(
            f"{destination}: its weights would go to {beside.name}, which holds the source's; choose another output"
        )
    if source is not None and destination.exists() and source.exists() and destination.samefile(source):
        raise OutputError(f"{destination}: output and input are the same file; the source is never overwritten")
    if destination.exists() and not destination.is_file():
        raise OutputError(f"{destination}: exists and is not a regular file; choose another output")
    folder = destination.parent
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
) -> Iterator[Staged]:
    """Write `program` into a hidden folder beside `destination`; `Staged.commit` moves it there.

    Args:
        program: the program to write.
        destination: the final path.
        external: write weights to a file of their own, `DESTINATION.data`; None: if the source has external weights,
            or if the model exceeds protobuf's limit.
        progress: called with the number of tensors written, and of all tensors.

    Raises:
        OutputError: the destination is unusable, or the disk is full. Nothing is left behind.
    """
    target = pathlib.Path(destination)
    check_destination(target, program)
    total = sum(tensor_bytes(program.model))
    if external is None:
        external = total > _INLINE_LIMIT or _has_external_data(program.model)
    try:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise OutputError(f"{target}: cannot write there: {error.strerror}") from error
    try:
        staged = Staged(folder / target.name, target)
        _write(program.model, staged.path, external, progress)
        yield staged
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO):
            raise OutputError(f"{target}: cannot be written: {error.strerror}; nothing was left behind") from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def save(
    program: Program | ir.Model | onnx.ModelProto, path: str | os.PathLike[str], external: bool | None = None
) -> None:
    """Write `program` to `path`, atomically: after a failure, an old file is still there.

    Args:
        program: the program to write; beyond 2 GB, weights go to a file of their own.
        path: the .onnx file; replaced if present.
        external: see `stage`.

    Raises:
        OutputError: the destination is unusable, or the disk is full.
    """
    with stage(load(program), path, external) as staged:
        staged.commit()


@collection_paused()
def _write(model: ir.Model, path: pathlib.Path, external: bool, progress: Callable[[int, int], None] | None) -> None:
    def report(_: Any, info: Any) -> None:
        if progress is not None:
            progress(info.index, info.total)

    if has_opaque_types(model) and not external:
        onnx.save_model(to_proto(model), path)
        return
    if external:
        ir.save(model, path, external_data=f"{path.name}.data", callback=report, max_workers=_WRITERS)
    else:
        ir.save(model, path)


def _has_external_data(model: ir.Model) -> bool:
    return any(
        isinstance(tensor, ir.ExternalTensor) or getattr(tensor, "streamed", False)
        for tensor in initializer_tensors(model)
    )
