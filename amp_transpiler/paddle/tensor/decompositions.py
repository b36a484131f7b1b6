"""Computes inverses, solutions, decompositions and powers of matrices, batched along all axes but the last two.

ONNX has no operators for them: an elimination, Cholesky's algorithm or, for what is in `spectra`, Jacobi's rotations
run in a Loop, which suits small matrices (up to some hundred rows; up to about 64 in `spectra`). All is computed in
float64, whatever the level of mixed precision. No gradient goes through a loop: each result gets the derivative that is
known, written as a product with `change_of`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.building import accept_name, as_dtype, builder_of, choice, emit, wrap
from amp_transpiler.paddle.framework.control_flow import while_loop
from amp_transpiler.paddle.tensor.creation import eye, tril, triu
from amp_transpiler.paddle.tensor.linalg import matmul
from amp_transpiler.paddle.tensor.logic import where
from amp_transpiler.paddle.tensor.reduction import sum as sum_of
from amp_transpiler.paddle.tensor.shaping import matrix_transpose, stack
from amp_transpiler.program.program import Variable

__all__ = [
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "det",
    "inv",
    "inverse",
    "matrix_exp",
    "matrix_power",
    "qr",
    "slogdet",
    "solve",
    "triangular_solve",
]

_TINY = 1e-300
_SQUARINGS, _TERMS = 12, 14


_Function = TypeVar("_Function", bound=Callable[..., Any])


def in_float64(count: int = 1) -> Callable[[_Function], _Function]:
    """Let a function of so many matrices compute in float64, and return floats in the type of the first."""

    def wrapped(function: _Function) -> _Function:
        @functools.wraps(function)
        def computed(*args: Any, **kwargs: Any) -> Any:
            for x in args[:count]:
                if not isinstance(x, Variable) or x.ndim < 2 or not is_float_tensor(x.value):
                    raise InputError(f"{function.__name__}: expected matrices of floats, got {x!r}")
            dtype = args[0].dtype
            with disable_amp():
                result = function(*(as_dtype(x, "float64") for x in args[:count]), *args[count:], **kwargs)
                parts = result if isinstance(result, tuple) else (result,)
                parts = tuple(as_dtype(part, dtype) if part.dtype == "float64" else part for part in parts)
            return parts if isinstance(result, tuple) else parts[0]

        return cast("_Function", computed)

    return wrapped


def constant(x: Variable) -> Variable:
    """Return a copy of `x` that no gradient passes through."""
    copy = emit("Identity", [x])
    copy.stop_gradient = True
    return copy


def change_of(x: Variable) -> Variable:
    """Return zeros that have the derivative of `x`; a product with them makes a result depend on `x`."""
    return x - constant(x)


def _numbers(x: Variable, axis: int) -> ir.Value:
    """Return 0, 1, ... along an axis of `x`."""
    b, size = builder_of(x), x.shape[axis]
    if size >= 0:
        return b.constant(np.arange(size))
    last = b.squeeze(b.slice(b.shape(x.value), [axis % x.ndim], [axis % x.ndim + 1], [0]), [0])
    return b.op("Range", [b.constant(0), last, b.constant(1)])


def unit_like(like: Variable) -> Variable:
    """Return the unit matrix in the shape of `like`, which is square."""
    b = builder_of(like)
    rows, columns = b.unsqueeze(_numbers(like, -2), [1]), _numbers(like, -1)
    unit = b.cast(b.compare("Equal", rows, columns), like.value.dtype)
    return wrap(like, b.expand_like(unit, like.value))


def _at(x: Variable, step: Variable, axis: int) -> Variable:
    """Return the slice of `x` along an axis at a step of a loop; the axis stays, with size 1."""
    b = builder_of(x)
    return wrap(x, b.op("Gather", [x.value, b.reshape(step.value, [1])], {"axis": axis % x.ndim}))


def _repeated(
    x: Variable, body: Callable[[Variable, list[Variable]], Sequence[Variable]], states: Sequence[Variable]
) -> list[Variable]:
    """Call a body for each row of `x`, without gradients."""
    b = builder_of(x)
    last = b.slice(b.shape(x.value), [x.ndim - 2], [x.ndim - 1], [0])
    count, first = wrap(x, b.squeeze(last, [0])), wrap(x, b.constant(np.array(0, np.int64)))
    results = while_loop(
        lambda step, *_: step < count, lambda step, *now: [step + 1, *body(step, list(now))], [first, *states]
    )
    return [constant(state) for state in results[1:]]


# ---- elimination ----


def _eliminated(x: Variable) -> tuple[Variable, Variable, Variable]:
    """Return the inverse of `x`, and of its determinant the logarithm of the size and the sign; no gradients.

    Gauss's and Jordan's elimination. The pivot of each step is the largest element of its column in a row that was none
    before; rows stay in place, and are put in order at the end.
    """
    b = builder_of(x)
    unit = unit_like(x)
    both = wrap(x, b.concat([x.value, unit.value], x.ndim - 1))
    free = sum_of(unit, -1, keepdim=True)  # 1 for rows that were no pivot yet
    order = wrap(x, b.zeros_like(x.value))  # row i: 1 at the row that was the pivot of step i
    total = sum_of(order, [-2, -1], keepdim=True)
    sign = total + 1.0
    rows = wrap(x, b.unsqueeze(_numbers(x, -2), [1]))

    def step(place: Variable, now: list[Variable]) -> list[Variable]:
        both, free, order, total, sign = now
        column = _at(both, place, -1)
        size = where(free > 0.5, emit("Abs", [column]), -1.0)
        best = wrap(x, b.op("ArgMax", [size.value], {"axis": x.ndim - 2}))
        chosen = (rows == best).astype("float64")
        line = sum_of(both * chosen, -2, keepdim=True)
        pivot = _at(line, place, -1)
        before = sum_of(free * (rows < best).astype("float64"), -2, keepdim=True)
        flip = 1.0 - 2.0 * (before - 2.0 * emit("Floor", [before * 0.5]))
        safe = where(pivot == 0.0, _TINY, pivot)
        here = (rows == place).astype("float64")
        return [
            both + (chosen - column) * (line / safe),
            free - chosen,
            order + here * matrix_transpose(chosen),
            total + emit("Log", [emit("Abs", [pivot])]),
            sign * emit("Sign", [pivot]) * flip,
        ]

    both, _, order, total, sign = _repeated(x, step, [both, free, order, total, sign])
    halves = b.nodes("Split", [both.value], {"axis": x.ndim - 1, "num_outputs": 2}, outputs=2)
    result = matmul(order, wrap(x, halves[1]))
    result.value.shape = x.value.shape
    return result, total, sign


def _inverse(x: Variable) -> Variable:
    """Return the inverse, with its derivative; one step of Newton's method removes errors of rounding."""
    near = _eliminated(constant(x))[0]
    return near + matmul(near, unit_like(x) - matmul(x, near))


@in_float64()
def inv(x: Variable) -> Variable:
    """Return the inverse of square matrices. For one that has none, the numbers are very large, infinite or NaN."""
    return _inverse(x)


inverse = inv


def _solution(x: Variable, y: Variable) -> Variable:
    return matmul(_inverse(x), y)


@in_float64(2)
def _solved(x: Variable, y: Variable) -> Variable:
    return _solution(x, y)


def solve(x: Variable, y: Variable, left: bool = True) -> Variable:
    """Return the `z` of `x @ z = y`, or of `z @ x = y` unless `left`; `y` may be a vector."""
    if y.ndim == 1:
        b = builder_of(y)
        column = wrap(y, b.unsqueeze(y.value, [1 if left else 0]))
        return wrap(y, b.squeeze(solve(x, column, left).value, [x.ndim - 1 if left else x.ndim - 2]))
    if not left:
        return matrix_transpose(_solved(matrix_transpose(x), matrix_transpose(y)))
    return _solved(x, y)


def triangular_solve(
    x: Variable, y: Variable, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Variable:
    """Return the `z` of `x @ z = y`, where only a triangle of `x` counts.

    Args:
        x: square matrices.
        y: the right side.
        upper: whether the upper triangle counts; else the lower one.
        transpose: whether `x` is transposed first.
        unitriangular: whether the diagonal counts as ones.
    """
    part = triu(x) if upper else tril(x)
    if unitriangular:
        unit = unit_like(x)
        part = part * (1.0 - unit) + unit
    return _solved(matrix_transpose(part) if transpose else part, y)


@in_float64()
def det(x: Variable) -> Variable:
    """Return the determinants of square matrices."""
    total, sign = _log_determinant(x)
    return sign * emit("Exp", [total])


@in_float64()
def slogdet(x: Variable) -> Variable:
    """Return the signs of the determinants, and the logarithms of their sizes, along a new first axis."""
    total, sign = _log_determinant(x)
    return stack([sign, total], 0)


def _log_determinant(x: Variable) -> tuple[Variable, Variable]:
    """Return the logarithms of the sizes of the determinants, with their derivatives, and the signs."""
    near, total, sign = _eliminated(constant(x))
    b = builder_of(x)
    total, sign = (wrap(x, b.squeeze(part.value, [x.ndim - 2, x.ndim - 1])) for part in (total, sign))
    finite = where(emit("Abs", [near]) < math.inf, near, 0.0)  # no derivative is known where there is no inverse
    return total + sum_of(matrix_transpose(finite) * change_of(x), [-2, -1]), sign


# ---- Cholesky ----


def _factor(x: Variable) -> Variable:
    """Return the lower factor, with its derivative `L phi(L^-1 dX L^-T)`.

    phi takes the lower triangle and halves its diagonal.
    """
    b = builder_of(x)
    symmetric = (x + matrix_transpose(x)) * 0.5
    matrix = constant(symmetric)
    rows = wrap(x, b.unsqueeze(_numbers(x, -2), [1]))
    columns = wrap(x, _numbers(x, -1))

    def step(place: Variable, now: list[Variable]) -> list[Variable]:
        remainder = _at(matrix, place, -1) - matmul(now[0], matrix_transpose(_at(now[0], place, -2)))
        column = remainder / emit("Sqrt", [_at(remainder, place, -2)])
        return [where(columns == place, where(rows >= place, column, 0.0), now[0])]

    near = _repeated(x, step, [wrap(x, b.zeros_like(x.value))])[0]
    near.value.shape = x.value.shape
    back = _eliminated(near)[0]
    inner = matmul(matmul(back, change_of(symmetric)), matrix_transpose(back))
    return near + matmul(near, tril(inner) - inner * unit_like(inner) * 0.5)


@in_float64()
def cholesky(x: Variable, upper: bool = False) -> Variable:
    """Return the triangular factor of symmetric positive definite `x`, that is `L @ L^T`, or `U^T @ U` with `upper`."""
    lower = _factor(x)
    return matrix_transpose(lower) if upper else lower


def _from_factor(x: Variable, upper: bool) -> Variable:
    return matmul(x, x, transpose_x=upper, transpose_y=not upper)


@in_float64(2)
def cholesky_solve(x: Variable, y: Variable, upper: bool = False) -> Variable:
    """Return the `z` of `A @ z = x`, where `y` is the factor of `A` that `cholesky` returns."""
    return _solution(_from_factor(y, upper), x)


@in_float64()
def cholesky_inverse(x: Variable, upper: bool = False) -> Variable:
    """Return the inverse of the matrices that `x` is the factor of."""
    return _inverse(_from_factor(x, upper))


@in_float64()
def qr(x: Variable, mode: str = "reduced") -> Any:
    """Return orthonormal columns and an upper triangle with a positive diagonal, whose product is `x`.

    The columns of `x` must be independent; LAPACK's signs may differ.

    Args:
        x: matrices with at least as many rows as columns.
        mode: `reduced` for both, `r` for the triangle.

    Raises:
        OptionError: another mode.
    """
    choice("qr: mode", mode, ("reduced", "r"))
    first = matrix_transpose(_factor(matmul(matrix_transpose(x), x)))
    near = matmul(x, _inverse(first))
    second = matrix_transpose(_factor(matmul(matrix_transpose(near), near)))  # again: the first is not quite orthogonal
    triangle = matmul(second, first)
    return triangle if mode == "r" else (matmul(near, _inverse(second)), triangle)


# ---- powers ----


def matrix_power(x: Variable, n: int) -> Variable:
    """Return the `n`-th power of the square matrices `x`; where `n` is negative, of their inverses."""
    if n < 0:
        return matrix_power(inv(x), -n)
    if n == 0:
        b = builder_of(x)
        return wrap(x, b.expand_like(eye(x.shape[-1], dtype=x.dtype).value, x.value))
    half = matrix_power(x, n // 2) if n > 1 else None
    if half is None:
        return x
    square = matmul(half, half)
    return matmul(square, x) if n % 2 else square


@in_float64()
def matrix_exp(x: Variable) -> Variable:
    """Return the exponential of square matrices."""
    small = x * 2.0**-_SQUARINGS
    result = term = unit_like(x)
    for number in range(1, _TERMS):
        term = matmul(term, small) * (1.0 / number)
        result = result + term
    for _ in range(_SQUARINGS):
        result = matmul(result, result)
    return result


accept_name(globals(), __all__)
