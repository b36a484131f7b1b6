"""Finds the samples of each model: one place for all, a place by the model's name, a manifest, or files next to it."""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import json
import logging
import os
import pathlib
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from amp_transpiler.cli.options import Options
from amp_transpiler.cli.places import is_standard_input
from amp_transpiler.cli.sources import Sources, is_result, onnx_files
from amp_transpiler.errors import InputError, OptionError, innermost_text
from amp_transpiler.phrases import counted

__all__ = ["MADE_UP", "Samples", "is_template", "samples_of"]

_logger = logging.getLogger(__name__)

MADE_UP = "made-up"
"""`--inputs made-up`: inputs made up from the model's shapes, whatever lies beside it."""

_FIELD = re.compile(r"\{(\w+)\}")
_FIELDS: dict[str, Callable[[pathlib.Path, Sources], str]] = {
    "stem": lambda model, sources: _without_ending(pathlib.Path(model.name)),  # noqa: ARG005  one signature for all
    "path": lambda model, sources: _without_ending(sources.inside(model)),
    "folder": lambda model, sources: str(model.parent),  # noqa: ARG005  one signature for all
}
_READERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}
_FIRST_DATA_SET = "test_data_set_0"


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one model.

    Attributes:
        place: a file or folder; None for made-up ones.
        found: they lie beside the model; nobody named them.
    """

    place: str | None = None
    found: bool = False


def samples_of(sources: Sources, options: Options) -> dict[pathlib.Path, Samples]:
    """Return the samples of each model.

    Raises:
        InputError: a manifest cannot be read, or a place has a field that does not exist.
    """
    named = options.inputs
    if named is not None and pathlib.Path(named).suffix.lower() in _READERS:
        rows = _read_manifest(pathlib.Path(named))
        rows_and_places = {model: _by_manifest(model, rows, pathlib.Path(named), sources) for model in sources.models}
        _warn_of_unused(rows, {row for row, _ in rows_and_places.values()}, named)
        places = {model: place for model, (_, place) in rows_and_places.items()}
    else:
        places = {model: named and _filled(named, model, sources) for model in sources.models}
    runs = (options.conversion.verify or options.benchmark) and options.copied_by is None
    found_for = _beside if runs else _none
    return {model: found_for(model) if place is None else _named(place) for model, place in places.items()}


def _named(place: str) -> Samples:
    return Samples() if place == MADE_UP else Samples(place)


def _none(model: pathlib.Path) -> Samples:  # noqa: ARG001  stands in for `_beside`
    return Samples()


def is_template(place: str) -> bool:
    """Whether a place depends on the model: `samples/{stem}.npz`."""
    return any(field in _FIELDS for field in _FIELD.findall(place))


def _filled(place: str, model: pathlib.Path, sources: Sources) -> str:
    """Return a place with its fields filled in for a model."""
    if unknown := [field for field in _FIELD.findall(place) if field not in _FIELDS]:
        if is_template(place) or not os.path.lexists(place):
            known = ", ".join(f"{{{field}}}" for field in _FIELDS)
            raise OptionError(f"--inputs {place}: there is no field {{{unknown[0]}}}; expected {known}")
        return place
    return _FIELD.sub(lambda field: _FIELDS[field[1]](model, sources), place)


def _without_ending(model: pathlib.Path) -> str:
    if is_standard_input(model):
        return "stdin"
    return str(model.with_suffix("")) if model.suffix.lower() == ".onnx" else str(model)


# ---- beside the model ----


def _beside(model: pathlib.Path) -> Samples:
    """Return the samples that lie beside a model, named after it, or in the layout of ONNX's model zoo.

    A `test_data_set_0` belongs to the model that is alone in its folder, results of conversions aside.
    """
    if is_standard_input(model):
        return Samples()
    named = model.with_name(f"{_without_ending(pathlib.Path(model.name))}.inputs.npz")
    if named.is_file():
        return Samples(str(named), found=True)
    data_set = model.parent / _FIRST_DATA_SET
    if (data_set / "input_0.pb").is_file():
        others = [file for file in onnx_files(model.parent, recursive=False) if not is_result(file.name)]
        if len(others) == 1:
            return Samples(str(data_set), found=True)
        _logger.info("%s: there are %d models beside it, so it is nobody's samples", data_set, len(others))
    return Samples()


# ---- a manifest ----


def _read_manifest(path: pathlib.Path) -> dict[str, str]:
    """Return the rows of a manifest: a model or a pattern -> a place, both relative to its folder.

    Raises:
        InputError: it cannot be read, or is no table of texts.
    """
    try:
        rows = _READERS[path.suffix.lower()](path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--inputs {path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of TOML, of JSON, of UTF-8
        raise InputError(f"--inputs {path}: this manifest cannot be read: {innermost_text(error)}") from error
    expected = 'expected a row for each model, such as "resnet50.onnx" = "samples/resnet50.npz"'
    if not isinstance(rows, Mapping) or not rows:
        raise InputError(f"--inputs {path}: this manifest has no rows; {expected}")
    for name, place in rows.items():
        if not isinstance(place, str) or not place or not name:
            raise InputError(f"--inputs {path}: the row {name!r} is {place!r}; {expected}")
    return dict(rows)


def _by_manifest(
    model: pathlib.Path, rows: Mapping[str, str], manifest: pathlib.Path, sources: Sources
) -> tuple[str | None, str | None]:
    """Return the row of a model and its place; None for both if no row is about it. The first one that fits counts.

    A row without a slash is about the file's name, another about its path in the manifest's folder.
    """
    inside = pathlib.Path(os.path.relpath(os.path.realpath(model), os.path.realpath(manifest.parent))).as_posix()
    names = {True: inside, False: model.name}
    fits: tuple[Callable[[str, str], bool], ...] = (str.__eq__, fnmatch.fnmatchcase)  # an exact name first
    row = next((row for fit in fits for row in rows if fit(names["/" in row], row.removeprefix("./"))), None)
    if row is None:
        return None, None
    place = _filled(rows[row], model, sources)
    return row, place if place == MADE_UP or rows[row].startswith("{folder}") else str(manifest.parent / place)


def _warn_of_unused(rows: Mapping[str, str], used: collections.abc.Set[str | None], manifest: str) -> None:
    if unused := [row for row in rows if row not in used]:
        more = f" and {counted(len(unused) - 1, 'more row')}" if len(unused) > 1 else ""
        _logger.warning("--inputs %s: the row %r%s fit none of the models", manifest, unused[0], more)
