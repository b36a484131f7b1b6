"""The inputs of a program, and checks that feeds fit them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.dtypes import LOW_NUMPY_DTYPES

__all__ = ["ValueInfo", "check_feeds", "model_inputs", "reordered"]


@dataclasses.dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output of a program.

    Attributes:
        name: its name.
        dtype: numpy's name of its element type (`float32`, `bfloat16`, `string`); the type in words, such as
            `seq(tensor(float))`, if it is not a tensor.
        shape: its dimensions: an int, a symbol, or None if unknown; None as a whole if the rank is unknown.
        numpy: the element type of an array that holds it; None if it is not a tensor.
        required: False for an input that has a default.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    numpy: np.dtype | None
    required: bool = True

    def __str__(self) -> str:
        if self.numpy is None or self.shape is None:
            return self.dtype
        return f"{self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def model_inputs(model: ir.Model) -> tuple[ValueInfo, ...]:
    """Return the inputs of a model; an input that is also an initializer is not `required`."""
    return tuple(map(_input_info, model.graph.inputs))


def _input_info(value: ir.Value) -> ValueInfo:
    name, required = str(value.name), not value.is_initializer()
    if not isinstance(value.type, ir.TensorType):
        return ValueInfo(name, "untyped" if value.type is None else str(value.type), None, None, required)
    dtype = value.type.dtype
    shape = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    text = "string" if dtype == ir.DataType.STRING else str(dtype.numpy().name)
    return ValueInfo(name, text, shape, dtype.numpy(), required)


def check_feeds(
    feeds: Mapping[str, Any], inputs: Sequence[ValueInfo], *, lenient: bool = False, where: str = ""
) -> dict[str, Any]:
    """Return the feeds as arrays of the types that the inputs have.

    float32 arrays are converted if the input is float16 or bfloat16. Sequences and optionals are not checked.

    Args:
        feeds: input name -> array, or anything that numpy makes an array of.
        inputs: the program's inputs.
        lenient: also convert between float types, and between integer types if every value fits.
        where: the sample, named in front of messages.

    Raises:
        InputError: an input is unknown or missing, or has a wrong type, rank or dimension.
    """
    known = {info.name: info for info in inputs}
    start = f"{where}: " if where else ""
    for name in feeds:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InputError(f"{start}unknown input {name!r}{hint}; the program's inputs are {_listing(inputs)}")
    missing = [info for info in inputs if info.required and info.name not in feeds]
    if missing:
        raise InputError(f"{start}missing input {missing[0].name!r}, expected {missing[0]}; got {sorted(feeds)}")
    return {name: _checked(value, known[name], start, lenient=lenient) for name, value in feeds.items()}


def _listing(inputs: Sequence[ValueInfo]) -> str:
    return ", ".join(f"{info.name}: {info}" for info in inputs) or "none"


def _checked(value: Any, info: ValueInfo, start: str, *, lenient: bool) -> Any:
    if info.numpy is None:
        return value
    array = np.asarray(value)
    converted = _convert(array, info.numpy, lenient=lenient)
    if converted is None:
        hint = _range_hint(array, info.numpy)
        raise InputError(f"{start}input {info.name!r}: got {_describe(array)}, expected {info}{hint}")
    if info.shape is not None and not _fits(converted.shape, info.shape):
        problem = "rank" if converted.ndim != len(info.shape) else "shape"
        raise InputError(f"{start}input {info.name!r} has the wrong {problem}: got {_describe(array)}, expected {info}")
    return converted


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"


def _range_hint(array: np.ndarray, dtype: np.dtype) -> str:
    if array.dtype.kind in "iu" and dtype.kind in "iub" and array.size:
        return f"; its values range from {array.min()} to {array.max()}"
    return ""


def _fits(shape: tuple[int, ...], declared: tuple[int | str | None, ...]) -> bool:
    return len(shape) == len(declared) and all(
        not isinstance(want, int) or want < 0 or got == want for got, want in zip(shape, declared, strict=True)
    )


def _convert(array: np.ndarray, dtype: np.dtype, *, lenient: bool) -> np.ndarray | None:
    """Return `array` as `dtype`, or None if that needs a conversion the user must ask for."""
    if array.dtype == dtype:
        return array
    if array.dtype.type is np.void:
        # numpy's file format does not store the type bfloat16: reading gives two plain bytes per element.
        same_size = dtype.isbuiltin == 2 and array.dtype.itemsize == dtype.itemsize
        return array.view(dtype) if same_size else None
    if dtype.kind == "O":  # strings
        return array.astype(object) if array.dtype.kind in "US" else None
    if array.dtype == np.float32 and dtype in LOW_NUMPY_DTYPES:
        return _astype(array, dtype)
    if not lenient:
        return None
    if _is_float(array.dtype) and _is_float(dtype):
        return _astype(array, dtype)
    if array.dtype.kind in "iub" and dtype.kind in "iub":
        converted = array.astype(dtype)
        return converted if np.array_equal(converted, array) else None
    return None


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or "float" in dtype.name


def _astype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):  # a number that is too large becomes infinite, as on the device
        return array.astype(dtype)


def reordered(sample: Mapping[str, Any], shift: int) -> dict[str, Any]:
    """Return a sample with the elements of each array moved along its last axis that has several, by `shift`.

    Every number stays one that the model is fed with: ids stay in their range, masks stay masks.
    """
    return {name: _rolled(value, shift) for name, value in sample.items()}


def _rolled(value: Any, shift: int) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    axes = [axis for axis, size in enumerate(value.shape) if size > 1]
    return np.roll(value, shift, axis=axes[-1]) if axes else value
