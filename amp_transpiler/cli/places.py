"""Names of files on the command line: standard streams, and names that no file can have."""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Iterable, Mapping

from amp_transpiler.errors import OptionError, OutputError

__all__ = ["STREAM", "check_name", "check_reports", "is_standard_input"]

STREAM = "-"
"""Stands for standard input among the models, and for standard output behind `-o` and `--json`."""

_DESCRIPTORS = ("/dev/fd", "/proc/self/fd")

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM)  # other code says what is wrong there


def is_standard_input(model: str | os.PathLike[str]) -> bool:
    """Whether a model is read from standard input or another open descriptor, as `<(command)` gives it."""
    path = pathlib.PurePosixPath(model)
    return str(path) in {STREAM, "/dev/stdin"} or (str(path.parent) in _DESCRIPTORS and path.name.isdecimal())


def check_name(option: str, name: str) -> None:
    """Raise OptionError if no file can have this name, or if ONNX Runtime could not open it."""
    if not name:
        raise OptionError(f"{option} '': the name is empty; give the name of a file")
    try:
        os.fsencode(name).decode("utf-8")
    except UnicodeError as error:
        raise OptionError(f"{option} {name}: the name is not UTF-8; rename the file or its folder") from error
    try:
        os.lstat(name)
    except ValueError as error:
        raise OptionError(f"{option} {name}: no file can have this name: {error}") from error
    except OSError as error:
        if error.errno not in _ABSENT:
            shown = name if len(name) <= 100 else f"{name[:60]}...{name[-30:]}"
            raise OptionError(f"{option} {shown}: no file can have this name: {error.strerror}") from error


def check_reports(reports: Mapping[str, str | None], models: Iterable[str], taken: Mapping[pathlib.Path, str]) -> None:
    """Raise OutputError if a report would replace a file of a model, or another one that is written, or has no folder.

    Args:
        reports: option -> the file that it names, or None.
        models: paths of the models that are read.
        taken: further files that are written, links resolved -> what names them.
    """
    from amp_transpiler.files.occupied import files_of  # `--help` needs no files

    taken = {**taken, **{file: model for model in models for file in files_of(pathlib.Path(model))}}
    for option, text in reports.items():
        if text is None or text == STREAM:
            continue
        check_name(option, text)
        place = pathlib.Path(text).resolve()
        if place in taken:
            raise OutputError(f"{option} {text}: is also {taken[place]}; give the report a file of its own")
        if place.is_dir() or not place.parent.is_dir():
            raise OutputError(f"{option} {text}: cannot be written there; give a file in a folder that exists")
        taken[place] = text
