"""Constants: what a low format would do to them, and their conversion, one at a time and only when written.

Weights are read in blocks and their memory map is let go afterwards, so that a model of any size needs little more
memory than its largest tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import AmpError
from amp_transpiler.graph.dtypes import FLOAT16, LowFormat

__all__ = [
    "INFINITY_OF_MASKS",
    "ConstantRange",
    "computed_tensor",
    "constant_range",
    "convert_array",
    "limited_array",
    "lost_bound",
    "low_tensor",
    "read",
]

Result = TypeVar("Result")

_BLOCK = 1 << 20  # elements looked at in one go: 4 MB of float32
_LAZY_BYTES = 1 << 16  # smaller tensors are converted at once
INFINITY_OF_MASKS = 1e6  # they use 1e6, 1e9 or the largest float32
_LEAST_NORMAL = 2.0**-14  # of float16
_MANY = 1 << 12  # elements from which, and by which, it is asked how many are tiny
_TINY_SHARE = 0.2  # of the elements from which another way is the faster one
_SAFE_MAGNITUDE = 2.0**-10  # a tensor reaching this cannot lose a noticeable part of its norm to underflow


@dataclasses.dataclass(frozen=True, slots=True)
class ConstantRange:
    """The effect of rounding a float32 constant to a low format.

    Attributes:
        largest: the largest finite magnitude.
        overflows: a finite element would become infinite.
        loss: norm of the rounding error over norm of the tensor; measured only where underflow could matter, else 0.
        stands_for_infinity: what overflows is negative by orders of magnitude, as the "minus infinity" of masks is.
    """

    largest: float
    overflows: bool
    loss: float
    stands_for_infinity: bool = False


def read(tensor: ir.TensorProtocol, function: Callable[[np.ndarray], Result]) -> Result:
    """Return what `function` makes of the tensor's values, and unmap the tensor's file again.

    `function` must not keep the array, nor return a view of it: a map cannot be released while a view lives.
    """
    result = function(tensor.numpy())
    if isinstance(tensor, ir.ExternalTensor):
        tensor.release()
    return result


def constant_range(tensor: ir.TensorProtocol, low: LowFormat) -> ConstantRange:
    """Measure what rounding `tensor` (float32) to `low` would do."""
    return read(tensor, lambda array: _range(array.reshape(-1), low))


def _range(flat: np.ndarray, low: LowFormat) -> ConstantRange:
    largest = max((_largest(flat[at : at + _BLOCK]) for at in range(0, flat.size, _BLOCK)), default=0.0)
    with np.errstate(over="ignore"):
        overflows = bool(np.isinf(np.float32(largest).astype(low.numpy)))
    loss = _loss(flat, low) if 0.0 < largest < _SAFE_MAGNITUDE else 0.0
    return ConstantRange(largest, overflows, loss, overflows and _stands_for_infinity(flat, low))


def _stands_for_infinity(flat: np.ndarray, low: LowFormat) -> bool:
    for at in range(0, flat.size, _BLOCK):
        block = flat[at : at + _BLOCK]
        if ((block > low.max) | ((block < -low.max) & (block > -INFINITY_OF_MASKS))).any():
            return False
    return True


def _largest(block: np.ndarray) -> float:
    low, high = float(block.min()), float(block.max())
    if np.isfinite(low) and np.isfinite(high):
        return max(-low, high)
    finite = np.abs(block[np.isfinite(block)])
    return float(finite.max()) if finite.size else 0.0


def _loss(flat: np.ndarray, low: LowFormat) -> float:
    error = norm = 0.0
    for at in range(0, flat.size, _BLOCK):
        block = flat[at : at + _BLOCK].astype(np.float64)
        block = block[np.isfinite(block)]
        rounded = block.astype(np.float32).astype(low.numpy).astype(np.float64)
        error += float(np.square(block - rounded).sum())
        norm += float(np.square(block).sum())
    return float(np.sqrt(error / norm)) if norm else 0.0


def convert_array(array: np.ndarray, low: LowFormat) -> np.ndarray:
    """Round `array` to `low`, to nearest, ties to even.

    A finite number does not become infinite: it takes the largest magnitude instead; such constants are the "minus
    infinity" of masks. A single number that is not zero does not become zero: it takes the smallest magnitude; such
    constants are the epsilons that keep a division finite.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = _with_tiny(array) if _is_tiny(array, low) else array.astype(low.numpy)
        if _has_nonfinite(rounded, low):
            overflown = np.isinf(rounded) & np.isfinite(array)
            rounded = np.where(overflown, np.copysign(low.max, array).astype(low.numpy), rounded)
    if array.size == 1 and not rounded.any() and array.any():
        rounded = np.copysign(np.full(array.shape, low.smallest), array).astype(low.numpy)
    return np.asarray(rounded)


def _is_tiny(array: np.ndarray, low: LowFormat) -> bool:
    """Whether many numbers are below float16's normal ones: numpy takes thirty times as long for each of them."""
    if low is not FLOAT16 or array.dtype != np.float32 or array.size < _MANY:
        return False
    some = np.abs(array.ravel(order="K")[:: array.size // _MANY])
    return bool(np.count_nonzero((some > 0.0) & (some < _LEAST_NORMAL)) > some.size * _TINY_SHARE)


def _with_tiny(array: np.ndarray) -> np.ndarray:
    """Round float32 to float16, what is below the normal numbers as multiples of the smallest one."""
    tiny = np.abs(array) < _LEAST_NORMAL
    numbers = np.where(tiny, array, np.float32(0.0))
    multiples = np.rint(np.abs(numbers) * np.float32(1.0 / FLOAT16.smallest)).astype(np.uint16)
    signs = np.left_shift(np.signbit(numbers), 15, dtype=np.uint16)
    others = np.where(tiny, np.float32(0.0), array).astype(np.float16)
    return np.where(tiny, multiples | signs, others.view(np.uint16)).view(np.float16)


def _has_nonfinite(rounded: np.ndarray, low: LowFormat) -> bool:
    """Whether any element is infinite or NaN, read from its bits: several times faster than asking each element."""
    if not rounded.size:
        return False
    infinity = int(np.asarray(np.inf, low.numpy).view(np.uint16))
    negative, positive = rounded.view(np.uint16).max(), rounded.view(np.int16).max()
    return bool(positive >= infinity or negative >= infinity | 0x8000)


def low_tensor(tensor: ir.TensorProtocol, low: LowFormat, name: str) -> ir.TensorProtocol:
    """Return `tensor` (float32) in `low`, converted when it is read; small ones at once."""
    return computed_tensor(tensor, lambda array: convert_array(array, low), low.dtype, name)


def lost_bound(array: np.ndarray, low: LowFormat, most: float) -> tuple[float, float] | None:
    """Return the first number that is another bound in `low`, and what it becomes; None if there is none.

    That is one that changes by more than a share `most`, or that becomes one or minus one: `1 - 1e-6` keeps a
    logarithm of the difference finite. A number that becomes infinite is none: it still bounds nothing.

    Args:
        array: the float32 bounds.
        low: the low format.
        most: the largest share of a number that may be lost.
    """
    flat = array.reshape(-1)
    for at in range(0, flat.size, _BLOCK):
        block = flat[at : at + _BLOCK]
        block = block[np.isfinite(block)]
        # One by one: a single number that is not zero does not become zero, but is another number all the same.
        with np.errstate(over="ignore", under="ignore"):
            rounded = block.astype(low.numpy).astype(np.float32)
        beside_one = (np.abs(rounded) == 1.0) & (rounded != block)
        lost = np.isfinite(rounded) & ((np.abs(rounded - block) > most * np.abs(block)) | beside_one)
        if lost.any():
            number = block[int(np.argmax(lost))]
            return float(number), float(convert_array(np.array([number]), low)[0])
    return None


def limited_array(array: np.ndarray, low: LowFormat) -> np.ndarray:
    """Return `array` with what is finite and beyond the range of `low` limited to half of its largest magnitude."""
    beyond = np.isfinite(array) & (np.abs(array) > low.max)
    return np.where(beyond, np.copysign(np.float32(low.max / 2), array), array)


def computed_tensor(
    source: ir.TensorProtocol, compute: Callable[[np.ndarray], np.ndarray], dtype: ir.DataType, name: str
) -> ir.TensorProtocol:
    """Return what `compute` makes of the values of `source`: small ones now, large ones each time they are asked for.

    Args:
        source: where the values come from.
        compute: keeps the shape; must not return a view of its argument.
        dtype: the element type that it gives.
        name: the new tensor's.
    """
    if source.nbytes <= _LAZY_BYTES:
        return ir.Tensor(read(source, compute), dtype=dtype, name=name)
    return _ComputedTensor(source, compute, dtype, name)


class _ComputedTensor(ir.LazyTensor):
    """A tensor computed from another each time it is asked for, so that none is held.

    `onnx_ir` believes what a lazy tensor declares, so type and shape are checked here. `streamed` tells that the source
    lies in a file of its own.
    """

    def __init__(
        self, source: ir.TensorProtocol, compute: Callable[[np.ndarray], np.ndarray], dtype: ir.DataType, name: str
    ) -> None:
        self.streamed = isinstance(source, ir.ExternalTensor) or getattr(source, "streamed", False)
        shape = tuple(source.shape.numpy())

        def checked() -> ir.TensorProtocol:
            array = read(source, compute)
            if array.shape != shape or array.dtype != dtype.numpy():
                raise AmpError(f"weight '{name}' became {array.dtype}{array.shape}, declared {dtype.name}{shape}")
            return ir.Tensor(array, dtype=dtype, name=name)

        super().__init__(checked, dtype=dtype, shape=ir.Shape(shape), name=name)
