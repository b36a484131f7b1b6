"""Locks between processes. The lock is a file that exists only while somebody holds it or waits for it."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import stat
import sys
import time
from collections.abc import Iterator

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["NO_LOCK", "LockBusy", "hold", "open_locked", "unlock"]

NO_LOCK = -1  # instead of an open file, where a lock is impossible

# Another user's may be readable only, and opening a pipe waits for its writer.
_MODE = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_POLL_SECONDS = 0.02
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # by some network file systems


class LockBusy(Exception):
    """Another process or thread holds the lock."""


@contextlib.contextmanager
def hold(path: pathlib.Path, seconds: float) -> Iterator[None]:
    """Hold the lock `path`: create the file if need be, wait for others, and delete it in the end, if it is empty.

    Where a lock is impossible, because the file system has none, the file is another user's, or something else than a
    regular file has the name, nothing is held: every single step of writing is atomic all the same.

    Args:
        path: the lock's file.
        seconds: how long to wait.

    Raises:
        LockBusy: it was held all the time.
        OSError: the file cannot be created.
    """
    deadline = time.monotonic() + seconds
    while (handle := open_locked(path)) is None:
        if time.monotonic() >= deadline:
            raise LockBusy
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        if handle != NO_LOCK:
            with contextlib.suppress(OSError):  # Windows deletes no open file: its next holder will
                if os.fstat(handle).st_size == 0:  # else it is a file of somebody's
                    path.unlink()
            unlock(handle)


def open_locked(path: pathlib.Path) -> int | None:
    """Create or open the file `path` and lock it.

    Returns:
        The open file for `unlock`; None if another holds the lock; NO_LOCK if a lock is impossible, also since
        something else than a regular file has the name.

    Raises:
        OSError: the file cannot be created.
    """
    try:
        handle = os.open(path, _MODE | os.O_CREAT, 0o644)
    except OSError as error:
        if isinstance(error, PermissionError) and path.exists():
            return NO_LOCK
        if _is_other(path):  # a folder, a link, a socket
            return NO_LOCK
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # a pipe
        os.close(handle)
        return NO_LOCK
    try:
        if _try_lock(handle):
            if _is_still(path, handle):
                return handle
            unlock(handle)
            return None
    except OSError as error:
        os.close(handle)
        if error.errno not in _UNSUPPORTED:
            raise
        with contextlib.suppress(OSError):
            path.unlink()
        return NO_LOCK
    os.close(handle)
    return None


def unlock(handle: int) -> None:
    """Unlock and close an open file. A forked child may have inherited it, so closing it would not unlock it."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    """Lock an open file, unless another opening of it is locked. A lock ends with its process."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN, errno.EDEADLK}:
            return False
        raise
    return True


def _is_other(path: pathlib.Path) -> bool:
    """Whether something else than a regular file has this name."""
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _is_still(path: pathlib.Path, handle: int) -> bool:
    """Whether `path` still names the open file: who held the lock before may have deleted it."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False
