"""The damage that rounding to a low format does to constants."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.graph.constants import constant_range
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import FLOAT16, LowFormat

__all__ = ["RangeFaults", "range_fault"]

_SMALL_LOSS = 2.0**-7  # of a constant's norm: if rounding loses more, the nodes that read it stay float32


@dataclasses.dataclass(frozen=True, slots=True)
class _Fault:
    """The reason not to round a constant; an empty one if there is none.

    Attributes:
        reason: in one sentence.
        overflows: it would become infinite.
        hides: it does so as the "minus infinity" of masks.
    """

    reason: str = ""
    overflows: bool = False
    hides: bool = False


_HARMLESS = _Fault()


class RangeFaults:
    """Measures each constant once and remembers the result: reading large weights takes time.

    Args:
        low: the low format.
        strict: every constant that the format cannot hold counts. Otherwise two kinds do not: the "minus infinity" of
            masks, which becomes the largest magnitude, and single numbers, which lose digits.
    """

    def __init__(self, low: LowFormat, strict: bool = True) -> None:
        self._low = low
        self._strict = strict
        self._known: dict[int, tuple[ir.TensorProtocol, _Fault]] = {}
        self._largest: dict[int, tuple[ir.TensorProtocol, float]] = {}

    def of(self, value: ir.Value | None) -> str:
        """Say why a constant must not be rounded; empty if it may be, or if the value is no float32 constant."""
        return self._fault(value).reason

    def overflows(self, value: ir.Value | None) -> bool:
        """Whether a constant must not be rounded because it would become infinite."""
        return self._fault(value).overflows

    def hides(self, value: ir.Value | None) -> bool:
        """Whether a constant is the "minus infinity" of masks, which float16 cannot hold."""
        tensor = constant_of(value)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size == 0:
            return False
        if self._low.name == "float16":
            return self._fault(value).hides
        return constant_range(tensor, FLOAT16).stands_for_infinity

    def largest(self, value: ir.Value | None) -> float:
        """Return the largest finite magnitude of a float32 constant; 0 for another value."""
        tensor = constant_of(value)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            return 0.0
        if id(tensor) not in self._largest:
            self._largest[id(tensor)] = (tensor, constant_range(tensor, self._low).largest)
        return self._largest[id(tensor)][1]

    def _fault(self, value: ir.Value | None) -> _Fault:
        tensor = constant_of(value)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            return _HARMLESS
        if id(tensor) not in self._known:  # the tensor is kept too: were it freed, another could get its id
            self._known[id(tensor)] = (tensor, _fault(tensor, self._low, self._strict))
        return self._known[id(tensor)][1]


def range_fault(tensor: ir.TensorProtocol, low: LowFormat, strict: bool = True) -> str:
    """Say why the float32 `tensor` must not be rounded to `low`; empty if it may be. bfloat16 has float32's range."""
    return _fault(tensor, low, strict).reason


def _fault(tensor: ir.TensorProtocol, low: LowFormat, strict: bool) -> _Fault:
    if low.name != "float16" or tensor.size == 0:
        return _HARMLESS
    measured = constant_range(tensor, low)
    if measured.overflows and (strict or not measured.stands_for_infinity):
        reason = f"constant reaches {measured.largest:.3g}, beyond {low.name}'s {low.max:g}"
        return _Fault(reason, overflows=True, hides=measured.stands_for_infinity)
    if measured.loss > _SMALL_LOSS and (strict or tensor.size > 1):
        return _Fault(f"constant of at most {measured.largest:.3g} loses {measured.loss:.0%} to rounding in {low.name}")
    return _HARMLESS
