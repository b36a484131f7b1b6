"""Copying a model byte for byte, with its external data, atomically."""

from __future__ import annotations

import contextlib
import filecmp
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator

from amp_transpiler.errors import OutputError
from amp_transpiler.graph.external_data import external_files, is_link
from amp_transpiler.graph.loading import load
from amp_transpiler.graph.saving import check_destination

__all__ = ["copy_model"]


def copy_model(source: pathlib.Path, destination: pathlib.Path) -> int:
    """Copy a model file byte for byte and return the number of bytes written.

    External data is copied along into another folder, under the same relative names; in the same folder both models
    share it. Files that already have the same bytes are not written. If source and destination are the same file,
    nothing is written and its size is returned.

    Args:
        source: the .onnx file.
        destination: the copy's path; replaced if present.

    Raises:
        ModelError: the source is unreadable as ONNX, or its external data is missing, truncated or outside its folder.
        OutputError: the destination is unusable, the disk is full, or an external file would replace another one. The
            destination's folder is then as it was before.
    """
    program = load(source)
    if destination.exists() and destination.samefile(source):
        return source.stat().st_size
    check_destination(destination, program)
    files = {file for file in external_files(program.model) if file.is_file()}
    if any(destination.exists() and file.samefile(destination) for file in files):
        raise OutputError(f"{destination}: is external data of {source}; choose another output")
    if destination.parent.samefile(source.parent):
        files = set()
    names = sorted(file.relative_to(source.parent) for file in files)
    missing = [name for name in names if not _is_there(source.parent / name, destination, name)]
    with _staging(destination) as folder:
        staged = folder / "model"
        written = _copy(source, staged, destination)
        for number, name in enumerate(missing):
            written += _copy(source.parent / name, folder / str(number), destination)
        placed = [(folder / str(number), destination.parent / name) for number, name in enumerate(missing)]
        _place([*placed, (staged, destination)], destination)  # the model last: until then the old one is whole
    return written


def _is_there(file: pathlib.Path, destination: pathlib.Path, name: pathlib.Path) -> bool:
    """Whether the copy's folder already has a file of this name with the same bytes.

    Raises:
        OutputError: the file there differs.
    """
    target = destination.parent / name
    if is_link(target, destination.parent):
        raise OutputError(f"{destination}: its external data would go to {target}, a symbolic link; remove it first")
    if target == destination:
        raise OutputError(f"{destination}: its external data has the same name, {name}; choose another output")
    if not target.exists():
        return False
    if not target.is_file():
        raise OutputError(f"{destination}: its external data would go to {target}, which is not a regular file")
    try:
        same = filecmp.cmp(file, target, shallow=False)
    except OSError as error:
        raise _failure(destination, target, error) from error
    if not same:
        raise OutputError(
            f"{destination}: its external data would replace {target}, which differs and belongs to another model; "
            "choose an output in another folder"
        )
    return True


@contextlib.contextmanager
def _staging(destination: pathlib.Path) -> Iterator[pathlib.Path]:
    """Provide a hidden folder beside the destination, on the same disk, and remove it in the end."""
    try:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    except OSError as error:
        raise OutputError(f"{destination}: cannot write there: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(file: pathlib.Path, copy: pathlib.Path, destination: pathlib.Path) -> int:
    try:
        shutil.copyfile(file, copy)
        return copy.stat().st_size
    except OSError as error:
        raise _failure(destination, file, error) from error


def _place(moves: Iterable[tuple[pathlib.Path, pathlib.Path]], destination: pathlib.Path) -> None:
    """Move every file to its place; after a failure, remove those already moved."""
    with contextlib.ExitStack() as undo:
        for staged, target in moves:
            try:
                for folder in reversed([parent for parent in target.parents if not parent.exists()]):
                    folder.mkdir()
                    undo.callback(folder.rmdir)
                staged.replace(target)
            except OSError as error:
                raise _failure(destination, target, error) from error
            undo.callback(target.unlink)
        undo.pop_all()


def _failure(destination: pathlib.Path, file: pathlib.Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"{destination}: cannot be written: {file}: {reason}; nothing was left behind")
