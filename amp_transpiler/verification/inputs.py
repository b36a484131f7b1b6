"""Reads inputs that the user gives to compare on, and checks them against the model. `synthesis.py` makes inputs up."""

from __future__ import annotations

import os
import pathlib
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir

from amp_transpiler.errors import InputError, innermost_text, visible
from amp_transpiler.files.source_check import tensor_fault
from amp_transpiler.runtime.feeds import ValueInfo, check_feeds, model_inputs
from amp_transpiler.runtime.values import is_extension
from amp_transpiler.verification.npz import check_regular, read_npz

__all__ = ["Inputs", "given_inputs", "named_inputs"]

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
    return [sample for _, sample in named_inputs(inputs, model)]


def named_inputs(inputs: Inputs, model: ir.Model) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the samples that the user gave, each with its origin in words; only one needs to be in memory.

    Args:
        inputs: as for `given_inputs`; files are read, and an iterable is asked, when a sample is wanted.
        model: the model to feed.

    Raises:
        InputError: as for `given_inputs`.
    """
    infos = model_inputs(model)
    empty = True
    for where, sample in _samples(inputs, model):
        empty = False
        yield where, check_feeds(sample, infos, lenient=True, where=where)
    if empty:
        raise InputError("inputs: no sample was given; expected a dict of arrays, or several")


def _samples(inputs: Inputs, model: ir.Model) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Return every sample, each with its origin in words, for messages."""
    if isinstance(inputs, (str, os.PathLike)):
        if not os.fspath(inputs):
            raise InputError("inputs: the path is empty; expected an .npz file or a folder of them")
        return _from_path(pathlib.Path(inputs), model)
    if isinstance(inputs, Mapping):
        return [("inputs", inputs)]
    if isinstance(inputs, np.ndarray) or not isinstance(inputs, Iterable):
        raise InputError(
            f"inputs: got {type(inputs).__name__}, expected a path, a dict of arrays by input name, or several dicts"
        )
    return _from_iterable(inputs)


def _from_iterable(inputs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, sample in enumerate(inputs):
        if not isinstance(sample, Mapping):
            raise InputError(f"inputs[{index}]: got {type(sample).__name__}, expected a dict of arrays by input name")
        yield f"inputs[{index}]", sample


def _from_path(path: pathlib.Path, model: ir.Model) -> Iterable[tuple[str, Mapping[str, Any]]]:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # a ValueError: a name with a NUL
        raise InputError(f"{path}: no such file; inputs are an .npz file or a folder of them") from error
    except OSError as error:
        raise InputError(f"{visible(str(path))}: cannot be read: {innermost_text(error)}") from error
    if stat.S_ISDIR(mode):
        return _from_folder(path, model)
    return [(str(path), read_npz(path, _infos(model)))]


def _infos(model: ir.Model) -> dict[str, ValueInfo]:
    return {info.name: info for info in model_inputs(model)}


def _from_folder(folder: pathlib.Path, model: ir.Model) -> Iterator[tuple[str, Mapping[str, Any]]]:
    sets = sorted((f for f in folder.glob("test_data_set_*") if f.is_dir()), key=lambda f: _number(f.name))
    if not sets and (folder / "input_0.pb").exists():
        sets = [folder]
    files = [] if sets else sorted(folder.glob("*.npz"))
    if not sets and not files:
        raise InputError(f"{folder}: is a folder that holds no inputs; expected .npz files or folders test_data_set_*")
    for data_set in sets:
        yield str(data_set), _read_data_set(data_set, model)
    infos = _infos(model)
    for file in files:
        yield str(file), read_npz(file, infos)


def _number(name: str) -> tuple[int, str]:
    digits = re.search(r"\d+", name)
    return (int(digits[0]) if digits else -1, name)


def _read_data_set(folder: pathlib.Path, model: ir.Model) -> dict[str, Any]:
    """Read `input_N.pb` for the Nth input of the model; an input without a file keeps its default."""
    sample = {}
    for index, value in enumerate(model.graph.inputs):
        file = folder / f"input_{index}.pb"
        if file.exists():
            sample[str(value.name)] = _read_message(file, value)
    return sample


def _read_message(file: pathlib.Path, value: ir.Value) -> Any:
    check_regular(file)
    try:
        data = file.read_bytes()
        if isinstance(value.type, ir.OptionalType):
            return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        if isinstance(value.type, ir.SequenceType):
            return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        tensor = onnx.TensorProto.FromString(data)
        fault = "holds its data in another file" if tensor.data_location else tensor_fault(tensor)
        if not fault:
            # onnx before 1.19 reads bfloat16 as float32.
            extension = is_extension(ir.DataType(tensor.data_type).numpy())
            return ir.serde.deserialize_tensor(tensor).numpy() if extension else onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # each implementation of protobuf has a DecodeError of its own
        fault = innermost_text(error)
        raise InputError(f"{file}: not the protobuf of a value for input '{value.name}': {fault}") from error
    raise InputError(f"{file}: the tensor for input '{value.name}' {fault}")
