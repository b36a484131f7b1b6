"""Folders in the user's cache: where they are, how large they may become, and records of bytes by a digest.

The environment variable AMP_TRANSPILER_CACHE names another folder, or switches the cache off (`0` or `off`);
AMP_TRANSPILER_CACHE_MB is the most that a folder of it may take, 4096 unless set.

An entry is written beside its place and moved there when it is whole, so that a kill or a second process leaves either
nothing or a whole file. Entries that were not used for the longest time go when their folder becomes too large. The
cache is a help, not a need: what cannot be read or written is logged, and done without. What another user owns, root
apart, is neither read nor written: a session would run the graph that somebody else put there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib

from amp_transpiler.errors import OutputError
from amp_transpiler.files.staging import staging_folder

__all__ = ["FOLDER_VARIABLE", "SIZE_VARIABLE", "Records", "base_folder", "is_own", "keep_within_bounds"]

_logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "AMP_TRANSPILER_CACHE"
SIZE_VARIABLE = "AMP_TRANSPILER_CACHE_MB"

_OFF = frozenset({"0", "off", "no", "false"})
_DEFAULT_MEGABYTES = 4096
_told: set[pathlib.Path] = set()  # what belongs to another user


def base_folder() -> tuple[pathlib.Path, bool] | None:
    """Return the user's cache folder, which need not exist, and whether it was named.

    None if it is switched off, if this user has no home, or if the folder is another user's, which is logged once.
    """
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    if chosen.lower() in _OFF:
        return None
    if chosen:
        return (pathlib.Path(chosen), True) if is_own(pathlib.Path(chosen)) else None
    home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else "")
    try:
        base = pathlib.Path(home) if home and pathlib.Path(home).is_absolute() else pathlib.Path.home() / ".cache"
    except RuntimeError:  # neither HOME nor an entry for this user, as in many containers
        return None
    folder = base / "amp_transpiler"
    return (folder, False) if is_own(folder) else None


def is_own(path: pathlib.Path) -> bool:
    """Whether a folder or entry of the cache is this user's, root's, or absent; one of another user is logged once."""
    if not hasattr(os, "geteuid"):
        return True
    try:
        owner = path.stat().st_uid
    except OSError:  # not there; or out of reach, which reading will tell
        return True
    if owner in (os.geteuid(), 0):
        return True
    if path not in _told:
        _told.add(path)
        _logger.warning(
            "%s belongs to another user (%d): it is not used as a cache; %s names another folder",
            path,
            owner,
            FOLDER_VARIABLE,
        )
    return False


def keep_within_bounds(folder: pathlib.Path, suffix: str, keep: pathlib.Path) -> None:
    """Remove the entries that were not used for the longest time, until the folder is small enough.

    Args:
        folder: the folder.
        suffix: by which entries are known; other files stay.
        keep: the entry that was written last. It goes only if it is larger than the folder may be.
    """
    entries: list[tuple[float, int, pathlib.Path]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as folder_entries:
        for entry in folder_entries:
            with contextlib.suppress(OSError):  # another process has just removed it
                if entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                    state = entry.stat()
                    entries.append((state.st_mtime, state.st_size, pathlib.Path(entry.path)))
    room = _room()
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= room:
            return
        if path != keep or size > room:
            with contextlib.suppress(OSError):  # in use on Windows
                path.unlink()
            total -= size


def _room() -> int:
    """Return the bytes that a folder may take."""
    setting = os.environ.get(SIZE_VARIABLE, "")
    if setting.isdigit():
        return int(setting) << 20
    if setting:
        _logger.warning("%s=%s is no number of megabytes: %d is used", SIZE_VARIABLE, setting, _DEFAULT_MEGABYTES)
    return _DEFAULT_MEGABYTES << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Records:
    """Records of bytes, each a file named by a digest of all that it depends on.

    Attributes:
        kind: the name of the folder.
    """

    kind: str

    @property
    def folder(self) -> pathlib.Path | None:
        """The folder, which need not exist; None if the cache is switched off or another user's."""
        base = base_folder()
        folder = None if base is None else base[0] / self.kind
        return folder if folder is None or is_own(folder) else None

    def get(self, digest: str) -> bytes | None:
        """Return a record; None if it is not there."""
        if (folder := self.folder) is None:
            return None
        place = self._place(folder, digest)
        if not is_own(place):
            return None
        try:
            data = place.read_bytes()
        except OSError:  # most of the time there is none
            return None
        with contextlib.suppress(OSError):  # read-only for this user
            os.utime(place)
        return data

    def put(self, digest: str, data: bytes) -> None:
        """Keep a record, and remove old ones where there are too many."""
        if (folder := self.folder) is None:
            return
        place = self._place(folder, digest)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with staging_folder(folder) as staging:
                written = staging / place.name
                written.write_bytes(data)
                written.replace(place)
        except (OSError, OutputError) as error:  # no room, no permission
            _logger.warning("nothing is kept in %s: %s", folder, error)
            return
        keep_within_bounds(folder, place.suffix, place)

    def _place(self, folder: pathlib.Path, digest: str) -> pathlib.Path:
        return folder / f"{digest}.{self.kind}"
