"""Inverses, solutions, decompositions and singular values of matrices, batched along all axes but the last two.

ONNX has no operators for them: an elimination, Cholesky's algorithm or Jacobi's rotations run in a Loop, which suits
small matrices (up to some hundred rows; up to about 64 for singular values and eigenvalues). All is computed in
float64, whatever the level of mixed precision. No gradient goes through a loop: each result gets the
derivative that is known, written as a product with `_change`.
"""
# Paddle's names

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.graph.program import Variable
from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.building import accept_name, as_dtype, axis_of, builder_of, choice, emit, wrap
from amp_transpiler.paddle.framework.control_flow import while_loop
from amp_transpiler.paddle.tensor.creation import diagonal, eye, tril, triu
from amp_transpiler.paddle.tensor.linalg import matmul
from amp_transpiler.paddle.tensor.logic import any as any_of, where
from amp_transpiler.paddle.tensor.reduction import max as max_of, min as min_of, norm, sum as sum_of
from amp_transpiler.paddle.tensor.shaping import matrix_transpose, stack

__all__ = [
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "cond",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "inverse",
    "lstsq",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "pca_lowrank",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svd_lowrank",
    "svdvals",
    "triangular_solve",
]

_TINY = 1e-300
_ROUNDING = 2.0**-52
_SQUARINGS, _TERMS = 12, 14


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _in_float64(count: int = 1) -> Callable[[_Function], _Function]:
    """Let a function of so many matrices compute in float64, and return floats in the type of the first."""

    def wrapped(function: _Function) -> _Function:
        @functools.wraps(function)
        def computed(*args: Any, **kwargs: Any) -> Any:
            for x in args[:count]:
                if not isinstance(x, Variable) or x.ndim < 2 or not is_float_tensor(x.value):
                    raise InputError(f"{function.__name__}: expected matrices of floats, got {x!r}")
            given = args[0].dtype
            with disable_amp():
                found = function(*(as_dtype(x, "float64") for x in args[:count]), *args[count:], **kwargs)
                parts = found if isinstance(found, tuple) else (found,)
                parts = tuple(as_dtype(part, given) if part.dtype == "float64" else part for part in parts)
            return parts if isinstance(found, tuple) else parts[0]

        return cast("_Function", computed)

    return wrapped


def _constant(x: Variable) -> Variable:
    """The same numbers, which no gradient passes through."""
    copy = emit("Identity", [x])
    copy.stop_gradient = True
    return copy


def _change(x: Variable) -> Variable:
    """Zeros with the derivative of `x`: what a result depends on `x` by is written as a product with it."""
    return x - _constant(x)


def _numbers(x: Variable, axis: int) -> ir.Value:
    """0, 1, ... along an axis of `x`."""
    b, size = builder_of(x), x.shape[axis]
    if size >= 0:
        return b.constant(np.arange(size))
    last = b.squeeze(b.slice(b.shape(x.value), [axis % x.ndim], [axis % x.ndim + 1], [0]), [0])
    return b.op("Range", [b.constant(0), last, b.constant(1)])


def _unit(like: Variable) -> Variable:
    """The unit matrix in the shape of `like`, which is square."""
    b = builder_of(like)
    rows, columns = b.unsqueeze(_numbers(like, -2), [1]), _numbers(like, -1)
    one = b.cast(b.compare("Equal", rows, columns), like.value.dtype)
    return wrap(like, b.expand_like(one, like.value))


def _at(x: Variable, step: Variable, axis: int) -> Variable:
    """The slice of `x` at a place of a loop along an axis, which stays."""
    b = builder_of(x)
    return wrap(x, b.op("Gather", [x.value, b.reshape(step.value, [1])], {"axis": axis % x.ndim}))


def _repeated(
    x: Variable, body: Callable[[Variable, list[Variable]], Sequence[Variable]], states: Sequence[Variable]
) -> list[Variable]:
    """Call a body for each row of `x`, without gradients."""
    b = builder_of(x)
    last = b.slice(b.shape(x.value), [x.ndim - 2], [x.ndim - 1], [0])
    count, first = wrap(x, b.squeeze(last, [0])), wrap(x, b.constant(np.array(0, np.int64)))
    found = while_loop(
        lambda step, *_: step < count, lambda step, *now: [step + 1, *body(step, list(now))], [first, *states]
    )
    return [_constant(state) for state in found[1:]]


# ---- elimination ----


def _eliminated(x: Variable) -> tuple[Variable, Variable, Variable]:
    """The inverse of `x`, the logarithm of the size of its determinant, and the determinant's sign; no gradients.

    Gauss's and Jordan's elimination. The pivot of each step is the largest element of its column in a row that was none
    before; rows stay in place, and are put in order at the end.
    """
    b = builder_of(x)
    unit = _unit(x)
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
    """The inverse, with its derivative; a step of Newton's takes off what rounding left."""
    near = _eliminated(_constant(x))[0]
    return near + matmul(near, _unit(x) - matmul(x, near))


@_in_float64()
def inv(x: Variable) -> Variable:
    """The inverse of square matrices. For one that has none, the numbers are very large, infinite or NaN."""
    return _inverse(x)


inverse = inv


def _solution(x: Variable, y: Variable) -> Variable:
    return matmul(_inverse(x), y)


@_in_float64(2)
def _solved(x: Variable, y: Variable) -> Variable:
    return _solution(x, y)


def solve(x: Variable, y: Variable, left: bool = True) -> Variable:
    """The `z` of `x @ z = y`, or of `z @ x = y` unless `left`; `y` may be a vector."""
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
    """The `z` of `x @ z = y`, where only a triangle of `x` counts.

    Args:
        x: square matrices.
        y: the right side.
        upper: whether the upper triangle counts; else the lower one.
        transpose: whether `x` is transposed first.
        unitriangular: whether the diagonal counts as ones.
    """
    part = triu(x) if upper else tril(x)
    if unitriangular:
        unit = _unit(x)
        part = part * (1.0 - unit) + unit
    return _solved(matrix_transpose(part) if transpose else part, y)


@_in_float64()
def det(x: Variable) -> Variable:
    """The determinants of square matrices."""
    total, sign = _log_determinant(x)
    return sign * emit("Exp", [total])


@_in_float64()
def slogdet(x: Variable) -> Variable:
    """The signs of the determinants, and the logarithms of their sizes, along a new first axis."""
    total, sign = _log_determinant(x)
    return stack([sign, total], 0)


def _log_determinant(x: Variable) -> tuple[Variable, Variable]:
    """The logarithms of the sizes of the determinants, with their derivatives, and the signs."""
    near, total, sign = _eliminated(_constant(x))
    b = builder_of(x)
    total, sign = (wrap(x, b.squeeze(part.value, [x.ndim - 2, x.ndim - 1])) for part in (total, sign))
    finite = where(emit("Abs", [near]) < math.inf, near, 0.0)  # no derivative is known where there is no inverse
    return total + sum_of(matrix_transpose(finite) * _change(x), [-2, -1]), sign


# ---- Cholesky ----


def _factor(x: Variable) -> Variable:
    """The lower factor, with its derivative `L phi(L^-1 dX L^-T)`: phi halves the diagonal of the lower triangle."""
    b = builder_of(x)
    symmetric = (x + matrix_transpose(x)) * 0.5
    known = _constant(symmetric)
    rows = wrap(x, b.unsqueeze(_numbers(x, -2), [1]))
    columns = wrap(x, _numbers(x, -1))

    def step(place: Variable, now: list[Variable]) -> list[Variable]:
        left = _at(known, place, -1) - matmul(now[0], matrix_transpose(_at(now[0], place, -2)))
        column = left / emit("Sqrt", [_at(left, place, -2)])
        return [where(columns == place, where(rows >= place, column, 0.0), now[0])]

    near = _repeated(x, step, [wrap(x, b.zeros_like(x.value))])[0]
    near.value.shape = x.value.shape
    back = _eliminated(near)[0]
    inner = matmul(matmul(back, _change(symmetric)), matrix_transpose(back))
    return near + matmul(near, tril(inner) - inner * _unit(inner) * 0.5)


@_in_float64()
def cholesky(x: Variable, upper: bool = False) -> Variable:
    """The triangular factor of symmetric positive definite matrices: `x` is `L @ L^T`, or `U^T @ U` with `upper`."""
    lower = _factor(x)
    return matrix_transpose(lower) if upper else lower


def _whole(x: Variable, upper: bool) -> Variable:
    return matmul(x, x, transpose_x=upper, transpose_y=not upper)


@_in_float64(2)
def cholesky_solve(x: Variable, y: Variable, upper: bool = False) -> Variable:
    """The `z` of `A @ z = x`, where `y` is the factor of `A` that `cholesky` returns."""
    return _solution(_whole(y, upper), x)


@_in_float64()
def cholesky_inverse(x: Variable, upper: bool = False) -> Variable:
    """The inverse of the matrices that `x` is the factor of."""
    return _inverse(_whole(x, upper))


@_in_float64()
def qr(x: Variable, mode: str = "reduced") -> Any:
    """Orthonormal columns and an upper triangle with a positive diagonal, whose product is `x`.

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


# ---- eigenvalues of symmetric matrices ----


def _diagonalized(x: Variable) -> tuple[Variable, Variable]:
    """Eigenvalues in ascending order and eigenvectors of symmetric matrices, without gradients.

    Jacobi's rotations: each step turns the plane of the largest element beside the diagonal.
    """
    b = builder_of(x)
    size = x.shape[-1]
    if size < 1:
        raise InputError(f"eigenvalues: the size of the matrices must be known, got {x!r}")
    unit = _unit(x)
    beside = 1.0 - unit
    scale = sum_of(x * x, [-2, -1], keepdim=True)

    def left(now: Variable) -> Variable:
        return max_of(emit("Abs", [now * beside]), [-2, -1], keepdim=True)

    def go_on(step: Variable, now: Variable, _: Variable) -> Variable:
        wide = any_of(left(now) * left(now) > scale * _ROUNDING**2)
        return emit("And", [wide, step < 30 * size * size])

    def turn(step: Variable, now: Variable, vectors: Variable) -> list[Variable]:
        flat = b.reshape(emit("Abs", [now * triu(beside)]).value, [*[0] * (x.ndim - 2), -1])
        best = b.op("ArgMax", [flat], {"axis": x.ndim - 2})
        best = b.unsqueeze(best, [x.ndim - 1])  # [..., 1, 1]
        row = wrap(x, b.op("Div", [best, b.constant(size)]))
        column = wrap(x, b.op("Mod", [best, b.constant(size)]))
        numbers = wrap(x, b.constant(np.arange(size).reshape(size, 1)))
        p, q = (numbers == row).astype("float64"), (numbers == column).astype("float64")

        def element(i: Variable, j: Variable) -> Variable:
            return matmul(matmul(matrix_transpose(i), now), j)

        beyond = element(p, q)
        none = beyond == 0.0
        ratio = (element(q, q) - element(p, p)) / (2.0 * where(none, 1.0, beyond))
        sign = where(ratio < 0.0, -1.0, 1.0)
        tangent = sign / (emit("Abs", [ratio]) + emit("Sqrt", [ratio * ratio + 1.0]))
        tangent = where(none, 0.0, tangent)
        cosine = 1.0 / emit("Sqrt", [tangent * tangent + 1.0])
        sine = tangent * cosine
        across = matmul(p, matrix_transpose(q))
        same = matmul(p, matrix_transpose(p)) + matmul(q, matrix_transpose(q))
        rotation = unit + same * (cosine - 1.0) + (across - matrix_transpose(across)) * sine
        turned = matmul(matmul(matrix_transpose(rotation), now), rotation)
        return [step + 1, turned, matmul(vectors, rotation)]

    first = wrap(x, b.constant(np.array(0, np.int64)))
    _, now, vectors = while_loop(go_on, turn, [first, x, unit])
    values, places = b.nodes(
        "TopK",
        [diagonal(now, 0, -2, -1).value, b.constant(np.array([size], np.int64))],
        {"axis": -1, "largest": 0},
        outputs=2,
    )
    wide = b.expand_like(b.unsqueeze(places, [x.ndim - 2]), vectors.value)
    ordered = wrap(x, b.op("GatherElements", [vectors.value, wide], {"axis": x.ndim - 1}))
    return _constant(wrap(x, values)), _constant(ordered)


def _eigen(x: Variable, known: Variable) -> tuple[Variable, Variable]:
    """Eigenvalues and eigenvectors of `known`, with the derivatives by `x` as if it were symmetric.

    `dV = V (F * V^T dX V)`, where F holds the reciprocals of the differences of eigenvalues.
    """
    values, vectors = _diagonalized(_constant(known))
    change = _change((x + matrix_transpose(x)) * 0.5)
    inner = matmul(matmul(matrix_transpose(vectors), change), vectors)
    b = builder_of(x)
    apart = wrap(x, b.sub(b.unsqueeze(values.value, [x.ndim - 2]), b.unsqueeze(values.value, [x.ndim - 1])))
    share = where(apart == 0.0, 0.0, 1.0 / where(apart == 0.0, 1.0, apart))
    return values + diagonal(inner, 0, -2, -1), vectors + matmul(vectors, inner * share)


def _checked(x: Variable, triangle: str) -> Variable:
    """The symmetric matrices that one triangle of `x` says."""
    choice("eigh: UPLO", triangle, ("L", "U"))
    part = tril(x, -1) if triangle == "L" else triu(x, 1)
    return part + matrix_transpose(part) + x * _unit(x)


@_in_float64()
def eigh(x: Variable, UPLO: str = "L") -> tuple[Variable, Variable]:  # noqa: N803  # Paddle's
    """The eigenvalues of symmetric matrices in ascending order, and the eigenvectors as columns.

    The sign of an eigenvector is not determined: another library's may differ.
    """
    return _eigen(x, _checked(x, UPLO))


@_in_float64()
def eigvalsh(x: Variable, UPLO: str = "L") -> Variable:  # noqa: N803  # Paddle's
    """The eigenvalues of symmetric matrices, in ascending order."""
    return _eigen(x, _checked(x, UPLO))[0]


# ---- singular values ----


def _singular(x: Variable) -> tuple[Variable, Variable, Variable]:
    """`U`, singular values in descending order, and `V`, by the eigenvectors of `[[0, X], [X^T, 0]]`.

    Its eigenvalues are the singular values and their negatives: squares would lose half of the digits.
    """
    b = builder_of(x)
    rows, columns = x.shape[-2:]
    if rows < 1 or columns < 1:
        raise InputError(f"singular values: the sizes of the matrices must be known, got {x!r}")
    pads = [0] * (x.ndim - 2)
    upper = b.op("Pad", [x.value, b.constant(np.array([*pads, 0, rows, *pads, columns, 0], np.int64))])
    block = wrap(x, upper)
    block = block + matrix_transpose(block)
    values, vectors = _eigen(block, block)
    count = min(rows, columns)
    order = b.constant(np.arange(rows + columns - 1, rows + columns - 1 - count, -1))
    sizes = wrap(x, b.op("Gather", [values.value, order], {"axis": x.ndim - 2}))
    taken = b.op("Gather", [vectors.value, order], {"axis": x.ndim - 1})
    taken = b.mul(taken, math.sqrt(2))
    left, right = b.nodes(
        "Split", [taken, b.constant(np.array([rows, columns], np.int64))], {"axis": x.ndim - 2}, outputs=2
    )
    return wrap(x, left), sizes, wrap(x, right)


@_in_float64()
def svd(x: Variable, full_matrices: bool = False) -> tuple[Variable, Variable, Variable]:
    """`U`, the singular values in descending order, and the transpose of `V`: `x` is `U @ diag(S) @ VH`.

    Matrices of full rank have both; the signs of columns may differ from another library's.

    Raises:
        OptionError: `full_matrices`, for matrices that are not square.
    """
    if full_matrices and x.shape[-1] != x.shape[-2]:
        raise OptionError("svd: full_matrices is for square matrices only: leave it False")
    left, sizes, right = _singular(x)
    return left, sizes, matrix_transpose(right)


@_in_float64()
def svdvals(x: Variable) -> Variable:
    """The singular values, in descending order."""
    return _singular(x)[1]


@_in_float64()
def svd_lowrank(
    x: Variable,
    q: int | None = None,
    niter: int = 2,
    M: Variable | None = None,  # noqa: N803  # Paddle's
) -> tuple[Variable, Variable, Variable]:
    """`U`, the `q` (6 unless given) largest singular values, and `V`, of `x` or of `x - M`; `niter` has no effect."""
    del niter
    return _largest(x if M is None else x - as_dtype(M, x.dtype), q)


@_in_float64()
def pca_lowrank(
    x: Variable, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[Variable, Variable, Variable]:
    """`svd_lowrank` of `x` less the mean of its rows, unless `center` is False; `niter` has no effect."""
    del niter
    return _largest(x - _mean_row(x) if center else x, q)


def _mean_row(x: Variable) -> Variable:
    """The mean of the rows of each matrix."""
    b = builder_of(x)
    return wrap(x, b.mean(x.value, [x.ndim - 2]))


def _largest(x: Variable, q: int | None) -> tuple[Variable, Variable, Variable]:
    left, sizes, right = _singular(x)
    count = min(6 if q is None else q, *x.shape[-2:])
    return left[..., :count], sizes[..., :count], right[..., :count]


def _bound(x: Variable, sizes: Variable, given: float | None) -> Variable:
    """The size below which singular values count as 0, relative to the largest."""
    share = max(x.shape[-2:]) * 2.0**-23 if given is None else given
    return max_of(sizes, -1, keepdim=True) * share


@_in_float64()
def pinv(x: Variable, rcond: float = 1e-15, hermitian: bool = False) -> Variable:
    """The pseudo-inverse of Moore and Penrose; singular values up to `rcond` of the largest count as 0."""
    del hermitian
    left, sizes, right = _singular(x)
    counts = sizes > _bound(x, sizes, max(rcond, 1e-12))
    turned = where(counts, 1.0 / where(counts, sizes, 1.0), 0.0)
    b = builder_of(x)
    return matmul(right * wrap(x, b.unsqueeze(turned.value, [x.ndim - 2])), matrix_transpose(left))


@_in_float64()
def matrix_rank(
    x: Variable, tol: float | None = None, hermitian: bool = False, atol: float | None = None, rtol: float | None = None
) -> Variable:
    """How many singular values are above `tol`: by default, above the rounding of float32; int64."""
    del hermitian
    sizes = _singular(x)[1]
    bound = _bound(x, sizes, rtol) if tol is None and (rtol is not None or atol is None) else sizes * 0.0
    least = tol if tol is not None else atol
    above = sizes > (bound if least is None else emit("Max", [bound, bound * 0.0 + least]))
    return sum_of(above.astype("int64"), -1)


@_in_float64(2)
def lstsq(
    x: Variable, y: Variable, rcond: float | None = None, driver: str | None = None
) -> tuple[Variable, Variable, Variable, Variable]:
    """The `z` that makes `x @ z - y` shortest, the squares of that length, the rank, and the singular values."""
    del driver
    left, sizes, right = _singular(x)
    counts = sizes > _bound(x, sizes, rcond)
    turned = where(counts, 1.0 / where(counts, sizes, 1.0), 0.0)
    b = builder_of(x)
    column = wrap(x, b.unsqueeze(turned.value, [x.ndim - 1]))
    found = matmul(right, column * matmul(matrix_transpose(left), y))
    away = matmul(x, found) - y
    return found, sum_of(away * away, -2), sum_of(counts.astype("int32"), -1).astype("int32"), sizes


def matrix_norm(x: Variable, p: float | str = "fro", axis: Sequence[int] = (-2, -1), keepdim: bool = False) -> Variable:
    """A norm of matrices.

    Args:
        x: floats.
        p: `fro`: the root of the sum of squares; `nuc`: the sum of the singular values; 2 or -2: the largest or
            smallest of them; 1 or -1: the largest or smallest sum of sizes down a column; infinity or minus infinity:
            along a row.
        axis: the two axes of the matrices: rows and columns.
        keepdim: whether they stay, with size 1.

    Raises:
        OptionError: there is no such norm.
    """
    rows, columns = (axis_of(x, a) for a in axis)
    others = [a for a in range(x.ndim) if a not in (rows, columns)]
    b = builder_of(x)
    last = wrap(x, b.transpose(x.value, [*others, rows, columns]))
    found = _norm_of_last(last, p)
    if keepdim:
        found = wrap(x, b.unsqueeze(found.value, sorted((rows, columns))))
    return found


def _norm_of_last(x: Variable, p: float | str) -> Variable:
    if p == "fro":
        return norm(x, "fro", [-2, -1])
    if p == "nuc":
        return sum_of(svdvals(x), -1)
    if p in (2, -2):
        return (max_of if p == 2 else min_of)(svdvals(x), -1)
    if isinstance(p, str) or p not in (1, -1, math.inf, -math.inf):
        raise OptionError(f"matrix_norm: p must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {p!r}")
    sums = sum_of(emit("Abs", [x]), -2 if abs(p) == 1 else -1)
    return (max_of if p > 0 else min_of)(sums, -1)


def cond(x: Variable, p: float | str | None = None) -> Variable:
    """The condition of matrices: by singular values (2, the default, or -2), else the norms of `x` and its inverse."""
    if p in (None, 2, -2):
        sizes = svdvals(x)
        large, small = max_of(sizes, -1), min_of(sizes, -1)
        return small / large if p == -2 else large / small
    assert p is not None  # for type checkers
    return matrix_norm(x, p) * matrix_norm(inv(x), p)


def matrix_power(x: Variable, n: int) -> Variable:
    """The product of `n` times the matrices `x`, which are square; of their inverses where `n` is negative."""
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


@_in_float64()
def matrix_exp(x: Variable) -> Variable:
    """The exponential of square matrices."""
    small = x * 2.0**-_SQUARINGS
    result = term = _unit(x)
    for number in range(1, _TERMS):
        term = matmul(term, small) * (1.0 / number)
        result = result + term
    for _ in range(_SQUARINGS):
        result = matmul(result, result)
    return result


accept_name(globals(), __all__)
