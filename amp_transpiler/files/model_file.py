"""Says what is wrong with the file of a model before anything reads it, or imports what would."""

from __future__ import annotations

import pathlib

from amp_transpiler.errors import ModelError
from amp_transpiler.files.git_lfs import REMEDY, is_lfs_pointer

__all__ = ["check_model_file"]


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
        raise ModelError(f"{path}: is a pointer of Git LFS, not the model; {REMEDY}")
