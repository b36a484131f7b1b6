"""Gradients of matrix products: MatMul, Gemm and FusedMatMul."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient


@gradient("MatMul")
def matmul(g: Expr, a: Expr, b: Expr, *, node: NodeGradient) -> Gradients:
    """`g B'`, `A' g`, for matrices and stacks of them; a vector is a matrix of one row or one column."""
    is_row, is_column = _is_vector(a), _is_vector(b)
    a2 = a.unsqueeze(0) if is_row else a
    b2 = b.unsqueeze(1) if is_column else b
    g = g.unsqueeze(-1) if is_column else g
    g = g.unsqueeze(-2) if is_row else g

    def to_a() -> Expr:
        da = g @ b2.T
        return da.sum_to(a2, low=node.sums_low(0)).squeeze(0) if is_row else da

    def to_b() -> Expr:
        if not node.sums_low(1) and (flat := _flat_product(a2, b2, g)) is not None:
            return flat
        db = a2.T @ g
        return db.sum_to(b2, low=node.sums_low(1)).squeeze(1) if is_column else db

    return to_a, to_b


def _is_vector(x: Expr) -> bool:
    return x.shape is not None and len(x.shape) == 1


def _flat_product(a: Expr, b: Expr, g: Expr) -> Expr | None:
    """`A' g` of a stack of matrices times one matrix, as one product that sums over the stack.

    A product for each matrix of the stack, summed afterwards, would hold that many copies of the weight, each rounded.
    None where `b` is a stack as well, or its size is not known.
    """
    if a.shape is None or b.shape is None or len(b.shape) != 2 or len(a.shape) < 3:
        return None
    rows, columns = b.size(0), b.size(1)
    if rows is None or columns is None:
        return None
    return a.reshape([-1, rows]).T @ g.reshape([-1, columns])


@gradient("Gemm")
def gemm(g: Expr, a: Expr, b: Expr, c: Expr | None = None, *, node: NodeGradient, beta: float = 1.0) -> Gradients:
    """Of `alpha A' B' + beta C`: products with the other factor, transposed, and `beta g`."""
    across_a, across_b = node.attribute("transA", 0), node.attribute("transB", 0)

    def product(left: Expr, right: Expr, across_left: int, across_right: int) -> Expr:
        alpha = float(node.attribute("alpha", 1.0))
        return left.op("Gemm", right, alpha=alpha, transA=int(across_left), transB=int(across_right))

    def to_c() -> Expr:
        assert c is not None
        dc = g.sum_to(c, low=node.sums_low(2))  # before it is scaled: scaling would widen it first
        return dc if beta == 1.0 else dc.wide() * beta

    return (
        lambda: product(b, g, across_b, 1) if across_a else product(g, b, 0, 1 - across_b),
        lambda: product(g, a, 1, across_a) if across_b else product(a, g, 1 - across_a, 0),
        to_c,
    )


@gradient("FusedMatMul", domain="com.microsoft")
def fused_matmul(g: Expr, a: Expr, b: Expr, *, node: NodeGradient, alpha: float = 1.0) -> Gradients:
    """Of `alpha A' B'`, for matrices and stacks of them."""
    across_a, across_b = bool(node.attribute("transA", 0)), bool(node.attribute("transB", 0))
    _refuse_vectors_and_stacks(node, a, b)
    rank = max(a.rank, b.rank)
    if g.shape is None:
        g.value.shape = _product_shape(a, b, across_a, across_b)
    g = g if alpha == 1.0 else g * alpha

    def to_a() -> Expr:
        da = g @ (b if across_b else b.T)
        return _swap(da, rank).sum_to(a, low=node.sums_low(0)) if across_a else da

    def to_b() -> Expr:
        db = (a if across_a else a.T) @ g
        return _swap(db, rank).sum_to(b, low=node.sums_low(1)) if across_b else db

    return to_a, to_b


def _refuse_vectors_and_stacks(node: NodeGradient, a: Expr, b: Expr) -> None:
    if node.attribute("transBatchA", 0) or node.attribute("transBatchB", 0):
        raise NotDifferentiable("transBatchA and transBatchB are not supported; write a Transpose and a MatMul instead")
    if a.rank < 2 or b.rank < 2:
        raise NotDifferentiable(
            f"both factors must have 2 or more dimensions, got {a.shape} and {b.shape}; use MatMul instead"
        )


def _product_shape(a: Expr, b: Expr, across_a: bool, across_b: bool) -> ir.Shape | None:
    """The shape of `A' B'`, which ONNX does not infer of FusedMatMul; None where the stacks broadcast otherwise."""
    assert a.shape is not None  # by rank
    assert b.shape is not None
    stack, other = sorted((list(a.shape[:-2]), list(b.shape[:-2])), key=len, reverse=True)
    if other and other != stack:
        return None
    return ir.Shape([*stack, a.shape[-1 if across_a else -2], b.shape[-2 if across_b else -1]])


def _swap(x: Expr, rank: int) -> Expr:
    """`x` with its last two axes exchanged. The rank is given: ONNX may not infer it."""
    return x.transpose([*range(rank - 2), rank - 1, rank - 2])
