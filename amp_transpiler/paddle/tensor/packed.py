"""Computes LAPACK's packed forms of decompositions: LU factors in one matrix, and products of reflections.

The steps are written one after another, so the sizes of the matrices must be known, and small: each row takes a dozen
operators. All is computed in float64, whatever the level of mixed precision, and gradients go through each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.paddle.building import accept_name, builder_of, choice, emit, size_at, wrap
from amp_transpiler.paddle.tensor.creation import tril, triu
from amp_transpiler.paddle.tensor.decompositions import in_float64, triangular_solve
from amp_transpiler.paddle.tensor.linalg import matmul
from amp_transpiler.paddle.tensor.logic import where
from amp_transpiler.paddle.tensor.shaping import matrix_transpose
from amp_transpiler.program.program import Variable

__all__ = ["householder_product", "lu", "lu_solve", "lu_unpack", "ormqr"]


def _sizes(what: str, x: Variable) -> tuple[int, int]:
    return size_at(x, -2, what), size_at(x, -1, what)


def _constant(x: Variable, array: np.ndarray) -> Variable:
    return wrap(x, builder_of(x).constant(array))


def _part(x: Variable, begin: int, end: int, axis: int) -> Variable:
    return wrap(x, builder_of(x).slice(x.value, [begin], [end], [axis % x.ndim]))


# ---- reflections ----


def _reflected(y: Variable, x: Variable, tau: Variable, *, backward: bool) -> Variable:
    """Apply the reflections `I - tau v v^T`, whose vectors are below the diagonal of `x`, to `y`."""
    b, rows = builder_of(x, tau, y), size_at(x, -2, "reflections")
    count = size_at(tau, -1, "reflections")
    vectors = tril(x, -1) + _constant(x, np.eye(rows, x.shape[-1]))
    for step in reversed(range(count)) if backward else range(count):
        vector = _part(vectors, step, step + 1, -1)
        factor = wrap(x, b.unsqueeze(_part(tau, step, step + 1, -1).value, [tau.ndim]))
        y = y - factor * matmul(vector, matmul(matrix_transpose(vector), y))
    return y


@in_float64()
def _product(x: Variable, tau: Variable) -> Variable:
    start = _constant(x, np.eye(*_sizes("householder_product", x)))
    return _reflected(start, x, tau.astype("float64"), backward=True)


def householder_product(x: Variable, tau: Variable) -> Variable:
    """Return the first columns of the product of reflections, as LAPACK's QR decomposition gives them.

    Args:
        x: the vectors below the diagonals of [..., rows, columns]; of known sizes.
        tau: the factors, [..., reflections].
    """
    return _product(x, tau)


@in_float64()
def ormqr(x: Variable, tau: Variable, y: Variable, left: bool = True, transpose: bool = False) -> Variable:
    """Return the product of `y` with the whole square matrix whose first columns `householder_product(x, tau)` returns.

    Args:
        x: the vectors below the diagonals of [..., rows, columns]; of known sizes.
        tau: the factors, [..., reflections].
        y: matrices.
        left: whether that matrix is on the left of `y`.
        transpose: whether it is transposed.
    """
    tau, y = tau.astype("float64"), y.astype("float64")
    if left:
        return _reflected(y, x, tau, backward=not transpose)
    return matrix_transpose(_reflected(matrix_transpose(y), x, tau, backward=transpose))


# ---- LU ----


def _swapped(x: Variable, row: int, other: Variable) -> Variable:
    """Return `x` with a row exchanged for the row whose number is `other`, [..., 1, 1]."""
    rows = _constant(x, np.arange(x.shape[-2])[:, None])
    source = where(rows == row, other, where(rows == other, _constant(x, np.array(row)), rows))
    b = builder_of(x)
    return wrap(x, b.op("GatherElements", [x.value, b.expand_like(source.value, x.value)], {"axis": x.ndim - 2}))


@in_float64()
def _factors(x: Variable, pivot: bool) -> tuple[Variable, Variable, Variable]:
    b, (rows, columns) = builder_of(x), _sizes("lu", x)
    below, pivots, zeros = np.arange(rows)[:, None], [], []
    for step in range(min(rows, columns)):
        column = _part(x, step, step + 1, -1)
        best = _constant(x, np.full((1, 1), step))
        if pivot:
            size = where(_constant(x, below >= step), emit("Abs", [column]), -1.0)
            best = wrap(x, b.op("ArgMax", [size.value], {"axis": x.ndim - 2}))
            x = _swapped(x, step, best)
            column = _part(x, step, step + 1, -1)
        line = _part(x, step, step + 1, -2)
        top = _part(line, step, step + 1, -1)
        zero = top == 0.0
        factors = where(_constant(x, below > step), column / where(zero, 1.0, top), 0.0)
        behind = _constant(x, (np.arange(columns) > step).astype(np.float64))
        here = _constant(x, (np.arange(columns) == step) & (below > step))
        x = where(here, factors, x - factors * (line * behind))
        flat = [x.ndim - 2, x.ndim - 1]
        pivots.append(b.unsqueeze(b.squeeze(b.expand_like(best.value, top.value), flat), [x.ndim - 2]))
        zeros.append(b.unsqueeze(b.squeeze(zero.value, flat), [x.ndim - 2]))
    numbers = b.cast(b.add(b.concat(pivots, x.ndim - 2), 1), ir.DataType.INT32)
    first = b.where(b.concat(zeros, x.ndim - 2), b.constant(np.arange(1, len(zeros) + 1)), b.constant(len(zeros) + 1))
    first = b.reduce("ReduceMin", first, [x.ndim - 2], keepdims=False)
    info = b.where(b.compare("Greater", first, len(zeros)), b.constant(0), first)
    return x, wrap(x, numbers), wrap(x, b.cast(info, ir.DataType.INT32))


def lu(x: Variable, pivot: bool = True, get_infos: bool = False) -> Any:
    """Return the LU decomposition of matrices of known sizes, with the largest element of each column as its pivot.

    Args:
        x: [..., rows, columns].
        pivot: whether rows are exchanged.
        get_infos: whether to return the number of the first pivot that is 0, from 1 on, or 0; int32.

    Returns:
        Both factors in one matrix; the row, from 1 on, that each row was exchanged for, int32; and those numbers.
    """
    factors, pivots, infos = _factors(x, pivot)
    return (factors, pivots, infos) if get_infos else (factors, pivots)


def lu_unpack(x: Variable, y: Variable, unpack_ludata: bool = True, unpack_pivots: bool = True) -> Any:
    """Return the permutation and the factors whose product is the matrix that `lu` decomposed.

    Args:
        x: both factors in one matrix, of known sizes.
        y: the pivots.
        unpack_ludata: whether to return the factors; else None for each.
        unpack_pivots: whether to return the permutation; else None.

    Raises:
        InputError: the number of pivots is not known.
    """
    rows, columns = _sizes("lu_unpack", x)
    count, lower, upper = min(rows, columns), None, None
    if unpack_ludata:
        lower = _part(tril(x, -1), 0, count, -1) + _constant(x, np.eye(rows, count)).astype(x.dtype)
        upper = _part(triu(x), 0, count, -2)
    return (_permutation(y, rows).astype(x.dtype) if unpack_pivots else None), lower, upper


def _permutation(pivots: Variable, rows: int) -> Variable:
    b, count = builder_of(pivots), size_at(pivots, -1, "lu_unpack")
    if count > rows:
        raise InputError(f"lu_unpack: {pivots!r} are more pivots than there are rows, {rows}")
    places = wrap(pivots, b.sub(b.cast(pivots.value, ir.DataType.INT64), 1))
    places = wrap(pivots, b.unsqueeze(places.value, [pivots.ndim, pivots.ndim + 1]))  # [..., pivots, 1, 1]
    start = b.mul(b.cast(b.squeeze(_part(places, 0, 1, -3).value, [pivots.ndim - 1]), ir.DataType.FLOAT), 0.0)
    order = wrap(pivots, b.add(start, b.constant(np.eye(rows, dtype=np.float32))))
    for step in range(count):
        order = _swapped(
            order, step, wrap(pivots, b.squeeze(_part(places, step, step + 1, -3).value, [pivots.ndim - 1]))
        )
    return matrix_transpose(order)


def lu_solve(b: Variable, lu: Variable, pivots: Variable, trans: str = "N") -> Variable:
    """Return the `x` of `A @ x = b`, where `lu` and `pivots` are the decomposition of `A`.

    Args:
        b: the right side, [..., rows, columns].
        lu: both factors in one matrix, of known sizes.
        pivots: the pivots.
        trans: `N` for `A`, `T` or `C` for its transpose.

    Raises:
        OptionError: another `trans`.
    """
    choice("lu_solve: trans", trans, ("N", "T", "C"))
    order = _permutation(pivots, size_at(lu, -2, "lu_solve")).astype(b.dtype)
    if trans == "N":
        half = triangular_solve(lu, matmul(matrix_transpose(order), b), upper=False, unitriangular=True)
        return triangular_solve(lu, half, upper=True)
    half = triangular_solve(lu, b, upper=True, transpose=True)
    return matmul(order, triangular_solve(lu, half, upper=False, transpose=True, unitriangular=True))


accept_name(globals(), __all__)
