"""Pointers of Git LFS: what a clone holds in place of a large file until `git lfs pull` brings it."""

from __future__ import annotations

import os
import pathlib

__all__ = ["REMEDY", "is_lfs_pointer"]

REMEDY = "run git lfs pull"

_FIRST_LINE = b"version https://git-lfs"


def is_lfs_pointer(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a pointer. Of a file that cannot be read, whoever reads it says why."""
    try:
        with pathlib.Path(path).open("rb") as file:
            return file.read(len(_FIRST_LINE)) == _FIRST_LINE
    except OSError:
        return False
