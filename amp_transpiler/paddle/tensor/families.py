"""Builds functions from rows: those that are one ONNX operator on one operand or two."""

from __future__ import annotations

from typing import Protocol, TypeVar

import onnx_ir as ir

from amp_transpiler.paddle.building import Number, as_dtype, binary, emit, floats
from amp_transpiler.program.program import Variable

__all__ = ["Binary", "Unary", "of_one", "of_two"]


class Unary(Protocol):
    """A function of one variable, element by element."""

    def __call__(self, x: Variable, name: str | None = None) -> Variable:
        """Append the operator; `name` has no effect."""


class Binary(Protocol):
    """A function of two operands that broadcast, of which one may be a number or an array."""

    def __call__(self, x: Number, y: Number, name: str | None = None) -> Variable:
        """Append the operator; `name` has no effect."""


_NO_BFLOAT16 = {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Round", "Sin", "Sinh", "Tan"}
# These take bfloat16 from opset 22 on; before, they compute in float32 for it.

_Function = TypeVar("_Function", Unary, Binary)


def of_one(label: str, op_type: str, meaning: str, *, whole: bool = False) -> Unary:
    """Return a function of one operator.

    Args:
        label: its name.
        op_type: the operator.
        meaning: its docstring.
        whole: whether integers stay integers; otherwise they are cast to float32, as in Paddle.
    """

    def function(x: Variable, name: str | None = None) -> Variable:
        del name
        operand = x if whole else floats(x)
        if op_type in _NO_BFLOAT16 and operand.value.dtype == ir.DataType.BFLOAT16:
            return as_dtype(emit(op_type, [as_dtype(operand, ir.DataType.FLOAT)]), ir.DataType.BFLOAT16)
        return emit(op_type, [operand])

    return _labelled(function, label, meaning)


def of_two(label: str, op_type: str, meaning: str) -> Binary:
    """Return a function of one operator on two operands, which meet in one element type."""

    def function(x: Number, y: Number, name: str | None = None) -> Variable:
        del name
        return binary(op_type, x, y)

    return _labelled(function, label, meaning)


def _labelled(function: _Function, label: str, meaning: str) -> _Function:
    for attribute, text in (("__name__", label), ("__qualname__", label), ("__doc__", meaning)):
        setattr(function, attribute, text)
    return function
