"""`save` writes checkpoints of a program's persistable values; `load` reads them, and weights from elsewhere."""

from __future__ import annotations

import json
import logging
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import shape_of
from amp_transpiler.graph.dtypes import FLOAT_DTYPES, LOW_DTYPES
from amp_transpiler.graph.name_matching import did_you_mean
from amp_transpiler.lazy import import_late
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.variable_kinds import is_parameter
from amp_transpiler.paddle.static.pickled import PARAMETERS_SUFFIX, STATE_SUFFIX, write_pickled
from amp_transpiler.paddle.static.stored import Stored, open_stored
from amp_transpiler.paddle.static.tensor_file import with_suffix, write_tensors
from amp_transpiler.phrases import first_few
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.program.static_program import Mode
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.systems.paddle.master_weights import master_name, newer_value

__all__ = [
    "get_program_parameter",
    "get_program_persistable_vars",
    "load",
    "load_program_state",
    "program_state",
    "save",
    "set_program_state",
    "set_values",
]

logger = logging.getLogger(__name__)

FORMAT, VERSION = "amp_transpiler.state", "1"
_PROTOCOLS = (2, 3, 4)
_ONE_NUMBER = {(), (1,)}  # Paddle's powers of beta are vectors of one number

# What Paddle keeps in `static.io`, and this package in other modules of `static`.
_ELSEWHERE = frozenset(
    "deserialize_persistables deserialize_program load_from_file load_inference_model load_vars normalize_program "
    "save_inference_model save_to_file save_vars serialize_persistables serialize_program".split()
)


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_late("amp_transpiler.paddle.static", name)


def get_program_parameter(program: Program) -> list[Variable]:
    """Return the parameters of a program, its running statistics with them, as in Paddle."""
    return [variable for variable in program.list_vars() if is_parameter(variable)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """Return the variables of a program that persist in the scope between runs."""
    return [variable for variable in program.list_vars() if variable.persistable]


def save(
    program: Program,
    path: str | os.PathLike[str],
    protocol: int | Scope | None = None,
    scope: Scope | None = None,
) -> None:
    """Write every persistable value of a program to one safetensors file, in the element type that the scope holds.

    If it fails at any moment, the file that was there before is unchanged. A path that ends in `.pdparams` gets
    Paddle's format instead: the parameters there, optimizer state in a file beside it that ends in `.pdopt`.

    Args:
        program: its persistable values are written.
        path: the file; `.safetensors` is added unless it ends so, or in `.pdparams`. A missing folder is created.
        protocol: pickle's protocol of Paddle's format, 2 to 4; no effect in the other. A scope is taken as `scope`.
        scope: where the values live; the global scope unless given.

    Raises:
        InputError: the scope lacks a value.
        OptionError: the protocol is none of these.
        OutputError: the file cannot be written, or the disk is full.
    """
    scope = _scope(protocol, scope)
    chosen = protocol if isinstance(protocol, int) else _PROTOCOLS[-1]
    if chosen not in _PROTOCOLS:
        raise OptionError(f"save: protocol must be 2, 3 or 4, got {chosen!r}")
    names = list(program.persistables)
    if missing := [name for name in names if name not in scope]:
        raise InputError(f"the scope has no value for {_listed(missing)}: run the startup program before saving")
    kinds = {name: persistable.kind for name, persistable in program.persistables.items()}
    place = pathlib.Path(path)
    if place.suffix == PARAMETERS_SUFFIX:
        state = {name: _as_paddles(name, scope[name]) for name, kind in kinds.items() if kind == "state"}
        if state:
            write_pickled(place.with_suffix(STATE_SUFFIX), state, chosen)
        write_pickled(place, {name: scope[name] for name in names if name not in state}, chosen)
        return
    metadata = {"format": FORMAT, "format_version": VERSION, "persistables": json.dumps(kinds)}
    write_tensors(with_suffix(place), scope, names, metadata)


def load(
    program: Program,
    path: str | os.PathLike[str],
    executor: object = None,
    var_list: Iterable[Variable | str] | None = None,
    *,
    scope: Scope | None = None,
) -> None:
    """Set all persistable values of a program from a file, or none if there is an error.

    The file is one that `save` wrote, any safetensors file, or Paddle's own (`.pdparams`, with `.pdopt` beside it),
    which is read without executing what it names. Floats of another width than the program declares are converted,
    which is logged. A float32 parameter that was set since its master weight was made gives the master its unrounded
    value. Where only the file keeps master weights, as after training at O2, float32 parameters are those, and the
    optimizer's state is theirs. Other values of the file are ignored. Optimizer state that Paddle's files lack keeps
    its value, which is logged.

    Args:
        program: its persistable values are set.
        path: the file, or its name without `.safetensors` or `.pdparams`, or with one of Paddle's endings; or a folder
            that `save_persistables` wrote.
        executor: Paddle's, no effect; a scope given here is taken as `scope`.
        var_list: the variables to set, or their names; all persistable ones unless given.
        scope: where the values go; the global scope unless given.

    Raises:
        InputError: the file is missing, damaged or of a newer format, names something else than arrays, lacks a value,
            or has one of another shape or kind of number.
    """
    scope = _scope(executor, scope)
    stored = open_stored(path)
    if stored.metadata.get("format") == FORMAT and stored.metadata.get("format_version") != VERSION:
        version = stored.metadata.get("format_version")
        raise InputError(f"{stored.file}: its format is version {version}, this package reads version {VERSION}")
    names = _chosen_names(program, var_list)
    stored_as = {name: name for name in names} | _across_masters(program, stored.found)
    absent = [name for name in names if stored_as[name] not in stored.found]
    unchanged = [name for name in absent if stored.is_paddles and program.persistables[name].kind == "state"]
    if missing := [name for name in absent if name not in unchanged]:
        raise InputError(
            f"{stored.file}: has no value for {_listed(missing)}: it was saved from another program; "
            "set_program_state(program, load_program_state(path)) takes over what it has"
        )
    if unset := [name for name in unchanged if name not in scope]:
        raise InputError(f"{stored.file}: has no value for {_listed(unset)}: run the startup program first")
    if unchanged:
        logger.info("%s has no value for %s, which stay as they are", stored.file, _listed(unchanged))
    names = [name for name in names if name not in unchanged]
    for name in names:
        _check(program, name, *stored.found[stored_as[name]], where=str(stored.file))
    if extra := [name for name in stored.found if name not in program.persistables]:
        logger.info("%s also has %s, which the program does not: left out", stored.file, _listed(extra))
    _set(program, _read(stored, {name: stored_as[name] for name in names}), scope)


def _across_masters(program: Program, entries: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> dict[str, str]:
    """Return name in the program -> in the file, for master weights and their state that only the file has.

    A float32 parameter is the master, and the optimizer's state of one is that of the other.
    """
    names: dict[str, str] = {}
    for parameter, persistable in program.persistables.items():
        master = master_name(parameter)
        is_float32 = persistable.kind == "parameter" and program.value(parameter).dtype == ir.DataType.FLOAT
        if not is_float32 or parameter not in entries or master not in entries or master in program.persistables:
            continue
        for name in entries:
            plain_name = f"{parameter}{name.removeprefix(master)}"
            if (name == master or name.startswith(f"{master}_")) and plain_name in program.persistables:
                names[plain_name] = name
    return names


def _read(stored: Stored, stored_as: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return values by their names in the program; a low parameter that is newer than its master is used instead."""
    renamed = {name: other for name, other in stored_as.items() if name != other}
    low = [name for name in renamed if name in stored.found]
    arrays = dict(stored.read(list(dict.fromkeys([*stored_as.values(), *low]))))
    for name in low:
        if newer_value(arrays[name], arrays[renamed[name]], arrays[name].dtype) is not None:
            renamed.pop(name)
    if renamed:
        logger.info("%s: %s are taken from %s", stored.file, _listed(renamed), _listed(renamed.values()))
    return {name: arrays[renamed.get(name, name)] for name in stored_as}


def _as_paddles(name: str, array: np.ndarray) -> np.ndarray:
    return array.reshape(1) if "_pow_acc" in name and not array.ndim else array


def _scope(executor: object, scope: Scope | None) -> Scope:
    """Return the scope, which may stand where Paddle has another argument."""
    if isinstance(executor, Scope):
        return executor
    return global_scope() if scope is None else scope


def _chosen_names(program: Program, var_list: Iterable[Variable | str] | None) -> list[str]:
    if var_list is None:
        return list(program.persistables)
    names = [program.name_of(item) for item in var_list]
    if unknown := [name for name in names if name not in program.persistables]:
        near = did_you_mean(unknown[0], program.persistables)
        raise InputError(f"load: {program!r} has no persistable value '{unknown[0]}'{near}")
    return names


def load_program_state(
    path: str | os.PathLike[str], var_list: Iterable[Variable | str] | None = None
) -> dict[str, np.ndarray]:
    """Return the values of a file that `save` wrote, of any safetensors file, or of Paddle's `.pdparams`, by name.

    Args:
        path: the file, or its name without `.safetensors` or `.pdparams`.
        var_list: variables or names to read; all unless given.

    Raises:
        InputError: the file is missing or damaged, names something else than arrays, or lacks a value that was asked
            for.
    """
    stored = open_stored(path)
    chosen = stored.found if var_list is None else var_list
    names = [value.name if isinstance(value, Variable) else value for value in chosen]
    if missing := [name for name in names if name not in stored.found]:
        raise InputError(f"{stored.file}: has no value for {_listed(missing)}{did_you_mean(missing[0], stored.found)}")
    return {name: np.array(array) for name, array in stored.read(names)}


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
    arrays = {name: np.asarray(value) for name, value in state_dict.items() if name in program.persistables}
    for name, array in arrays.items():
        _check(program, name, array.dtype, array.shape, where="set_program_state")
    if missing := [name for name in arrays if name not in scope]:
        raise InputError(f"the scope has no value for {_listed(missing)}: run the startup program first")
    if unused := [name for name in state_dict if name not in arrays]:
        logger.warning("set_program_state: the program has no %s, so these values are not used", _listed(unused))
    _set(program, arrays, scope)


def set_values(program: Program, arrays: Mapping[str, np.ndarray], scope: Scope | None, where: str) -> None:
    """Set all persistable values of a program, whether the scope has values for them or not.

    Raises:
        InputError: one is missing, or has another shape or kind of number.
    """
    if missing := [name for name in program.persistables if name not in arrays]:
        raise InputError(f"{where}: there is no value for {_listed(missing)}")
    for name in program.persistables:
        _check(program, name, arrays[name].dtype, arrays[name].shape, where)
    values = {name: arrays[name] for name in program.persistables}
    _set(program, values, global_scope() if scope is None else scope)


def program_state(
    program: Program, mode: Mode, scope: Scope | None, wanted: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return persistable values by name, those of `wanted` or all; see `Program.state_dict`."""
    scope = global_scope() if scope is None else scope
    is_state = {name: persistable.kind == "state" for name, persistable in program.persistables.items()}
    names = [name for name, state in is_state.items() if mode == "all" or state == (mode == "opt")]
    names = names if wanted is None else list(wanted)
    if missing := [name for name in names if name not in scope]:
        raise InputError(f"the scope has no value for {_listed(missing)}: run the startup program first")
    return {name: scope[name] for name in names}


def _set(program: Program, arrays: Mapping[str, np.ndarray], scope: Scope) -> None:
    """Set values, converted, and update the master weights of parameters that are newer than them."""
    converted = dict(_converted(program, *item) for item in arrays.items())
    for name, array in arrays.items():
        master, dtype = master_name(name), program.value(name).dtype
        master_value = converted.get(master, scope.get(master)) if master in program.persistables else None
        if master_value is None or dtype not in LOW_DTYPES:
            continue
        if (newer := newer_value(array, master_value, dtype.numpy())) is not None:
            logger.info("'%s' was set since its master weight '%s' was made, which takes over its values", name, master)
            converted[master] = newer
    scope.update(converted)


def _check(program: Program, name: str, dtype: np.dtype, shape: tuple[int, ...], where: str) -> None:
    value = program.value(name)
    expected = tuple(value.shape or ())
    if expected != shape and not {expected, shape} <= _ONE_NUMBER:
        raise InputError(f"{where}: '{name}' has shape {list(shape)}, the program wants {list(expected)}")
    held = ir.DataType.from_numpy(dtype)
    if held != value.dtype and (held not in FLOAT_DTYPES or value.dtype not in FLOAT_DTYPES):
        raise InputError(f"{where}: '{name}' is {held}, the program wants {value.dtype}")


def _converted(program: Program, name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    dtype = program.value(name).dtype
    assert dtype is not None  # checked above
    array = array.reshape(shape_of(program.value(name)))  # one number may be a vector in the file
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


def _listed(names: Collection[str]) -> str:
    return first_few(names, 20)


check_arguments(globals(), __all__)
