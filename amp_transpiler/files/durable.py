"""Files that are written whole or not at all, and that survive a power failure once they are in place."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator
from typing import BinaryIO

from amp_transpiler.errors import OutputError
from amp_transpiler.files.data_files import model_of_weights
from amp_transpiler.files.staging import staging_folder

__all__ = ["regular_place", "replacing", "sync_file", "sync_folder", "write_file"]

_SYSTEM_FOLDERS = tuple(map(pathlib.Path, ("/dev", "/proc", "/sys")))  # what they hold are no files of data
_MEMORY = pathlib.Path("/dev/shm")  # noqa: S108 - except here, which is an ordinary folder in memory


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file. If it fails, what was there before is unchanged. A link stays, the file that it names is replaced.

    Args:
        path: the file, in an existing folder; a device or a pipe is written into.
        data: its new content.

    Raises:
        OutputError: the file cannot be written, or the disk is full.
    """
    place = pathlib.Path(path)
    if _is_device(place):  # no finished file can replace it
        try:
            place.write_bytes(data)
        except OSError as error:
            raise _failure(place, error) from error
        return
    with replacing(place) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` once all of it is on the disk. It is deleted if anything fails.

    Raises:
        OutputError: the file cannot be written, or the disk is full; or what is there are weights of a model.
    """
    target = regular_place(path)
    if model := model_of_weights(target):
        raise OutputError(f"{path}: holds weights of {model}; choose another output")
    try:
        with staging_folder(target.parent) as folder:
            staged = folder / "file"
            with staged.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            staged.replace(target)
            sync_folder(target.parent)
    except OSError as error:
        raise _failure(path, error) from error


def regular_place(path: pathlib.Path) -> pathlib.Path:
    """Return the file that `path` names once links are resolved; it need not exist.

    Raises:
        OutputError: no file can be written there: a folder, a device, a name that is too long or empty.
    """
    try:
        place = pathlib.Path(os.path.realpath(path))
        fault = _fault(path, place)
    except (OSError, ValueError) as error:  # a name too long, or with a null character
        raise _failure(path, error) from error
    if fault:
        raise OutputError(f"{path}: {fault}")
    return place


def _fault(path: pathlib.Path, place: pathlib.Path) -> str:
    """Return why no file can be written to `place`, which `path` leads to, or an empty string."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        place.lstat()  # raises OSError for a name that is too long
    if _is_system(path) or _is_system(place):
        return "is no place for a regular file, it belongs to the system; choose another output"
    if place.is_symlink():
        return "is a symbolic link that leads nowhere; choose another output"
    if not path.name or place.is_dir():
        return "is a folder, not a regular file; give the name of a file"
    if place.exists() and not place.is_file():
        return "exists and is not a regular file; choose another output"
    return ""


def sync_file(path: pathlib.Path) -> None:
    """Make the content of a file survive a power failure."""
    _sync(path, os.O_RDWR)


def sync_folder(folder: pathlib.Path) -> None:
    """Make new names in a folder survive a power failure, on systems that can flush a folder."""
    if hasattr(os, "O_DIRECTORY"):
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: pathlib.Path, mode: int) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:  # file systems that cannot
            raise
    finally:
        os.close(handle)


def _is_device(path: pathlib.Path) -> bool:
    try:
        return _is_system(path) or (path.exists() and not path.is_file() and not path.is_dir())
    except (OSError, ValueError):
        return False  # `replacing` says what is wrong


def _is_system(path: pathlib.Path) -> bool:
    place = pathlib.Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow /dev/stdout
    return any(place.is_relative_to(folder) for folder in _SYSTEM_FOLDERS) and not place.is_relative_to(_MEMORY)


def _failure(path: pathlib.Path, error: OSError | ValueError) -> OutputError:
    reason = getattr(error, "strerror", None) or error
    return OutputError(f"{path}: cannot be written: {reason}; what was there is kept")
