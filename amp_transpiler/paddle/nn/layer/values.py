"""Reads and sets the arrays of a layer's parameters and buffers, which a scope holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError
from amp_transpiler.phrases import first_few
from amp_transpiler.program.program import Variable
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.systems.paddle.master_weights import master_name

__all__ = ["layer_values", "set_layer_values"]


def layer_values(variables: Mapping[str, Variable], scope: Scope | None) -> dict[str, np.ndarray]:
    """Return the array of each variable, float32 where a master weight holds the unrounded value.

    Raises:
        InputError: the scope lacks one.
    """
    store = global_scope() if scope is None else scope
    _check_started(store, variables)
    return {name: np.array(store[_best_name(store, variable)]) for name, variable in variables.items()}


def set_layer_values(given: Mapping[str, tuple[Variable, Any]], scope: Scope | None) -> None:
    """Set variables to arrays, converted to their element types, and the master weights of low parameters unrounded.

    Raises:
        InputError: an array has another shape, or the scope lacks a variable; nothing is set.
    """
    store = global_scope() if scope is None else scope
    _check_started(store, {name: variable for name, (variable, _) in given.items()})
    arrays: dict[str, np.ndarray] = {}
    for name, (variable, value) in given.items():
        source = store[_best_name(store, value)] if isinstance(value, Variable) else value
        array = np.asarray(source)
        if array.shape != tuple(variable.shape):
            raise InputError(
                f"set_state_dict: '{name}' has shape {list(array.shape)}, the layer wants {list(variable.shape)}"
            )
        arrays[variable.name] = array.astype(store[variable.name].dtype)
        if (master := master_name(variable.name)) in store:
            arrays[master] = array.astype(np.float32)
    for name, array in arrays.items():
        store[name] = array


def _best_name(scope: Scope, variable: Variable) -> str:
    master = master_name(variable.name)
    return master if master in scope else variable.name


def _check_started(scope: Scope, variables: Mapping[str, Variable]) -> None:
    missing = [f"'{name}'" for name, variable in variables.items() if variable.name not in scope]
    if missing:
        raise InputError(f"the scope has no value for {first_few(missing, 5)}: run the startup program first")
