"""Checkpoints: `save` and `load` of a program's persistable values, and weights from elsewhere."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.dtypes import FLOAT_DTYPES, LOW_DTYPES
from amp_transpiler.graph.program import Program, Variable
from amp_transpiler.paddle.static.tensor_file import read_header, read_tensors, with_suffix, write_tensors
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.systems.paddle.master_weights import master_name, newer_value

__all__ = ["load", "load_program_state", "save", "set_program_state"]

logger = logging.getLogger(__name__)

FORMAT, VERSION = "amp_transpiler.state", "1"


def save(program: Program, path: str | os.PathLike[str], scope: Scope | None = None) -> None:
    """Write every persistable value of a program to one safetensors file, in the element type that the scope holds.

    If it fails at any moment, the file that was there before is unchanged.

    Args:
        program: its persistable values are written.
        path: the file; `.safetensors` is added unless it ends so. A missing folder is created.
        scope: where the values live; the global scope unless given.

    Raises:
        InputError: the scope lacks a value.
        OutputError: the file cannot be written, or the disk is full.
    """
    scope = global_scope() if scope is None else scope
    names = list(program.persistables)
    if missing := [name for name in names if name not in scope]:
        raise InputError(f"the scope has no value for {_listed(missing)}: run the startup program before saving")
    kinds = {name: persistable.kind for name, persistable in program.persistables.items()}
    metadata = {"format": FORMAT, "format_version": VERSION, "persistables": json.dumps(kinds)}
    write_tensors(with_suffix(path), scope, names, metadata)


def load(program: Program, path: str | os.PathLike[str], scope: Scope | None = None) -> None:
    """Set all persistable values of a program from a file that `save` wrote, or none if there is an error.

    Floats of another width than the program declares are converted, which is logged. A float32 parameter that was set
    since its master weight was made gives the master its unrounded value. Other values of the file are ignored.

    Args:
        program: its persistable values are set.
        path: the file; `.safetensors` is added unless it ends so.
        scope: where the values go; the global scope unless given.

    Raises:
        InputError: the file is missing, damaged or of a newer format, lacks a value, or has one of another shape or
            kind of number.
    """
    scope = global_scope() if scope is None else scope
    file = with_suffix(path)
    found, metadata = read_header(file)
    if metadata.get("format") == FORMAT and metadata.get("format_version") != VERSION:
        raise InputError(
            f"{file}: its format is version {metadata.get('format_version')}, this package reads version {VERSION}"
        )
    if missing := [name for name in program.persistables if name not in found]:
        raise InputError(
            f"{file}: has no value for {_listed(missing)}: it was saved from another program; "
            "set_program_state(program, load_program_state(path)) takes over what it has"
        )
    for name in program.persistables:
        _check(program, name, *found[name], where=str(file))
    if extra := [name for name in found if name not in program.persistables]:
        logger.info("%s also has %s, which the program does not: left out", file, _listed(extra))
    _set(program, dict(read_tensors(file, program.persistables)), scope)


def load_program_state(
    path: str | os.PathLike[str], var_list: Iterable[Variable | str] | None = None
) -> dict[str, np.ndarray]:
    """Return the values of a file that `save` wrote, or of any safetensors file, by name.

    Args:
        path: the file; `.safetensors` is added unless it ends so.
        var_list: variables or names to read; all unless given.

    Raises:
        InputError: the file is missing or damaged, or lacks a value that was asked for.
    """
    file = with_suffix(path)
    found, _ = read_header(file)
    wanted = list(found) if var_list is None else [v.name if isinstance(v, Variable) else v for v in var_list]
    if missing := [name for name in wanted if name not in found]:
        raise InputError(f"{file}: has no value for {_listed(missing)}")
    return {name: np.array(array) for name, array in read_tensors(file, wanted)}


def set_program_state(program: Program, state_dict: Mapping[str, Any], scope: Scope | None = None) -> None:
    """Set those persistable values of a program that `state_dict` has; all of them, or none if there is an error.

    Run the startup program before. Floats of another width than the program declares are converted. The master weight
    of a low parameter takes its unrounded value, unless `state_dict` has a master of its own that fits.

    Args:
        program: its persistable values are set; others stay as they are.
        state_dict: name -> array, such as `load_program_state` returns. Names that the program lacks are warned of.
        scope: where the values go; the global scope unless given.

    Raises:
        InputError: a value has another shape or kind of number, or the startup program has not run in the scope.
    """
    scope = global_scope() if scope is None else scope
    given = {name: np.asarray(value) for name, value in state_dict.items() if name in program.persistables}
    for name, array in given.items():
        _check(program, name, array.dtype, array.shape, where="set_program_state")
    if missing := [name for name in given if name not in scope]:
        raise InputError(f"the scope has no value for {_listed(missing)}: run the startup program first")
    if unused := [name for name in state_dict if name not in given]:
        logger.warning("set_program_state: the program has no %s, so these values are not used", _listed(unused))
    _set(program, given, scope)


def _set(program: Program, arrays: Mapping[str, np.ndarray], scope: Scope) -> None:
    """Set values, converted, and the master weights of parameters that are newer than them."""
    converted = dict(_converted(program, *item) for item in arrays.items())
    for name, array in arrays.items():
        master, dtype = master_name(name), program.value(name).dtype
        known = converted.get(master, scope.get(master)) if master in program.persistables else None
        if known is None or dtype not in LOW_DTYPES:
            continue
        if (newer := newer_value(array, known, dtype.numpy())) is not None:
            logger.info("'%s' was set since its master weight '%s' was made, which takes over its values", name, master)
            converted[master] = newer
    for name, array in converted.items():
        scope[name] = array


def _check(program: Program, name: str, dtype: np.dtype, shape: tuple[int, ...], where: str) -> None:
    value = program.value(name)
    wanted = tuple(value.shape or ())
    if wanted != shape:
        raise InputError(f"{where}: '{name}' has shape {list(shape)}, the program wants {list(wanted)}")
    held = ir.DataType.from_numpy(dtype)
    if held != value.dtype and (held not in FLOAT_DTYPES or value.dtype not in FLOAT_DTYPES):
        raise InputError(f"{where}: '{name}' is {held}, the program wants {value.dtype}")


def _converted(program: Program, name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    dtype = program.value(name).dtype
    assert dtype is not None  # checked above
    if array.dtype == dtype.numpy():
        return name, array
    with np.errstate(over="ignore", under="ignore"):
        converted = array.astype(dtype.numpy())
    logger.info(
        "'%s' is %s in the file and is converted to %s, as the program has it", name, array.dtype, converted.dtype
    )
    overflown = int(np.isinf(converted.astype(np.float32)).sum() - np.isinf(array.astype(np.float64)).sum())
    if overflown:
        logger.warning(
            "'%s': %d numbers are beyond the range of %s and became infinite", name, overflown, converted.dtype
        )
    return name, converted


def _listed(names: Iterable[str], limit: int = 20) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
