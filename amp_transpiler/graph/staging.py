"""Hidden folders that files are written in before they are moved to their places, and what is left of dead ones.

Each holds a lock for as long as its process lives. So the next writer tells the folders of dead processes, and removes
them. Their files outside the folder are noted in it first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator

from amp_transpiler.graph.file_lock import NO_LOCK, open_locked, unlock

__all__ = ["note", "staging_folder"]

logger = logging.getLogger(__name__)

_PREFIX = ".amp-transpiler-"
_LOCK, _NOTE = "lock", "placed"


@contextlib.contextmanager
def staging_folder(
    place: pathlib.Path, sweep: Callable[[pathlib.Path, set[str]], None] | None = None
) -> Iterator[pathlib.Path]:
    """Provide a hidden folder in `place`, on the same disk, and remove it in the end. Those of dead processes go first.

    Args:
        place: the folder that the files are for.
        sweep: called with `place` and the names of files there that a dead process noted.

    Raises:
        OSError: the folder cannot be made.
    """
    _sweep(place, sweep)
    folder, handle = _make(place)
    try:
        yield folder
    finally:
        _remove(folder, handle)


def note(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Note in a staging folder which files outside it may be of no use if the process dies from now on."""
    with (folder / _NOTE).open("w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(sorted(names), file)
        file.flush()
        os.fsync(file.fileno())


def _make(place: pathlib.Path) -> tuple[pathlib.Path, int]:
    while True:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        try:
            handle = open_locked(folder / _LOCK)
        except FileNotFoundError:  # another process took the new folder for a dead one's
            continue
        if handle is not None:
            return folder, handle


def _sweep(place: pathlib.Path, collect: Callable[[pathlib.Path, set[str]], None] | None) -> None:
    """Remove the staging folders of dead processes of this user."""
    for folder in _staging_folders(place):
        try:
            handle = open_locked(folder / _LOCK)
        except OSError:
            continue  # it has just been removed, or may not be
        if handle in {None, NO_LOCK}:
            continue
        try:
            if collect is not None and (names := _noted(folder)):
                collect(place, names)
        finally:
            _remove(folder, handle)
        logger.info("%s was left by a process that died: removed", folder)


def _staging_folders(place: pathlib.Path) -> list[pathlib.Path]:
    try:
        with os.scandir(place) as entries:
            found = [entry for entry in entries if entry.name.startswith(_PREFIX)]
            return [pathlib.Path(entry.path) for entry in found if _is_own_folder(entry)]
    except OSError:
        return []


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    if not entry.is_dir(follow_symlinks=False):
        return False
    return os.name == "nt" or entry.stat(follow_symlinks=False).st_uid == os.geteuid()


def _noted(folder: pathlib.Path) -> set[str]:
    """Return the names that were noted in a folder, none if the process died while it noted them."""
    try:
        names = json.loads((folder / _NOTE).read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError):
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


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
