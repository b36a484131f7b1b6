"""Files that are not flushed to the disk: no test takes the power away, and a flush waits for all that others write."""

from __future__ import annotations

import os

FLUSH = os.fsync


def install() -> None:
    """Let this process flush no file from now on; the tests of files do (tests/files/conftest.py)."""
    os.fsync = _look_at  # type: ignore[assignment]  # the package gives numbers only


def _look_at(handle: int) -> None:
    """Fail, as flushing does, for what is no open file."""
    os.fstat(handle)
