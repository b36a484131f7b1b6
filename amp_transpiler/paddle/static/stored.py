"""Opens files of named arrays by path, tells their formats apart by content, and reads them on demand."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from amp_transpiler.files.staging import sweep
from amp_transpiler.paddle.static.pickled import PARAMETERS_SUFFIX, STATE_SUFFIX, looks_pickled, read_pickled
from amp_transpiler.paddle.static.tensor_file import read_header, read_tensors, with_suffix

__all__ = ["Stored", "open_stored"]


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """Describes a file of named arrays.

    Attributes:
        file: the file.
        found: name -> element type and shape.
        metadata: strings that the file carries.
        read: yields the arrays of some names.
        is_paddles: whether Paddle wrote it, or could have.
    """

    file: pathlib.Path
    found: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
    metadata: Mapping[str, str]
    read: Callable[[Iterable[str]], Iterator[tuple[str, np.ndarray]]]
    is_paddles: bool = False


def open_stored(path: str | os.PathLike[str], *, structured: bool = False) -> Stored:
    """Return what a file holds, and remove what a killed save left beside it.

    Args:
        path: the file, or its name without `.safetensors` or `.pdparams`. Beside `.pdparams`, `.pdopt` is read too.
            Where there is neither, a safetensors file of the name before Paddle's ending will do. Or a folder of
            safetensors files, as `save_persistables` writes them.
        structured: of a Layer's `state_dict` in Paddle's format, take the names of attributes, and no `.pdopt`.

    Raises:
        InputError: there is no such file, it is damaged, or it names something else than arrays.
    """
    location = pathlib.Path(path)
    file = next((candidate for candidate in _candidates(location) if candidate.is_file()), with_suffix(location))
    if location.is_dir() and not file.is_file() and (files := sorted(location.glob("*.safetensors"))):
        return _folder(location, files)
    sweep(file.parent)
    if not looks_pickled(file):
        entries, metadata = read_header(file)
        return Stored(file, entries, metadata, lambda names: read_tensors(file, names))
    arrays = read_pickled(file, structured=structured)
    state = file.with_suffix(STATE_SUFFIX)
    if file.suffix == PARAMETERS_SUFFIX and not structured and state.is_file():
        arrays = {**read_pickled(state), **arrays}
    entries = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    return Stored(file, entries, {}, lambda names: ((name, arrays[name]) for name in names), is_paddles=True)


def _folder(folder: pathlib.Path, files: Sequence[pathlib.Path]) -> Stored:
    sweep(folder)
    held = {name: (file, fact) for file in files for name, fact in read_header(file)[0].items()}

    def read(names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            yield from read_tensors(held[name][0], [name])

    return Stored(folder, {name: fact for name, (_, fact) in held.items()}, {}, read)


def _candidates(path: pathlib.Path) -> list[pathlib.Path]:
    candidates = [with_suffix(path), path.with_name(path.name + PARAMETERS_SUFFIX), path]
    if path.suffix in (PARAMETERS_SUFFIX, STATE_SUFFIX, ".pdmodel"):  # which Paddle's `save` adds
        candidates.append(with_suffix(path.with_suffix("")))
    return candidates
