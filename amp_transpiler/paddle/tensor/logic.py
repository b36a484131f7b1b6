"""Compares numbers, and computes with truth values and bits."""
# ruff: noqa: A001  # Paddle's names

from __future__ import annotations

from typing import overload

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.paddle.building import (
    Axes,
    Number,
    accept_name,
    axes_of,
    binary,
    builder_of,
    emit,
    in_one_type,
    wrap,
)
from amp_transpiler.paddle.tensor.families import of_two
from amp_transpiler.program.program import Variable

__all__ = [
    "all",
    "allclose",
    "any",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "eq",
    "equal",
    "equal_all",
    "ge",
    "greater",
    "greater_equal",
    "greater_than",
    "gt",
    "is_empty",
    "isclose",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "le",
    "less",
    "less_equal",
    "less_than",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lt",
    "masked_fill",
    "ne",
    "not_equal",
    "signbit",
    "where",
]

equal = of_two("equal", "Equal", "`x == y`, as bool.")
greater_equal = of_two("greater_equal", "GreaterOrEqual", "`x >= y`, as bool.")
greater_than = of_two("greater_than", "Greater", "`x > y`, as bool.")
less_equal = of_two("less_equal", "LessOrEqual", "`x <= y`, as bool.")
less_than = of_two("less_than", "Less", "`x < y`, as bool.")
eq, ge, gt, le, lt = equal, greater_equal, greater_than, less_equal, less_than
greater, less = greater_than, less_than


def not_equal(x: Number, y: Number) -> Variable:
    """Return `x != y`, as bool."""
    return emit("Not", [binary("Equal", x, y)])


ne = not_equal


# ---- truth values; what is not 0 is true ----


def logical_and(x: Variable, y: Variable) -> Variable:
    """Return whether both are true."""
    return _logical("And", x, y)


def logical_or(x: Variable, y: Variable) -> Variable:
    """Return whether at least one of them is true."""
    return _logical("Or", x, y)


def logical_xor(x: Variable, y: Variable) -> Variable:
    """Return whether exactly one of them is true."""
    return _logical("Xor", x, y)


def logical_not(x: Variable) -> Variable:
    """Return whether `x` is false."""
    return emit("Not", [_truth(x)])


def _logical(op_type: str, x: Variable, y: Variable) -> Variable:
    return emit(op_type, [_truth(x), _truth(y)])


def _truth(x: Variable) -> Variable:
    return wrap(x, builder_of(x).cast(x.value, ir.DataType.BOOL))


def all(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return whether all elements along `axis`, or all of `x`, are true."""
    return _counted("ReduceMin", x, axis, keepdim)


def any(x: Variable, axis: Axes = None, keepdim: bool = False) -> Variable:
    """Return whether any element along `axis`, or any of `x`, is true."""
    return _counted("ReduceMax", x, axis, keepdim)


def _counted(op_type: str, x: Variable, axis: Axes, keepdim: bool) -> Variable:
    b = builder_of(x)
    numbers = b.cast(_truth(x).value, ir.DataType.INT32)  # no reduction takes bool before opset 20
    reduced = b.reduce(op_type, numbers, None if axis is None else axes_of(x, axis), keepdims=keepdim)
    return wrap(x, b.cast(reduced, ir.DataType.BOOL))


@overload
def where(condition: Variable, x: Number, y: Number) -> Variable: ...
@overload
def where(condition: Variable, x: None = None, y: None = None) -> tuple[Variable, ...]: ...
def where(condition: Variable, x: Number | None = None, y: Number | None = None) -> Variable | tuple[Variable, ...]:
    """Return `x` where the bool `condition` is true, `y` elsewhere; without both, the positions where it is true.

    Raises:
        InputError: only one of `x` and `y` is given.
    """
    if (x is None) != (y is None):
        raise InputError("where: give both x and y, or neither")
    b = builder_of(condition)
    if x is None or y is None:
        positions = b.op("NonZero", [_truth(condition).value])
        parts = b.nodes("Split", [positions], {"axis": 0, "num_outputs": condition.ndim}, outputs=condition.ndim)
        return tuple(wrap(condition, b.squeeze(part, [0])) for part in parts)
    return _chosen(_truth(condition), x, y)


def _chosen(condition: Variable, x: Number, y: Number) -> Variable:
    """Append `Where` in the type that both choices meet in; a number takes the type of the other choice."""
    b = builder_of(condition, *(item for item in (x, y) if isinstance(item, Variable)))
    if isinstance(x, Variable) and isinstance(y, Variable):
        first, second = in_one_type(x, y)
        return wrap(condition, b.where(condition.value, first, second))
    if not isinstance(x, Variable) and not isinstance(y, Variable):
        return wrap(condition, b.where(condition.value, b.constant(np.asarray(x)), b.constant(np.asarray(y))))
    like = next(item.value for item in (x, y) if isinstance(item, Variable))
    sides = [item.value if isinstance(item, Variable) else b.constant(item, like.dtype) for item in (x, y)]
    return wrap(condition, b.where(condition.value, *sides))


def masked_fill(x: Variable, mask: Variable, value: Number) -> Variable:
    """Return `value` where the bool `mask` is true, `x` elsewhere."""
    b = builder_of(x, mask)
    fill = b.cast(value.value, x.value.dtype) if isinstance(value, Variable) else b.constant(value, x.value.dtype)
    return wrap(x, b.where(_truth(mask).value, fill, x.value))


# ---- numbers that are none, or nearly equal ----


def isnan(x: Variable) -> Variable:
    """Return whether each element is NaN."""
    return emit("IsNaN", [x]) if is_float_tensor(x.value) else _nowhere(x)


def isinf(x: Variable) -> Variable:
    """Return whether each element is infinite."""
    return emit("IsInf", [x]) if is_float_tensor(x.value) else _nowhere(x)


def isposinf(x: Variable) -> Variable:
    """Return whether each element is infinite and positive."""
    return emit("IsInf", [x], {"detect_negative": 0}) if is_float_tensor(x.value) else _nowhere(x)


def isneginf(x: Variable) -> Variable:
    """Return whether each element is infinite and negative."""
    return emit("IsInf", [x], {"detect_positive": 0}) if is_float_tensor(x.value) else _nowhere(x)


def isfinite(x: Variable) -> Variable:
    """Return whether each element is neither NaN nor infinite."""
    if not is_float_tensor(x.value):
        return emit("Not", [_nowhere(x)])
    return emit("Not", [emit("Or", [isnan(x), isinf(x)])])


def isreal(x: Variable) -> Variable:
    """Return true everywhere: no variable is complex."""
    return emit("Not", [_nowhere(x)])


def _nowhere(x: Variable) -> Variable:
    return wrap(x, builder_of(x).zeros_like(x.value, ir.DataType.BOOL))


def signbit(x: Variable) -> Variable:
    """Return whether each element is negative; -0 counts as 0."""
    return binary("Less", x, 0)


def isclose(x: Variable, y: Variable, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Variable:
    """Return whether `|x - y| <= atol + rtol * |y|`; equal infinities are close, and NaN to NaN with `equal_nan`."""
    values = in_one_type(x, y)
    b = builder_of(x)
    first, second = (b.cast(b.high(v), ir.DataType.FLOAT) if not is_float_tensor(v) else b.high(v) for v in values)
    near = b.compare(
        "LessOrEqual", b.op("Abs", [b.sub(first, second)]), b.add(b.mul(b.op("Abs", [second]), rtol), atol)
    )
    finite = b.op("Not", [b.op("IsInf", [second])])  # an infinite bound would let everything pass
    near = b.op("Or", [b.op("And", [near, finite]), b.compare("Equal", first, second)])
    if equal_nan:
        near = b.op("Or", [near, b.op("And", [b.op("IsNaN", [first]), b.op("IsNaN", [second])])])
    return wrap(x, near)


def allclose(x: Variable, y: Variable, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Variable:
    """Return whether all elements are close; see `isclose`."""
    return all(isclose(x, y, rtol, atol, equal_nan))


def equal_all(x: Variable, y: Variable) -> Variable:
    """Return whether all elements are equal; False for variables of shapes that cannot be equal."""
    b = builder_of(x, y)
    differ = x.ndim != y.ndim or not _may_be_equal(x, y)
    return wrap(x, b.constant(np.array(False))) if differ else all(equal(x, y))


def _may_be_equal(x: Variable, y: Variable) -> bool:
    return not [1 for a, b in zip(x.shape, y.shape, strict=True) if -1 not in (a, b) and a != b]


def isin(x: Variable, test_x: Variable, assume_unique: bool = False, invert: bool = False) -> Variable:
    """Return whether each element of `x` is one of those of `test_x`, or none of them with `invert`.

    `assume_unique` has no effect.
    """
    del assume_unique
    b = builder_of(x, test_x)
    element = wrap(x, b.unsqueeze(x.value, [x.ndim]))
    contained = any(equal(element, wrap(x, b.reshape(test_x.value, [-1]))), axis=-1)
    return logical_not(contained) if invert else contained


def is_empty(x: Variable) -> Variable:
    """Return whether `x` has no element."""
    b = builder_of(x)
    return wrap(x, b.compare("Equal", b.op("Size", [x.value]), 0))


# ---- bits of integers; for truth values, the logical functions ----


def bitwise_and(x: Variable, y: Variable) -> Variable:
    """Return the bits that both have."""
    return _bits("And", x, y)


def bitwise_or(x: Variable, y: Variable) -> Variable:
    """Return the bits that at least one of them has."""
    return _bits("Or", x, y)


def bitwise_xor(x: Variable, y: Variable) -> Variable:
    """Return the bits that exactly one of them has."""
    return _bits("Xor", x, y)


def bitwise_not(x: Variable) -> Variable:
    """Return the bits that `x` does not have."""
    return emit("Not" if x.value.dtype == ir.DataType.BOOL else "BitwiseNot", [x])


bitwise_invert = bitwise_not


def _bits(kind: str, x: Variable, y: Variable) -> Variable:
    values = in_one_type(x, y)
    prefix = "" if values[0].dtype == ir.DataType.BOOL else "Bitwise"
    return wrap(x, builder_of(x).op(prefix + kind, values))


def bitwise_left_shift(x: Variable, y: Variable, is_arithmetic: bool = True) -> Variable:
    """Return `x * 2^y` for integers. `is_arithmetic` has no effect on a shift to the left."""
    del is_arithmetic
    a, b = in_one_type(x, y)
    builder = builder_of(x)
    return wrap(x, builder.mul(a, _power_of_two(x, b)))


def bitwise_right_shift(x: Variable, y: Variable, is_arithmetic: bool = True) -> Variable:
    """Return `x / 2^y` for integers, rounded down.

    Raises:
        InputError: `is_arithmetic` is False: ONNX cannot read signed integers as unsigned ones.
    """
    if not is_arithmetic:
        raise InputError("bitwise_right_shift: is_arithmetic=False is not available: cast to unsigned integers first")
    a, b = in_one_type(x, y)
    builder, divisor = builder_of(x), _power_of_two(x, b)
    return wrap(x, builder.div(builder.sub(a, builder.op("Mod", [a, divisor])), divisor))


def _power_of_two(like: Variable, exponent: ir.Value) -> ir.Value:
    b = builder_of(like)
    return b.cast(b.op("Pow", [b.constant(np.array(2, np.int64)), b.cast(exponent, ir.DataType.INT64)]), exponent.dtype)


accept_name(globals(), __all__)
