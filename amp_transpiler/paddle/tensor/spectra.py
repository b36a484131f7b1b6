"""Computes eigenvalues of symmetric matrices, singular values, and what follows from them; see `decompositions`."""
# Paddle's names

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.building import accept_name, as_dtype, axis_of, builder_of, choice, emit, wrap
from amp_transpiler.paddle.framework.control_flow import while_loop
from amp_transpiler.paddle.tensor.creation import diagonal, tril, triu
from amp_transpiler.paddle.tensor.decompositions import change_of, constant, in_float64, inv, unit_like
from amp_transpiler.paddle.tensor.linalg import matmul
from amp_transpiler.paddle.tensor.logic import any as any_of, where
from amp_transpiler.paddle.tensor.reduction import max as max_of, min as min_of, norm, sum as sum_of
from amp_transpiler.paddle.tensor.shaping import matrix_transpose
from amp_transpiler.program.program import Variable

__all__ = [
    "cond",
    "eigh",
    "eigvalsh",
    "lstsq",
    "matrix_norm",
    "matrix_rank",
    "pca_lowrank",
    "pinv",
    "svd",
    "svd_lowrank",
    "svdvals",
]

_ROUNDING = 2.0**-52


# ---- eigenvalues of symmetric matrices ----


def _diagonalized(x: Variable) -> tuple[Variable, Variable]:
    """Return eigenvalues in ascending order and eigenvectors of symmetric matrices, without gradients.

    Jacobi's rotations: each step turns the plane of the largest element beside the diagonal.
    """
    b = builder_of(x)
    size = x.shape[-1]
    if size < 1:
        raise InputError(f"eigenvalues: the size of the matrices must be known, got {x!r}")
    unit = unit_like(x)
    beside = 1.0 - unit
    scale = sum_of(x * x, [-2, -1], keepdim=True)

    def off_diagonal(now: Variable) -> Variable:
        return max_of(emit("Abs", [now * beside]), [-2, -1], keepdim=True)

    def go_on(step: Variable, now: Variable, _: Variable) -> Variable:
        wide = any_of(off_diagonal(now) * off_diagonal(now) > scale * _ROUNDING**2)
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
    return constant(wrap(x, values)), constant(ordered)


def _eigen(x: Variable, symmetric: Variable) -> tuple[Variable, Variable]:
    """Return eigenvalues and eigenvectors of `symmetric`, with the derivatives by `x` as if it were symmetric.

    `dV = V (F * V^T dX V)`, where F holds the reciprocals of the differences of eigenvalues.
    """
    values, vectors = _diagonalized(constant(symmetric))
    change = change_of((x + matrix_transpose(x)) * 0.5)
    inner = matmul(matmul(matrix_transpose(vectors), change), vectors)
    b = builder_of(x)
    apart = wrap(x, b.sub(b.unsqueeze(values.value, [x.ndim - 2]), b.unsqueeze(values.value, [x.ndim - 1])))
    share = where(apart == 0.0, 0.0, 1.0 / where(apart == 0.0, 1.0, apart))
    return values + diagonal(inner, 0, -2, -1), vectors + matmul(vectors, inner * share)


def _checked(x: Variable, triangle: str) -> Variable:
    """Return the symmetric matrices that one triangle of `x` defines."""
    choice("eigh: UPLO", triangle, ("L", "U"))
    part = tril(x, -1) if triangle == "L" else triu(x, 1)
    return part + matrix_transpose(part) + x * unit_like(x)


@in_float64()
def eigh(x: Variable, UPLO: str = "L") -> tuple[Variable, Variable]:  # noqa: N803  # Paddle's
    """Return the eigenvalues of symmetric matrices in ascending order, and the eigenvectors as columns.

    The sign of an eigenvector is not determined: another library's may differ.
    """
    return _eigen(x, _checked(x, UPLO))


@in_float64()
def eigvalsh(x: Variable, UPLO: str = "L") -> Variable:  # noqa: N803  # Paddle's
    """Return the eigenvalues of symmetric matrices, in ascending order."""
    return _eigen(x, _checked(x, UPLO))[0]


# ---- singular values ----


def _singular(x: Variable) -> tuple[Variable, Variable, Variable]:
    """Return `U`, singular values in descending order, and `V`, by the eigenvectors of `[[0, X], [X^T, 0]]`.

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


@in_float64()
def svd(x: Variable, full_matrices: bool = False) -> tuple[Variable, Variable, Variable]:
    """Return `U`, the singular values in descending order, and the transpose of `V`: `x` is `U @ diag(S) @ VH`.

    Matrices of full rank have both; the signs of columns may differ from another library's.

    Raises:
        OptionError: `full_matrices`, for matrices that are not square.
    """
    if full_matrices and x.shape[-1] != x.shape[-2]:
        raise OptionError("svd: full_matrices is for square matrices only: leave it False")
    left, sizes, right = _singular(x)
    return left, sizes, matrix_transpose(right)


@in_float64()
def svdvals(x: Variable) -> Variable:
    """Return the singular values, in descending order."""
    return _singular(x)[1]


@in_float64()
def svd_lowrank(
    x: Variable,
    q: int | None = None,
    niter: int = 2,
    M: Variable | None = None,  # noqa: N803  # Paddle's
) -> tuple[Variable, Variable, Variable]:
    """Return `U`, the `q` (6 unless given) largest singular values and `V` of `x` or `x - M`; `niter` has no effect."""
    del niter
    return _largest(x if M is None else x - as_dtype(M, x.dtype), q)


@in_float64()
def pca_lowrank(
    x: Variable, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[Variable, Variable, Variable]:
    """Return `svd_lowrank` of `x` less the mean of its rows, unless `center` is False; `niter` has no effect."""
    del niter
    return _largest(x - _mean_row(x) if center else x, q)


def _mean_row(x: Variable) -> Variable:
    """Return the mean of the rows of each matrix."""
    b = builder_of(x)
    return wrap(x, b.mean(x.value, [x.ndim - 2]))


def _largest(x: Variable, q: int | None) -> tuple[Variable, Variable, Variable]:
    left, sizes, right = _singular(x)
    count = min(6 if q is None else q, *x.shape[-2:])
    return left[..., :count], sizes[..., :count], right[..., :count]


def _bound(x: Variable, sizes: Variable, rcond: float | None) -> Variable:
    """Return the size below which singular values count as 0, relative to the largest."""
    share = max(x.shape[-2:]) * 2.0**-23 if rcond is None else rcond
    return max_of(sizes, -1, keepdim=True) * share


@in_float64()
def pinv(x: Variable, rcond: float = 1e-15, hermitian: bool = False) -> Variable:
    """Return the pseudo-inverse of Moore and Penrose; singular values up to `rcond` of the largest count as 0."""
    del hermitian
    left, sizes, right = _singular(x)
    counts = sizes > _bound(x, sizes, max(rcond, 1e-12))
    turned = where(counts, 1.0 / where(counts, sizes, 1.0), 0.0)
    b = builder_of(x)
    return matmul(right * wrap(x, b.unsqueeze(turned.value, [x.ndim - 2])), matrix_transpose(left))


@in_float64()
def matrix_rank(
    x: Variable, tol: float | None = None, hermitian: bool = False, atol: float | None = None, rtol: float | None = None
) -> Variable:
    """Return how many singular values are above `tol`: by default, above the rounding of float32; int64."""
    del hermitian
    sizes = _singular(x)[1]
    bound = _bound(x, sizes, rtol) if tol is None and (rtol is not None or atol is None) else sizes * 0.0
    least = tol if tol is not None else atol
    above = sizes > (bound if least is None else emit("Max", [bound, bound * 0.0 + least]))
    return sum_of(above.astype("int64"), -1)


@in_float64(2)
def lstsq(
    x: Variable, y: Variable, rcond: float | None = None, driver: str | None = None
) -> tuple[Variable, Variable, Variable, Variable]:
    """Return the `z` that makes `x @ z - y` shortest, the squares of that length, the rank, and the singular values."""
    del driver
    left, sizes, right = _singular(x)
    counts = sizes > _bound(x, sizes, rcond)
    turned = where(counts, 1.0 / where(counts, sizes, 1.0), 0.0)
    b = builder_of(x)
    column = wrap(x, b.unsqueeze(turned.value, [x.ndim - 1]))
    solution = matmul(right, column * matmul(matrix_transpose(left), y))
    away = matmul(x, solution) - y
    return solution, sum_of(away * away, -2), sum_of(counts.astype("int32"), -1).astype("int32"), sizes


def matrix_norm(x: Variable, p: float | str = "fro", axis: Sequence[int] = (-2, -1), keepdim: bool = False) -> Variable:
    """Return a norm of matrices.

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
    norms = _norm_of_last(last, p)
    if keepdim:
        norms = wrap(x, b.unsqueeze(norms.value, sorted((rows, columns))))
    return norms


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
    """Return the condition of matrices, by singular values (2, the default, or -2) or norms of `x` and its inverse."""
    if p in (None, 2, -2):
        sizes = svdvals(x)
        large, small = max_of(sizes, -1), min_of(sizes, -1)
        return small / large if p == -2 else large / small
    assert p is not None  # for type checkers
    return matrix_norm(x, p) * matrix_norm(inv(x), p)


accept_name(globals(), __all__)
