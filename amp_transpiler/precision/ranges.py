"""Measures the damage that rounding to a low format does to constants."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import constant_range, lost_bound, read
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import FLOAT16, LowFormat
from amp_transpiler.ops.dtype_attributes import tensor_of
from amp_transpiler.ops.kinds import MOVEMENT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.reasons import Reason

__all__ = ["RangeFaults", "range_fault"]

_SMALL_LOSS = 2.0**-7  # of a constant's norm: if rounding loses more, the nodes that read it stay float32
_BOUND_ATTRIBUTES = {"Clip": ("min", "max")}


@dataclasses.dataclass(frozen=True, slots=True)
class _Fault:
    """Why not to round a constant.

    Attributes:
        reason: why not; None if nothing speaks against it.
        overflows: it would become infinite.
        hides: it does so as the "minus infinity" of masks.
    """

    reason: Reason | None = None
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
        self._bounds: dict[int, tuple[ir.TensorProtocol, Reason | None]] = {}

    def of(self, value: ir.Value | None) -> Reason | None:
        """Say why a constant must not be rounded; None if it may be, or if the value is no float32 constant."""
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

    def of_bound(self, value: ir.Value | None) -> Reason | None:
        """Say why a bound, or one side of a comparison, must not be rounded; None if it may be.

        One that becomes infinite keeps its meaning. One that becomes another number does not: a logarithm of what
        `Clip(x, 1e-10)` lets pass is another one where that is 6e-8.
        """
        tensor = _moved_constant(value) if self._strict and self._low.name == "float16" else None
        if tensor is None or not tensor.dtype.is_floating_point():
            return None
        if id(tensor) not in self._bounds:
            lost = read(tensor, lambda array: lost_bound(array.astype(np.float32), self._low, _SMALL_LOSS))
            self._bounds[id(tensor)] = (tensor, None if lost is None else self._lost(*lost))
        return self._bounds[id(tensor)][1]

    def _lost(self, bound: float, rounded: float) -> Reason:
        return Reason("bound", {"bound": float(bound), "rounded": float(rounded), "low": self._low.name})

    def of_bound_attributes(self, node: ir.Node) -> Reason | None:
        """Say the same of bounds that are attributes, as those of Clip were before opset 11."""
        for name in _BOUND_ATTRIBUTES.get(node.op_type, ()) if self._strict and self._low.name == "float16" else ():
            if name in node.attributes:
                number = np.array([node.attributes[name].as_float()], np.float32)
                if (lost := lost_bound(number, self._low, _SMALL_LOSS)) is not None:
                    return self._lost(*lost)
        return None

    def _fault(self, value: ir.Value | None) -> _Fault:
        tensor = constant_of(value)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            return _HARMLESS
        if id(tensor) not in self._known:  # the tensor is kept too: were it freed, another could get its id
            self._known[id(tensor)] = (tensor, _fault(tensor, self._low, self._strict))
        return self._known[id(tensor)][1]


def _moved_constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the constant that a value has the numbers of, however they are moved, repeated or cast; None for none."""
    while value is not None and (tensor := constant_of(value)) is None:
        node = value.producer()
        if node is None or not is_standard(node):
            return None
        if node.op_type == "ConstantOfShape":
            return tensor_of(node.attributes["value"]) if "value" in node.attributes else None
        value = node.inputs[0] if node.op_type in MOVEMENT or node.op_type in ("Cast", "CastLike") else None
    return None if value is None else tensor


def range_fault(tensor: ir.TensorProtocol, low: LowFormat, strict: bool = True) -> Reason | None:
    """Say why the float32 `tensor` must not be rounded to `low`; None if it may be. bfloat16 has float32's range."""
    return _fault(tensor, low, strict).reason


def _fault(tensor: ir.TensorProtocol, low: LowFormat, strict: bool) -> _Fault:
    if low.name != "float16" or tensor.size == 0:
        return _HARMLESS
    measured = constant_range(tensor, low)
    if measured.overflows and (strict or not measured.stands_for_infinity):
        values = {"largest": float(measured.largest), "low": low.name, "most": low.max}
        return _Fault(Reason("constant-beyond-range", values), overflows=True, hides=measured.stands_for_infinity)
    if measured.loss > _SMALL_LOSS and (strict or tensor.size > 1):
        values = {"largest": float(measured.largest), "loss": float(measured.loss), "low": low.name}
        return _Fault(Reason("constant-loses-digits", values))
    return _HARMLESS
