"""The models to convert: files, the models in folders, and standard input."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import shutil
import stat
from collections.abc import Iterator, Sequence

from amp_transpiler.cli.places import STREAM, check_name, is_standard_input
from amp_transpiler.errors import ModelError, OptionError

__all__ = ["STANDARD_INPUT", "Sources", "find_models", "spooled"]

_logger = logging.getLogger(__name__)

STANDARD_INPUT = "standard input"

_RESULTS = (".fp16.onnx", ".bf16.onnx", ".fp32.onnx")  # as the command names its results


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """The models of one call.

    Attributes:
        models: the files, each as it was named; a folder's in the order of their names.
        are_many: whether the call is for many models: several were named, or a folder.
    """

    models: tuple[pathlib.Path, ...]
    are_many: bool


def find_models(named: Sequence[str]) -> Sources:
    """Return the models that the command line names.

    A folder stands for the `.onnx` files directly in it, except hidden ones and those that are named like results
    (`*.fp16.onnx`, `*.bf16.onnx`, `*.fp32.onnx`).

    Raises:
        OptionError: a name is impossible, a folder has no model, or standard input is not the only model.
    """
    for name in named:
        check_name("MODEL", name)
    if any(map(is_standard_input, named)):
        if len(named) > 1:
            raise OptionError(f"{STREAM}: {STANDARD_INPUT} must be the only model; convert the others by themselves")
        return Sources((pathlib.Path(named[0]),), are_many=False)
    models: list[pathlib.Path] = []
    for path in map(pathlib.Path, named):
        models += _models_in(path) if path.is_dir() else [path]
    return Sources(tuple(models), are_many=len(models) > 1 or any(map(os.path.isdir, named)))


def _models_in(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise OptionError(f"{folder}: this folder cannot be read: {error.strerror}") from error
    found = [name for name in names if name.lower().endswith(".onnx") and not name.startswith(".")]
    models = [name for name in found if not name.lower().endswith(_RESULTS)]
    files = [folder / name for name in models if not (folder / name).is_dir()]
    if len(models) < len(found):
        _logger.info("%s: %d results of former conversions are skipped", folder, len(found) - len(models))
    if not files:
        why = f"only results such as {found[0]}; name them one by one" if found else "no .onnx file"
        raise OptionError(f"{folder}: this folder has {why}; folders inside it are not searched")
    return files


@contextlib.contextmanager
def spooled(model: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the file of a model: standard input is read to a temporary one.

    Raises:
        ModelError: standard input is a terminal, closed or empty.
    """
    if not is_standard_input(model):
        yield model
        return
    from amp_transpiler.graph.staging import temporary_folder

    with temporary_folder() as folder:
        file = folder / f"{STANDARD_INPUT}.onnx"
        _read(model, file)
        yield file


def _read(model: pathlib.Path, file: pathlib.Path) -> None:
    from amp_transpiler.graph.occupied import files_of

    descriptor = 0 if str(model) == STREAM else None
    try:
        with open(model if descriptor is None else descriptor, "rb", closefd=descriptor is None) as stream:
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):  # a terminal, or the null device where it was closed
                raise ModelError(f"{STANDARD_INPUT}: no model comes in; pipe one into the command")
            with file.open("wb") as copy:
                shutil.copyfileobj(stream, copy, 1 << 20)
    except OSError as error:
        raise ModelError(f"{STANDARD_INPUT}: cannot be read: {error.strerror or error}") from error
    if others := sorted(files_of(file) - {file.resolve()}):
        raise ModelError(
            f"{STANDARD_INPUT}: its weights are in another file, {others[0].name}, which cannot come with it; "
            "give the model by its name, beside that file"
        )
