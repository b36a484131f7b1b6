"""`paddle.save` and `paddle.load` write named arrays, such as a state dictionary, to a file and read them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.static.pickled import write_pickled
from amp_transpiler.paddle.static.stored import open_stored
from amp_transpiler.paddle.static.tensor_file import SUFFIX, write_tensors
from amp_transpiler.program.program import Variable
from amp_transpiler.runtime.scope import global_scope

__all__ = ["load", "save"]


def save(obj: Mapping[str, Any], path: str | os.PathLike[str], protocol: int = 4) -> None:
    """Write named arrays to a file: safetensors if its name ends so, else Paddle's format, a pickle.

    Args:
        obj: name -> array, number or persistable variable, whose value in the global scope is taken.
        path: the file; a missing folder is created.
        protocol: pickle's, 2 to 4.

    Raises:
        InputError: something is no array, or the scope lacks a value.
        OptionError: the protocol is none of these.
        OutputError: the file cannot be written.
    """
    if not isinstance(obj, Mapping):
        raise InputError(f"save: got {type(obj).__name__}, expected names and arrays, such as a state_dict")
    if protocol not in (2, 3, 4):
        raise OptionError(f"save: protocol must be 2, 3 or 4, got {protocol!r}")
    arrays = {str(name): _array(str(name), item) for name, item in obj.items()}
    place = pathlib.Path(path)
    if place.suffix == SUFFIX:
        write_tensors(place, arrays, arrays, {})
    else:
        write_pickled(place, arrays, protocol)


def load(path: str | os.PathLike[str], **options: Any) -> dict[str, np.ndarray]:
    """Return the named arrays of a file, whether it is Paddle's or a safetensors file; nothing in it is executed.

    What a Layer's `state_dict` held has the names of the Layer's attributes (`0.weight`), as in Paddle.

    Args:
        path: the file, or its name without `.safetensors` or `.pdparams`.
        options: Paddle's `return_numpy` and others, no effect.

    Raises:
        InputError: there is no such file, it is damaged, or it names something else than arrays.
    """
    del options
    stored = open_stored(path, structured=True)
    return {name: np.array(array) for name, array in stored.read(stored.found)}


def _array(name: str, item: Any) -> np.ndarray:
    if isinstance(item, Variable):
        if item.name not in global_scope():
            raise InputError(f"save: the scope has no value for '{item.name}': run the startup program first")
        return global_scope()[item.name]
    array = np.asarray(item)
    if array.dtype.kind not in "fiubc" and array.dtype.name != "bfloat16":
        raise InputError(f"save: '{name}' is {type(item).__name__}, expected an array")
    return array
