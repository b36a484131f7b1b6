"""Holds the values that a child keeps for its parent, and runs that read and make them without copies."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from amp_transpiler.child_process.kept_values import KeptNumber
from amp_transpiler.errors import InputError
from amp_transpiler.runtime.feeds import check_feeds
from amp_transpiler.runtime.ort import ORT_ERRORS, error_text, is_about_feeds
from amp_transpiler.runtime.values import detached, from_ort, to_ort

if TYPE_CHECKING:
    from amp_transpiler.runtime.session import Session

__all__ = ["ValueStore", "added", "as_python", "in_memory", "in_place", "run_values"]


class ValueStore:
    """The kept values of a child: of ONNX Runtime's own, or what Python has in their place."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._numbers = itertools.count(1)

    def keep(self, value: Any) -> KeptNumber:
        """Keep a value."""
        number = next(self._numbers)
        self._values[number] = value
        return KeptNumber(number)

    def drop(self, numbers: Iterable[int]) -> None:
        """Give values back."""
        for number in numbers:
            self._values.pop(number, None)

    def clear(self) -> None:
        """Give all values back."""
        self._values.clear()

    def looked_up(self, value: Any) -> Any:
        """Return the value that a number stands for; anything else as it is."""
        return self._values[value.number] if isinstance(value, KeptNumber) else value


def run_values(
    session: Session,
    opened: onnxruntime.InferenceSession,
    feeds: Mapping[str, Any],
    names: Sequence[str],
    staying: Collection[str],
) -> dict[str, Any]:
    """Run once and return results without copying them.

    Args:
        session: the session, which knows the types.
        opened: the same as ONNX Runtime has it, on the CPU.
        feeds: input name -> array, or value of ONNX Runtime's own.
        names: the results, one at least.
        staying: those that will outlive the others.

    Returns:
        Name -> value of ONNX Runtime's own; where strings, sequences or optionals come in, that of Python.

    Raises:
        InputError: the feeds do not fit.
        ORT_ERRORS: the run failed.
    """
    infos = {info.name: info for info in session.outputs}
    inputs = [info for info in session.inputs if info.name in feeds]
    if any(info.numpy is None or info.numpy.kind == "O" for info in (*inputs, *(infos[name] for name in names))):
        plain = {name: as_python(value) for name, value in feeds.items()}
        return dict(zip(names, session.run(plain, names), strict=True))
    arrays = {name: value for name, value in feeds.items() if not isinstance(value, onnxruntime.OrtValue)}
    held = {name: value for name, value in feeds.items() if name not in arrays}
    checked = check_feeds(arrays, [info for info in session.inputs if info.name not in held])
    ort_feeds = {**held, **{name: to_ort(array) for name, array in checked.items()}}
    try:
        results = opened.run_with_ort_values(list(names), ort_feeds)
    except ORT_ERRORS as error:
        if is_about_feeds(error):
            raise InputError(error_text(error)) from error
        raise
    return {name: detached(value) if name in staying else value for name, value in zip(names, results, strict=True)}


def as_python(value: Any) -> Any:
    """Return a value as it travels: an array, a list, None."""
    return from_ort(value) if isinstance(value, onnxruntime.OrtValue) else value


def in_place(value: Any) -> np.ndarray:
    """Return the array of a float32 tensor in the tensor's own memory: it lives no longer than that."""
    if not isinstance(value, onnxruntime.OrtValue):
        return np.asarray(value)
    shape = tuple(value.shape())
    if not math.prod(shape):
        return np.zeros(shape, np.float32)
    memory = (ctypes.c_float * math.prod(shape)).from_address(value.data_ptr())
    return np.frombuffer(memory, np.float32).reshape(shape)


def in_memory(value: Any) -> np.ndarray:
    """Return the array of any tensor; that of a float32 tensor in the tensor's own memory."""
    is_float = isinstance(value, onnxruntime.OrtValue) and value.data_type() == "tensor(float)"
    return in_place(value) if is_float else np.asarray(as_python(value))


def added(first: Any, second: Any) -> onnxruntime.OrtValue:
    """Return the sum of two float32 tensors."""
    return to_ort(np.asarray(in_place(first) + in_place(second)))
