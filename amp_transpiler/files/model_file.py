"""Says what is wrong with the file of a model before anything reads it, or imports what would."""

from __future__ import annotations

import os
import pathlib

from amp_transpiler.errors import ModelError

__all__ = ["LFS_REMEDY", "check_model_file", "is_lfs_pointer"]

LFS_REMEDY = "run git lfs pull"

# A clone has a pointer of Git LFS in place of a large file until `git lfs pull` brings it.
_FIRST_LINE = b"version https://git-lfs"


def check_model_file(path: pathlib.Path) -> None:
    """Raise ModelError if there is no file with something in it that may be a model."""
    if not path.exists():
        raise ModelError(f"{path}: no such file")
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; give the .onnx file in it")
    if not path.is_file():
        raise ModelError(f"{path}: not a regular file")
    if path.stat().st_size == 0:
        raise ModelError(f"{path}: the file is empty")
    if is_lfs_pointer(path):
        raise ModelError(f"{path}: is a pointer of Git LFS, not the model; {LFS_REMEDY}")


def is_lfs_pointer(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a pointer of Git LFS. Of a file that cannot be read, whoever reads it says why."""
    try:
        with pathlib.Path(path).open("rb") as file:
            return file.read(len(_FIRST_LINE)) == _FIRST_LINE
    except OSError:
        return False
