"""Copying a model byte for byte, with its external data, atomically."""

from __future__ import annotations

import contextlib
import errno
import filecmp
import pathlib
import shutil
from collections.abc import Collection, Iterator, Mapping

from amp_transpiler.errors import OutputError
from amp_transpiler.files.data_files import identity, own_data, remove_unused
from amp_transpiler.files.durable import regular_place, sync_file, sync_folder
from amp_transpiler.files.external_data import is_link, named_files
from amp_transpiler.files.file_lock import LockBusy
from amp_transpiler.files.loading import load
from amp_transpiler.files.occupied import files_of
from amp_transpiler.files.saving import check_data_place, check_destination
from amp_transpiler.files.staging import note, placing, staging_folder

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
    target = regular_place(destination)
    files = {file for file in named_files(program.model) if file.is_file()}
    if target.parent.samefile(source.parent):
        files = set()
    if files:
        check_data_place(destination, target)
    names = sorted(file.relative_to(source.parent) for file in files)
    missing = [name for name in names if not _is_there(source.parent / name, target, name)]
    with _staging(target) as folder:
        staged = {target: folder / "model"}
        written = _copy(source, staged[target], target)
        for number, name in enumerate(missing):
            staged[target.parent / name] = folder / str(number)
            written += _copy(source.parent / name, folder / str(number), target)
        _place(folder, staged, target, files_of(program))
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
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(staging_folder(destination.parent))
        except OSError as error:
            raise OutputError(f"{destination}: cannot write there: {error.strerror}") from error
        yield folder


def _copy(file: pathlib.Path, copy: pathlib.Path, destination: pathlib.Path) -> int:
    try:
        shutil.copyfile(file, copy)
        sync_file(copy)
        return copy.stat().st_size
    except OSError as error:
        raise _failure(destination, file, error) from error


def _place(
    folder: pathlib.Path,
    staged: Mapping[pathlib.Path, pathlib.Path],
    destination: pathlib.Path,
    protected: Collection[pathlib.Path],
) -> None:
    """Move every file to its place, the model last: until then the old one is whole. After a failure, move none.

    Args:
        folder: the staging folder.
        staged: the place of every file, and where it is now.
        destination: the place of the model.
        protected: files that are never removed.
    """
    place = destination.parent
    data = {target: file for target, file in staged.items() if target != destination}
    old = own_data(destination)
    try:
        with placing(place), contextlib.ExitStack() as undo:
            new = {target.relative_to(place).as_posix(): identity(file) for target, file in data.items()}
            if old or new:
                note(folder, old | new)  # a kill from here on leaves one of them without a model
            for target, file in data.items():
                _move(file, target, undo)
            staged[destination].replace(destination)
            undo.pop_all()
            sync_folder(place)
            remove_unused(place, old, protected)
    except LockBusy as error:
        raise OutputError(f"{destination}: another process is writing there; try again later") from error
    except OSError as error:
        raise _failure(destination, pathlib.Path(error.filename2 or error.filename or destination), error) from error


def _move(file: pathlib.Path, target: pathlib.Path, undo: contextlib.ExitStack) -> None:
    for folder in reversed([parent for parent in target.parents if not parent.exists()]):
        folder.mkdir()
        undo.callback(folder.rmdir)
    if target.exists():
        raise FileExistsError(errno.EEXIST, "another process has just written it", str(target))
    file.replace(target)
    undo.callback(target.unlink)
    sync_folder(target.parent)


def _failure(destination: pathlib.Path, file: pathlib.Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"{destination}: cannot be written: {file}: {reason}; nothing was left behind")
