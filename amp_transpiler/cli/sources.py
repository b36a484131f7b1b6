"""Finds the models to convert: files, the models in folders, and standard input."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence

from amp_transpiler.cli.places import STREAM, check_name, is_standard_input
from amp_transpiler.errors import ModelError, OptionError
from amp_transpiler.phrases import first_few

__all__ = ["STANDARD_INPUT", "Sources", "find_models", "is_result", "onnx_files", "spooled"]

_logger = logging.getLogger(__name__)

STANDARD_INPUT = "standard input"

_FLOAT32 = ".fp32.onnx"
_RESULTS = (".fp16.onnx", ".bf16.onnx", _FLOAT32)  # as the command names its results


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """The models of one call.

    Attributes:
        models: the files, each as it was named; a folder's in the order of their names.
        are_many: whether the call is for many models: several were named, or a folder.
        folders: a model of a folder that was named -> that folder.
    """

    models: tuple[pathlib.Path, ...]
    are_many: bool
    folders: Mapping[pathlib.Path, pathlib.Path] = dataclasses.field(default_factory=dict)

    @property
    def are_there(self) -> bool:
        """Whether there is anything to read; a name may be wrong."""
        return any(is_standard_input(model) or model.is_file() for model in self.models)

    def inside(self, model: pathlib.Path) -> pathlib.Path:
        """Return the path of a model in the folder that was named; of one that was named itself, its name."""
        folder = self.folders.get(model)
        return pathlib.Path(model.name) if folder is None else model.relative_to(folder)


def find_models(named: Sequence[str], *, recursive: bool = False) -> Sources:
    """Return the models that the command line names.

    A folder stands for the `.onnx` files directly in it, except hidden ones and those that are named like results
    (`*.fp16.onnx`, `*.bf16.onnx`, `*.fp32.onnx`).

    Args:
        named: the names.
        recursive: a folder stands for those in the folders inside it, too, except hidden ones.

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
    folders: dict[pathlib.Path, pathlib.Path] = {}
    for path in map(pathlib.Path, named):
        models_here = _models_in(path, recursive=recursive) if path.is_dir() else [path]
        folders |= dict.fromkeys(models_here, path) if path.is_dir() else {}
        models += models_here
    return Sources(tuple(models), are_many=len(models) > 1 or any(map(os.path.isdir, named)), folders=folders)


def _models_in(folder: pathlib.Path, *, recursive: bool) -> list[pathlib.Path]:
    try:
        onnx_models = list(onnx_files(folder, recursive=recursive))
    except OSError as error:
        raise OptionError(f"{error.filename}: this folder cannot be read: {error.strerror}") from error
    files = [file for file in onnx_models if not is_result(file.name)]
    if len(files) < len(onnx_models):
        _logger.info("%s: %d results of former conversions are skipped", folder, len(onnx_models) - len(files))
    if not files:
        why = f"only results such as {onnx_models[0].name}; name them one by one" if onnx_models else "no .onnx file"
        inside = "nor have the folders in it" if recursive else "folders inside it are searched with --recursive"
        raise OptionError(f"{folder}: this folder has {why}; {inside}")
    if orphans := _without_source(onnx_models):
        names = first_few([str(file) for file in orphans])
        _logger.warning("named like results, and not taken: %s; name a float32 model itself to convert it", names)
    return files


def _without_source(onnx_models: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Return what is named as results that stay float32, has no source beside it, and yet lies among sources."""
    models, folders = set(onnx_models), {file.parent for file in onnx_models if not is_result(file.name)}
    results = [file for file in onnx_models if file.name.lower().endswith(_FLOAT32) and file.parent in folders]
    return [file for file in results if file.with_name(f"{file.name[: -len(_FLOAT32)]}.onnx") not in models]


def onnx_files(folder: pathlib.Path, *, recursive: bool) -> Iterator[pathlib.Path]:
    """Yield the `.onnx` files in a folder, hidden ones excepted, by name; each folder's before those of its folders.

    Args:
        folder: the folder.
        recursive: look into the folders inside it, too, except hidden ones; links to folders are not followed.

    Raises:
        OSError: a folder cannot be read.
    """
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if recursive else []
        for name in sorted(files):
            if name.lower().endswith(".onnx") and not name.startswith("."):
                yield pathlib.Path(parent) / name


def is_result(name: str) -> bool:
    """Whether a file is named as the command names its results."""
    return name.lower().endswith(_RESULTS)


def _raise(error: OSError) -> None:
    raise error


@contextlib.contextmanager
def spooled(model: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the file of a model: standard input is read to a temporary one.

    Raises:
        ModelError: standard input is a terminal, closed or empty.
    """
    if not is_standard_input(model):
        yield model
        return
    from amp_transpiler.files.staging import temporary_folder

    with temporary_folder() as folder:
        file = folder / f"{STANDARD_INPUT}.onnx"
        _read(model, file)
        yield file


def _read(model: pathlib.Path, file: pathlib.Path) -> None:
    from amp_transpiler.files.occupied import files_of

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
