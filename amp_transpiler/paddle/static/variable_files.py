"""`save_vars`, `load_vars` and their relatives keep persistable values in a folder or in one file."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from amp_transpiler.errors import InputError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.framework.variable_kinds import is_parameter
from amp_transpiler.paddle.static.io import set_program_state
from amp_transpiler.paddle.static.stored import open_stored
from amp_transpiler.paddle.static.tensor_file import with_suffix, write_tensors
from amp_transpiler.phrases import first_few
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.runtime.scope import global_scope

__all__ = ["load_params", "load_persistables", "load_vars", "save_params", "save_persistables", "save_vars"]

Folder: TypeAlias = "str | os.PathLike[str]"
Chosen: TypeAlias = "Iterable[Variable | str] | None"
Predicate: TypeAlias = "Callable[[Variable], bool] | None"


def save_vars(
    executor: object,
    dirname: Folder,
    main_program: Program | None = None,
    vars: Chosen = None,  # noqa: A002  # Paddle's
    predicate: Predicate = None,
    filename: str | None = None,
) -> None:
    """Write values to safetensors files: one a variable, named after it, or one for all.

    Args:
        executor: Paddle's, no effect.
        dirname: the folder; a missing one is created.
        main_program: the program; the default main program unless given.
        vars: the variables or their names; those that `predicate` takes unless given.
        predicate: told a persistable variable, returns whether it counts; all count without it.
        filename: the one file for all.

    Raises:
        InputError: a variable is not persistable, or the scope lacks its value.
        OutputError: a file cannot be written.
    """
    del executor
    names = _names(main_program, vars, predicate, "save_vars")
    if missing := [name for name in names if name not in global_scope()]:
        raise InputError(f"save_vars: the scope has no value for {first_few(missing, 5)}: run the startup program")
    files = {name: [name] for name in names} if filename is None else {filename: names}
    for file, held in files.items():
        write_tensors(_place(dirname, file), global_scope(), held, {})


def load_vars(
    executor: object,
    dirname: Folder,
    main_program: Program | None = None,
    vars: Chosen = None,  # noqa: A002  # Paddle's
    predicate: Predicate = None,
    filename: str | None = None,
) -> None:
    """Set values from the files that `save_vars` wrote; the arguments are the same.

    Raises:
        InputError: a variable is not persistable; a file is missing, damaged, or lacks a value; or a value has another
            shape or kind of number. Nothing is set then.
    """
    del executor
    program = default_main_program() if main_program is None else main_program
    names = _names(program, vars, predicate, "load_vars")
    files = {name: [name] for name in names} if filename is None else {filename: names}
    arrays: dict[str, np.ndarray] = {}
    for file, held in files.items():
        stored = open_stored(_place(dirname, file))
        if missing := [name for name in held if name not in stored.found]:
            raise InputError(f"{stored.file}: has no value for {first_few(missing, 5)}")
        arrays.update((name, np.array(array)) for name, array in stored.read(held))
    set_program_state(program, arrays)


def save_params(
    executor: object, dirname: Folder, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Write the parameters of a program, its running statistics with them; see `save_vars`."""
    save_vars(executor, dirname, main_program, None, is_parameter, filename)


def load_params(
    executor: object, dirname: Folder, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Set the parameters of a program, its running statistics with them; see `load_vars`."""
    load_vars(executor, dirname, main_program, None, is_parameter, filename)


def save_persistables(
    executor: object, dirname: Folder, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Write all persistable values of a program; see `save_vars`."""
    save_vars(executor, dirname, main_program, None, None, filename)


def load_persistables(
    executor: object, dirname: Folder, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Set all persistable values of a program; see `load_vars`."""
    load_vars(executor, dirname, main_program, None, None, filename)


def _place(folder: Folder, file: str) -> pathlib.Path:
    return with_suffix(pathlib.Path(folder) / file)


def _names(program: Program | None, chosen: Chosen, predicate: Predicate, what: str) -> list[str]:
    program = default_main_program() if program is None else program
    if chosen is None:
        return [name for name in program.persistables if predicate is None or predicate(program.var(name))]
    names = [program.name_of(item) for item in chosen]
    if strange := [name for name in names if name not in program.persistables]:
        raise InputError(f"{what}: {first_few(strange, 5)} of {program!r} does not persist between runs")
    return names


check_arguments(globals(), __all__)
