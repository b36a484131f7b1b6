"""Hidden folders that files are written in before they are moved to their places, and what is left of dead ones.

Each holds a lock for as long as its process lives. So the next writer tells the folders of dead processes, and removes
them. A process notes in its folder which files of weights outside it are of no use if it dies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping

from amp_transpiler.files.data_files import Identity, remove_unused
from amp_transpiler.files.file_lock import NO_LOCK, LockBusy, hold, open_locked, unlock

__all__ = ["note", "placing", "staging_folder", "sweep", "temporary_folder"]

logger = logging.getLogger(__name__)

_PREFIX = ".amp-transpiler-staging-"
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")  # as mkdtemp makes them
# The lock, what else to remove, and the folder of the new files. A folder that holds anything else is somebody's.
_LOCK, _NOTE, _NEW = "lock", "note", "new"
_PLACE_LOCK = ".amp-transpiler.lock"  # held while files are moved into a folder, which takes milliseconds
_WAIT = 30.0  # seconds


@contextlib.contextmanager
def staging_folder(place: pathlib.Path) -> Iterator[pathlib.Path]:
    """Provide a hidden folder in `place`, on the same disk, and remove it in the end. Those of dead processes go first.

    Raises:
        OSError: the folder cannot be made.
    """
    sweep(place)
    folder, handle = _make(place)
    try:
        yield folder / _NEW
    finally:
        _remove(folder, handle)


@contextlib.contextmanager
def temporary_folder() -> Iterator[pathlib.Path]:
    """Provide a folder among the system's temporary files. What dead processes left there goes first.

    Raises:
        OSError: the folder cannot be made.
    """
    with staging_folder(pathlib.Path(tempfile.gettempdir())) as folder:
        yield folder


@contextlib.contextmanager
def placing(place: pathlib.Path) -> Iterator[None]:
    """Let no other process move files into a folder meanwhile.

    Raises:
        LockBusy: another process did so for half a minute.
        OSError: nothing can be written there.
    """
    with hold(place / _PLACE_LOCK, _WAIT):
        yield


def note(folder: pathlib.Path, files: Mapping[str, Identity]) -> None:
    """Note in a staging folder which files outside it are of no use, if the process dies and no model names them."""
    with (folder.parent / _NOTE).open("w", encoding="utf-8") as file:
        json.dump(files, file)
        file.flush()
        os.fsync(file.fileno())


def _make(place: pathlib.Path) -> tuple[pathlib.Path, int]:
    while True:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        try:
            handle = open_locked(folder / _LOCK)
            if handle is not None:
                (folder / _NEW).mkdir()
                return folder, handle
        except FileNotFoundError:  # another process took the new folder for a dead one's
            continue
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def sweep(place: pathlib.Path) -> None:
    """Remove the staging folders of dead processes of this user from a folder, and what they noted."""
    for folder in _staging_folders(place):
        try:
            handle = open_locked(folder / _LOCK)
        except OSError:
            continue  # it has just been removed, or may not be
        if handle is None or handle == NO_LOCK:
            continue
        try:
            if files := _noted(folder):
                with hold(place / _PLACE_LOCK, 0.0):
                    remove_unused(place, files)
        except (LockBusy, OSError):
            unlock(handle)
        else:
            _remove(folder, handle)
            logger.info("%s was left by a process that died: removed", folder)


def _staging_folders(place: pathlib.Path) -> list[pathlib.Path]:
    try:
        with os.scandir(place) as entries:
            matching = [entry for entry in entries if _NAME.fullmatch(entry.name)]
            return [pathlib.Path(entry.path) for entry in matching if _is_own_folder(entry)]
    except OSError:
        return []


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    """Whether a folder is this user's, and holds what staging folders hold and nothing else."""
    if not entry.is_dir(follow_symlinks=False):
        return False
    if os.name != "nt" and entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return False
    kinds = {_LOCK: stat.S_ISREG, _NOTE: stat.S_ISREG, _NEW: stat.S_ISDIR}
    with os.scandir(entry.path) as held:
        members = {member.name: member.stat(follow_symlinks=False).st_mode for member in held}
    if not members:
        with contextlib.suppress(OSError):  # a process died before it made the lock, or is about to make it
            pathlib.Path(entry.path).rmdir()
        return False
    return _LOCK in members and all(name in kinds and kinds[name](mode) for name, mode in members.items())


def _noted(folder: pathlib.Path) -> dict[str, Identity]:
    """Return the files that were noted in a folder, none if the process died while it noted them."""
    try:
        files = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        return {str(name): (int(a), int(b), int(c)) for name, (a, b, c) in files.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remove(folder: pathlib.Path, handle: int) -> None:
    """Remove a staging folder, its lock last: what a kill in between leaves is found by the next sweep."""
    with contextlib.suppress(OSError):  # the folder may be gone
        for entry in folder.iterdir():
            if entry.name != _LOCK:
                _delete(entry)
    if os.name == "nt" and handle != NO_LOCK:  # no open file can be deleted there
        unlock(handle)
        shutil.rmtree(folder, ignore_errors=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    if handle != NO_LOCK:
        unlock(handle)


def _delete(entry: pathlib.Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            entry.unlink()
