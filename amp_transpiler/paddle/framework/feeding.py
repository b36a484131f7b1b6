"""Checks what a caller of `Executor.run` feeds and fetches, in all forms that Paddle's scripts have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.autodiff.open_ranks import has_open_rank
from amp_transpiler.errors import InputError
from amp_transpiler.graph.dtypes import BFLOAT16, LOW_NUMPY_DTYPES
from amp_transpiler.graph.lines import line_of
from amp_transpiler.graph.name_matching import did_you_mean
from amp_transpiler.graph.roles import has_backward_pass
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.program.retyped import holds_labels, is_unchecked

__all__ = ["FetchList", "fed_arrays", "fed_otherwise", "fetched_names", "fits"]

FetchList: TypeAlias = "Sequence[Variable | str | Sequence[Any]] | Variable | str | None"


def fetched_names(program: Program, fetch_list: FetchList) -> list[str]:
    """Return the names of what is fetched; lists in the list are joined, as in Paddle.

    Raises:
        InputError: something is no variable and no name, or the program has no such variable.
    """
    names = [] if fetch_list is None else list(_flat(program, fetch_list))
    for name in names:
        program.value(program.updates.get(name, name))  # raises if there is none; a startup program sets its values
    return names


def _flat(program: Program, item: Any) -> Iterator[str]:
    if isinstance(item, (str, Variable)):
        yield program.name_of(item)
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from _flat(program, part)
    else:
        raise InputError(f"fetch_list takes variables, names and lists of them, got {type(item).__name__} {item!r:.80}")


def fed_arrays(program: Program, feed: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the feeds as arrays of the types that the program's inputs have, and the names that are no inputs.

    Lists and numbers take the input's element type, if that keeps their values or they are floats. Arrays must have it;
    float32 ones are rounded for an input in 16 bits, and uint16 ones are taken for the bits of bfloat16, as in Paddle.
    An array that lacks the first dimension, which is free, and has all the others, which are not, is one row.

    Args:
        program: the program.
        feed: input, or its name -> array or list; or a list of one such dictionary, as loaders yield them.

    Raises:
        InputError: it is something else; a name is that of a persistable value, or like that of an input that is not
            fed; or what is fed has another type, rank or size.
    """
    inputs = {str(v.name): v for v in program.model.graph.inputs if str(v.name) not in program.persistables}
    arrays: dict[str, np.ndarray] = {}
    unread = []
    given_values = _dictionary(feed)
    for key, fed in given_values.items():
        if not isinstance(key, (str, Variable)):
            raise InputError(f"feed takes variables and names, got {type(key).__name__} {key!r:.80}")
        name = program.name_of(key)
        if name not in inputs:
            near = did_you_mean(name, inputs.keys() - {program.name_of(other) for other in given_values})
            if near or name in program.persistables:
                near = near or f": its inputs are {', '.join(inputs) or 'none'}"
                raise InputError(f"the program has no input '{name}'{near}")
            unread.append(name)
            continue
        arrays[name] = _fitted(inputs[name], fed)
        if holds_labels(inputs[name]) and np.any(arrays[name] != np.trunc(arrays[name])):
            raise InputError(f"{_input(inputs[name])}: its numbers are labels, and some have fractions")
    return arrays, unread


def fed_otherwise(program: Program, feed: Any) -> dict[str, np.ndarray]:
    """Return the arrays that are fed to unchecked inputs and are of another type or shape than those are declared with.

    In a program with a backward pass, the type stays as declared: integers and floats of 16 bits are fed as float32 if
    that keeps their values.
    """
    inputs = {str(value.name): value for value in program.model.graph.inputs if is_unchecked(value)}
    if not inputs:
        return {}
    trains = has_backward_pass(program.model)
    arrays = {}
    for key, fed in _dictionary(feed).items():
        value = inputs.get(program.name_of(key)) if isinstance(key, (str, Variable)) else None
        if value is None or not isinstance(fed, np.ndarray):
            continue
        array = fed.view(BFLOAT16.numpy) if fed.dtype == np.uint16 else fed  # Paddle has no uint16
        declared = None if value.dtype is None else value.dtype.numpy()
        array = _unrounded(array, declared) if trains else array
        if trains and not has_open_rank(value) and not fits(value, array):
            continue
        if array is not fed or array.dtype != declared or not fits(value, array):
            arrays[str(value.name)] = array
    return arrays


def fits(value: ir.Value, array: np.ndarray) -> bool:
    """Whether an array has the rank that an input is declared with, and the sizes that are numbers."""
    if value.shape is None:
        return True
    if len(value.shape) != array.ndim:
        return False
    return all(d == size for d, size in zip(value.shape, array.shape, strict=True) if isinstance(d, int))


def _unrounded(array: np.ndarray, declared: np.dtype[Any] | None) -> np.ndarray:
    """Return integers and floats of 16 bits as float32 if that is declared and keeps them; others as they are."""
    if declared != np.float32 or not (np.issubdtype(array.dtype, np.integer) or array.dtype in LOW_NUMPY_DTYPES):
        return array
    wide = array.astype(np.float32)
    return wide if np.array_equal(wide.astype(array.dtype), array) else array


def _dictionary(feed: Any) -> Mapping[Any, Any]:
    if feed is None:
        return {}
    if isinstance(feed, (list, tuple)) and len(feed) == 1:
        feed = feed[0]
    if not isinstance(feed, Mapping):
        remedy = "feed={'x': array}, or a list of one such dictionary; a DataLoader makes them with return_list=False"
        raise InputError(f"feed must be a dictionary of input names and arrays, got {type(feed).__name__}: {remedy}")
    return feed


def _fitted(value: ir.Value, fed: Any) -> np.ndarray:
    """Return what is fed to an input as an array of its type."""
    array = _array(value, fed)
    dtype = None if value.dtype is None else value.dtype.numpy()
    if dtype is not None and array.dtype != dtype:
        array = _in_type(value, fed, array, dtype)
    if _is_row(value.shape, array):
        return array[None]
    if not fits(value, array):
        raise InputError(
            f"{_input(value)}: got shape {list(array.shape)}, expected {_shape(value)}{_hint(value, array)}"
        )
    return array


def _is_row(declared: ir.Shape | None, array: np.ndarray) -> bool:
    """Whether an array is one row of an input: it has its sizes, all known, but for the free first one."""
    if declared is None or not array.ndim or len(declared) != array.ndim + 1:
        return False
    return not isinstance(declared[0], int) and tuple(declared[1:]) == array.shape


def _array(value: ir.Value, fed: Any) -> np.ndarray:
    if fed is None or isinstance(fed, (dict, set, Variable)):
        raise InputError(f"{_input(value)}: got {fed!r:.80}, expected an array of shape {_shape(value)}")
    try:
        array = np.asarray(fed.numpy() if isinstance(fed, onnxruntime.OrtValue) else fed)
    except ValueError as error:
        raise InputError(
            f"{_input(value)}: the rows of what is fed differ in length, or it holds something else than numbers; "
            f"expected an array of shape {_shape(value)}: pad the rows to one length"
        ) from error
    if array.dtype.kind == "O" and value.dtype != ir.DataType.STRING:
        raise InputError(f"{_input(value)}: got Python objects, such as {fed!r:.80}, expected numbers")
    return array


def _in_type(value: ir.Value, fed: Any, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return an array of another type in that of the input, where the caller need not ask for it.

    Raises:
        InputError: the caller has to convert it.
    """
    if array.dtype == np.uint16 and dtype == BFLOAT16.numpy:
        return array.view(dtype)
    if array.dtype.type is np.void or dtype.kind == "O":  # bfloat16 from a file; strings: looked at when they are bound
        return array
    is_array = isinstance(fed, (np.ndarray, np.generic, onnxruntime.OrtValue)) or hasattr(fed, "__array__")
    if array.dtype == np.float32 and dtype in LOW_NUMPY_DTYPES:
        is_array = False
    if not is_array and array.dtype.kind in "fiub":
        with np.errstate(over="ignore", invalid="ignore"):
            converted = array.astype(dtype)
        floats = dtype.kind == "f" or dtype in LOW_NUMPY_DTYPES
        if (floats and array.dtype.kind != "b") or np.array_equal(converted.astype(array.dtype), array):
            return converted
    raise InputError(
        f"{_input(value)}: got {array.dtype.name} {list(array.shape)}, expected {dtype.name} {_shape(value)}: "
        f"convert it, as in {value.name}.astype('{dtype.name}')"
    )


def _input(value: ir.Value) -> str:
    line = line_of(value)
    return f"input '{value.name}'{f' ({line})' if line else ''}"


def _shape(value: ir.Value) -> str:
    return "of any rank" if value.shape is None else str(value.shape)


def _hint(value: ir.Value, array: np.ndarray) -> str:
    """Return a remedy for a batch dimension that is missing, or for one too many."""
    rank = 0 if value.shape is None else len(value.shape)
    if array.ndim == rank - 1:
        return ": add the batch, as in array[None], or a last axis of size 1, as in array[..., None]"
    if array.ndim == rank + 1 and 1 in array.shape:
        return ": leave out the axis of size 1, as in array.squeeze(axis)"
    return ""
