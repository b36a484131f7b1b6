"""Files that must not be written: those of the sources, and those that a result consists of."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

from amp_transpiler.files.data_files import is_data_name, locations
from amp_transpiler.files.external_data import external_files
from amp_transpiler.program.program import Program

__all__ = ["belongs_to_result", "files_of", "is_same_file", "occupied", "same_file"]


def files_of(model: Program | str | os.PathLike[str]) -> set[pathlib.Path]:
    """Return every file that a model consists of: its own and those of its external weights, links resolved.

    Args:
        model: a program, or the path of a model. Of a path that is no readable model, the file itself is returned.
    """
    if isinstance(model, Program):
        files = external_files(model.model) | ({model.source} if model.source is not None else set())
    else:
        path = pathlib.Path(model)
        files = {path} | {path.parent / location for location in locations(path)}
    return {_resolved(file) for file in files}


def occupied(path: str | os.PathLike[str], programs: Iterable[Program | str | os.PathLike[str]]) -> pathlib.Path | None:
    """Return the file of one of these models that `path` also names, by whatever link, or None.

    Args:
        path: a file to be written.
        programs: the sources and older results, as programs or paths. Paths are read only if `path` exists.
    """
    place = _resolved(path)
    exists = os.path.lexists(place)
    for program in programs:
        files = files_of(program) if exists or isinstance(program, Program) else {_resolved(program)}
        if taken := same_file(place, files):
            return taken
    return None


def same_file(path: pathlib.Path, files: Iterable[pathlib.Path]) -> pathlib.Path | None:
    """Return the first of `files`, all resolved, that the resolved `path` also names, or None."""
    return next((file for file in sorted(files) if is_same_file(path, file)), None)


def belongs_to_result(path: str | os.PathLike[str], destination: str | os.PathLike[str]) -> bool:
    """Whether `path` is a result's model, or would be one of its files of weights."""
    place, result = _resolved(path), _resolved(destination)
    if is_same_file(place, result):
        return True
    return place.parent == result.parent and is_data_name(place.name, result.name)


def is_same_file(path: pathlib.Path, other: pathlib.Path) -> bool:
    """Whether two resolved paths are equal or name the same existing file: hard links, names of another case."""
    if path == other:
        return True
    try:
        return path.samefile(other)
    except OSError:
        return False  # one of them does not exist


def _resolved(path: str | os.PathLike[str]) -> pathlib.Path:
    return pathlib.Path(os.path.realpath(path))
