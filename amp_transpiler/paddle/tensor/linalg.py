"""Computes products of vectors and matrices, norms of differences and covariances."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.form_check import equation_fault
from amp_transpiler.paddle.building import accept_name, axis_of, binary, builder_of, in_one_type, size_at, wrap
from amp_transpiler.paddle.tensor.creation import diagonal
from amp_transpiler.paddle.tensor.reduction import norm, sum as sum_of
from amp_transpiler.paddle.tensor.shaping import transpose
from amp_transpiler.program.program import Variable

__all__ = [
    "addmm",
    "baddbmm",
    "bmm",
    "cdist",
    "corrcoef",
    "cov",
    "cross",
    "dot",
    "einsum",
    "ger",
    "inner",
    "kron",
    "matmul",
    "mm",
    "multi_dot",
    "mv",
    "outer",
    "pdist",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

_LAST = 2**63 - 1


def matmul(x: Variable, y: Variable, transpose_x: bool = False, transpose_y: bool = False) -> Variable:
    """Return the matrix product, batched as numpy's; either may be transposed first, along its last two axes."""
    b = builder_of(x, y)
    first, second = in_one_type(x, y)
    if (transpose_x or transpose_y) and x.ndim == y.ndim == 2:
        flips = {"transA": int(transpose_x), "transB": int(transpose_y)}
        return wrap(x, b.op("Gemm", [first, second], flips))  # Gemm transposes while it reads, without a copy
    sides = [
        b.swap_last(side) if flip and len(side.shape or ()) > 1 else side
        for side, flip in ((first, transpose_x), (second, transpose_y))
    ]
    return wrap(x, b.matmul(*sides))


def mm(input: Variable, mat2: Variable) -> Variable:
    """Return the matrix product."""
    return matmul(input, mat2)


def bmm(x: Variable, y: Variable) -> Variable:
    """Return the matrix products of two batches, [batch, rows, inner] and [batch, inner, columns].

    Raises:
        InputError: one of them does not have three axes.
    """
    if x.ndim != 3 or y.ndim != 3:
        raise InputError(f"bmm: expected three axes each, got {x!r} and {y!r}: use matmul")
    return matmul(x, y)


def mv(x: Variable, vec: Variable) -> Variable:
    """Return the product of a matrix and a vector."""
    return matmul(x, vec)


def dot(x: Variable, y: Variable) -> Variable:
    """Return the products of vectors, along the last axis."""
    return sum_of(binary("Mul", x, y), -1)


def vecdot(x: Variable, y: Variable, axis: int = -1) -> Variable:
    """Return the products of vectors, along `axis`."""
    return sum_of(binary("Mul", x, y), axis)


def inner(x: Variable, y: Variable) -> Variable:
    """Return the products of all vectors along the last axes of both."""
    if not x.ndim or not y.ndim:
        return binary("Mul", x, y)
    b = builder_of(x, y)
    first, second = in_one_type(x, y)
    rows = b.op("Gemm", [_rows(b, first), _rows(b, second)], {"transB": 1})
    sizes = [b.slice(b.shape(side.value), [0], [-1], [0]) for side in (x, y) if side.ndim > 1]
    if not sizes:
        return wrap(x, b.reshape(rows, []))
    result = b.reshape(rows, b.concat(sizes, 0))
    dims = [size if size >= 0 else None for size in (*x.shape[:-1], *y.shape[:-1])]
    result.shape = ir.Shape(dims)
    return wrap(x, result)


def _rows(b: GraphBuilder, value: ir.Value) -> ir.Value:
    """Return the vectors along the last axis as the rows of a matrix."""
    width = (value.shape or [None])[-1]
    if isinstance(width, int):
        return b.reshape(value, [-1, width])
    last = b.slice(b.shape(value), [-1], [_LAST], [0])
    return b.reshape(value, b.concat([b.constant(np.array([-1], np.int64)), last], 0))


def outer(x: Variable, y: Variable) -> Variable:
    """Return the products of each element of `x` with each of `y`: a matrix."""
    b = builder_of(x, y)
    return binary("Mul", wrap(x, b.reshape(x.value, [-1, 1])), wrap(y, b.reshape(y.value, [1, -1])))


ger = outer


def addmm(input: Variable, x: Variable, y: Variable, beta: float = 1.0, alpha: float = 1.0) -> Variable:
    """Return `beta * input + alpha * x @ y`."""
    product = matmul(x, y)
    product = product if alpha == 1 else binary("Mul", product, alpha)
    return binary("Add", product, input if beta == 1 else binary("Mul", input, beta))


baddbmm = addmm


def einsum(equation: str, *operands: Variable) -> Variable:
    """Return sums of products, as the equation says: `ij,jk->ik` is the matrix product.

    Without `->`, the result has the letters that appear once, in alphabetical order.

    Raises:
        OptionError: the equation has another form.
    """
    if fault := equation_fault(equation):
        raise OptionError(f"einsum: {fault}")
    b, values = builder_of(*operands), in_one_type(*operands)
    dtype = values[0].dtype
    if dtype == ir.DataType.BFLOAT16:  # Einsum takes none
        values = [b.cast(value, ir.DataType.FLOAT) for value in values]
    return wrap(operands[0], b.cast(b.op("Einsum", values, {"equation": equation.replace(" ", "")}), dtype))


def tensordot(x: Variable, y: Variable, axes: int | Sequence[int] | Sequence[Sequence[int]] = 2) -> Variable:
    """Return the sums of products along axes of both.

    Args:
        x: one operand.
        y: the other.
        axes: how many of the last axes of `x` meet the first of `y`; or the axes of both, in two lists, or in one.

    Raises:
        OptionError: the lists have different lengths.
    """
    if isinstance(axes, int):
        pairs = [list(range(x.ndim - axes, x.ndim)), list(range(axes))]
    else:
        lists = [[part] if isinstance(part, int) else list(part) for part in axes]
        if all(isinstance(part, int) for part in axes):
            lists = [[part for group in lists for part in group]]
        pairs = [lists[0], lists[1] if len(lists) > 1 else lists[0]]
    x_axes, y_axes = [axis_of(x, a) for a in pairs[0]], [axis_of(y, a) for a in pairs[1]]
    if len(x_axes) != len(y_axes):
        raise OptionError(f"tensordot: as many axes of x as of y must meet, got {axes!r}")
    letters = [chr(ord("a") + i) for i in range(x.ndim + y.ndim)]
    x_letters, y_letters = letters[: x.ndim], letters[x.ndim :]
    for here, there in zip(x_axes, y_axes, strict=True):
        y_letters[there] = x_letters[here]
    result_letters = [c for i, c in enumerate(x_letters) if i not in x_axes] + [
        c for i, c in enumerate(y_letters) if i not in y_axes
    ]
    return einsum(f"{''.join(x_letters)},{''.join(y_letters)}->{''.join(result_letters)}", x, y)


def multi_dot(x: Sequence[Variable]) -> Variable:
    """Return the product of matrices, from the first to the last."""
    result = x[0]
    for other in x[1:]:
        result = matmul(result, other)
    return result


def trace(x: Variable, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """Return the sums of diagonals; see `diagonal`."""
    return sum_of(diagonal(x, offset, axis1, axis2), -1)


def cross(x: Variable, y: Variable, axis: int = 9) -> Variable:
    """Return the cross products of vectors of three numbers along `axis`: unless given, the first axis of size 3.

    Raises:
        InputError: no axis has size 3.
    """
    if axis == 9:
        candidates = [i for i, size in enumerate(x.shape) if size == 3]
        if not candidates:
            raise InputError(f"cross: no axis of {x!r} has size 3")
        axis = candidates[0]
    place, b = axis_of(x, axis), builder_of(x, y)
    first, second = in_one_type(x, y)

    def turned(value: ir.Value, order: Sequence[int]) -> ir.Value:
        return b.op("Gather", [value, b.constant(np.array(order, np.int64))], {"axis": place})

    ahead, behind = [1, 2, 0], [2, 0, 1]
    return wrap(
        x,
        b.sub(b.mul(turned(first, ahead), turned(second, behind)), b.mul(turned(first, behind), turned(second, ahead))),
    )


def kron(x: Variable, y: Variable) -> Variable:
    """Return the Kronecker product: each element of `x` times all of `y`, in its place."""
    b = builder_of(x, y)
    rank = max(x.ndim, y.ndim)
    first = b.unsqueeze(x.value, list(range(rank - x.ndim)))
    second = b.unsqueeze(y.value, list(range(rank - y.ndim)))
    sizes = [b.mul(b.shape(first), b.shape(second))]
    wide = b.unsqueeze(first, [2 * i + 1 for i in range(rank)])
    tall = b.unsqueeze(second, [2 * i for i in range(rank)])
    product = binary("Mul", wrap(x, wide), wrap(y, tall))
    static_sizes = [
        a * c if a >= 0 and c >= 0 else -1 for a, c in zip(wrap(x, first).shape, wrap(y, second).shape, strict=True)
    ]
    if static_sizes.count(-1) < 2:
        return wrap(x, b.reshape(product.value, static_sizes))
    return wrap(x, b.reshape(product.value, sizes[0]))


def cdist(
    x: Variable, y: Variable, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Variable:
    """Return the `p`-norms of the differences of each row of `x` and each of `y`; `compute_mode` has no effect."""
    del compute_mode
    b = builder_of(x, y)
    rows, columns = b.unsqueeze(x.value, [x.ndim - 1]), b.unsqueeze(y.value, [y.ndim - 2])
    return norm(binary("Sub", wrap(x, rows), wrap(y, columns)), float(p), -1)


def pdist(x: Variable, p: float = 2.0) -> Variable:
    """Return the `p`-norms of the differences of all pairs of rows of a matrix, whose number must be known."""
    first, second = np.triu_indices(x.shape[0], 1)
    b = builder_of(x)
    earlier, later = (
        wrap(x, b.op("Gather", [x.value, b.constant(part.astype(np.int64))], {"axis": 0})) for part in (first, second)
    )
    return norm(binary("Sub", earlier, later), float(p), -1)


def vector_norm(
    x: Variable, p: float = 2.0, axis: int | Sequence[int] | None = None, keepdim: bool = False
) -> Variable:
    """Return the `p`-norm of the elements along axes, or of all elements unless axes are given."""
    if p == 2 and axis is not None and not isinstance(axis, int):
        return norm(x, "fro", axis, keepdim)
    return norm(x, float(p), axis, keepdim)


def cov(x: Variable, rowvar: bool = True, ddof: bool = True) -> Variable:
    """Return the covariances of a matrix's rows, or of its columns; the number of samples must be known."""
    rows = x if rowvar else transpose(x, [1, 0])
    b = builder_of(x)
    apart = b.sub(rows.value, b.cast(b.mean(rows.value, [1]), x.value.dtype))
    count = size_at(rows, 1, "cov") - int(ddof)
    return wrap(x, b.div(b.matmul(apart, b.transpose(apart, [1, 0])), float(count)))


def corrcoef(x: Variable, rowvar: bool = True) -> Variable:
    """Return the correlations of the rows of a matrix, or of its columns."""
    shared = cov(x, rowvar)
    b = builder_of(x)
    spread = b.op("Sqrt", [diagonal(shared).value])
    return wrap(x, b.div(b.div(shared.value, b.unsqueeze(spread, [1])), b.unsqueeze(spread, [0])))


accept_name(globals(), __all__)
