"""Inputs that the user gives to compare on, checked against the model. `synthesis.py` makes inputs up."""

from __future__ import annotations

import os
import pathlib
import re
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.runtime.feeds import check_feeds, model_inputs

__all__ = ["Inputs", "given_inputs"]

Inputs: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Iterable[Mapping[str, Any]]


def given_inputs(inputs: Inputs, model: ir.Model) -> list[dict[str, Any]]:
    """Return the samples that the user gave, as arrays of the types that the model's inputs have.

    Args:
        inputs: an .npz file; a folder of .npz files, or of ONNX's `test_data_set_*/input_0.pb`; a dict; or several
            dicts. Arrays are named after the model's inputs. Float types are converted, and integer types if every
            value fits. Inputs with a default may be left out.
        model: the model to feed.

    Returns:
        One dict per sample, of arrays, or of lists for sequences.

    Raises:
        InputError: there is no sample, a file is unreadable, or an array does not fit the model's input.
    """
    infos = model_inputs(model)
    samples = [check_feeds(sample, infos, lenient=True, where=where) for where, sample in _samples(inputs, model)]
    if not samples:
        raise InputError("inputs: no sample was given; expected a dict of arrays, or several")
    return samples


def _samples(inputs: Inputs, model: ir.Model) -> list[tuple[str, Mapping[str, Any]]]:
    """Return every sample, each with its origin in words, for messages."""
    if isinstance(inputs, (str, os.PathLike)):
        return _from_path(pathlib.Path(inputs), model)
    if isinstance(inputs, Mapping):
        return [("inputs", inputs)]
    if isinstance(inputs, np.ndarray) or not isinstance(inputs, Iterable):
        raise InputError(
            f"inputs: got {type(inputs).__name__}, expected a path, a dict of arrays by input name, or several dicts"
        )
    samples = list(inputs)
    for index, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise InputError(f"inputs[{index}]: got {type(sample).__name__}, expected a dict of arrays by input name")
    return [(f"inputs[{index}]", sample) for index, sample in enumerate(samples)]


def _from_path(path: pathlib.Path, model: ir.Model) -> list[tuple[str, Mapping[str, Any]]]:
    if path.is_dir():
        return _from_folder(path, model)
    if not path.exists():
        raise InputError(f"{path}: no such file; inputs are an .npz file or a folder of them")
    return [(str(path), _read_npz(path))]


def _from_folder(folder: pathlib.Path, model: ir.Model) -> list[tuple[str, Mapping[str, Any]]]:
    sets = sorted((f for f in folder.glob("test_data_set_*") if f.is_dir()), key=lambda f: _number(f.name))
    if not sets and (folder / "input_0.pb").exists():
        sets = [folder]
    found: list[tuple[str, Mapping[str, Any]]] = [(str(f), _read_data_set(f, model)) for f in sets]
    if not found:
        found = [(str(file), _read_npz(file)) for file in sorted(folder.glob("*.npz"))]
    if not found:
        raise InputError(f"{folder}: holds no inputs; expected .npz files or folders test_data_set_*")
    return found


def _number(name: str) -> tuple[int, str]:
    digits = re.search(r"\d+", name)
    return (int(digits[0]) if digits else -1, name)


def _read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded as arrays:
                return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not an .npz file of plain arrays: {error}") from error
    raise InputError(f"{path}: holds one unnamed array; write it with numpy.savez(path, INPUT_NAME=array)")


def _read_data_set(folder: pathlib.Path, model: ir.Model) -> dict[str, Any]:
    """Read `input_N.pb` for the Nth input of the model; an input without a file keeps its default."""
    sample = {}
    for index, value in enumerate(model.graph.inputs):
        file = folder / f"input_{index}.pb"
        if file.exists():
            sample[str(value.name)] = _read_message(file, value)
    return sample


def _read_message(file: pathlib.Path, value: ir.Value) -> Any:
    data = file.read_bytes()
    try:
        if isinstance(value.type, ir.OptionalType):
            return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        if isinstance(value.type, ir.SequenceType):
            return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))
    except Exception as error:  # each implementation of protobuf has a DecodeError of its own
        raise InputError(f"{file}: not the protobuf of a value for input '{value.name}': {error}") from error
