"""Gradients of matrix products that carry factors and transposes: Gemm and FusedMatMul."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.graph.builder import GraphBuilder, rank_of


@gradient("Gemm")
def gemm(n: NodeGradient) -> list[ir.Value | None]:
    """Of `alpha A' B' + beta C`: products with the transposed other factor, and `beta g`."""
    a, b, g = n.input(0), n.input(1), n.g
    across_a, across_b = n.attribute("transA", 0), n.attribute("transB", 0)
    da = db = dc = None
    if n.wants(0):
        da = _product(n, b, g, across_b, 1) if across_a else _product(n, g, b, 0, 1 - across_b)
    if n.wants(1):
        db = _product(n, g, a, 1, across_a) if across_b else _product(n, a, g, 1 - across_a, 0)
    if n.wants(2):
        # Summed before it is scaled, so that the sum is taken over what came in.
        beta, dc = n.attribute("beta", 1.0), n.b.sum_to(g, n.input(2), low=n.sums_low(2))
        dc = dc if beta == 1.0 else n.b.mul(n.b.high(dc), beta)
    return [da, db, dc]


def _product(n: NodeGradient, a: ir.Value, b: ir.Value, across_a: int, across_b: int) -> ir.Value:
    """`alpha A' B'` with the alpha of the node."""
    attributes = {"alpha": float(n.attribute("alpha", 1.0)), "transA": int(across_a), "transB": int(across_b)}
    return n.b.op("Gemm", [a, b], attributes)


@gradient("FusedMatMul", domain="com.microsoft")
def fused_matmul(n: NodeGradient) -> list[ir.Value | None]:
    """Of `alpha A' B'`, for matrices and stacks of them."""
    a, b = n.input(0), n.input(1)
    if n.attribute("transBatchA", 0) or n.attribute("transBatchB", 0):
        raise n.error("transBatchA and transBatchB are not supported; write a Transpose and a MatMul instead")
    if rank_of(a) < 2 or rank_of(b) < 2:
        raise n.error(f"both factors must have 2 or more dimensions, got {a.shape} and {b.shape}; use MatMul instead")
    rank, alpha = max(rank_of(a), rank_of(b)), n.attribute("alpha", 1.0)
    across_a, across_b = bool(n.attribute("transA", 0)), bool(n.attribute("transB", 0))
    if n.g.shape is None:
        n.g.shape = _product_shape(a, b, across_a, across_b)
    g = n.g if alpha == 1.0 else n.b.mul(n.g, alpha)
    da = db = None
    if n.wants(0):
        other = b if across_b else n.b.swap_last(b)
        da = n.b.matmul(g, other)
        da = n.b.sum_to(_swap(n.b, da, rank), a, low=n.sums_low(0)) if across_a else da
    if n.wants(1):
        other = a if across_a else n.b.swap_last(a)
        db = n.b.matmul(other, g)
        db = n.b.sum_to(_swap(n.b, db, rank), b, low=n.sums_low(1)) if across_b else db
    return [da, db]


def _product_shape(a: ir.Value, b: ir.Value, across_a: bool, across_b: bool) -> ir.Shape | None:
    """The shape of `A' B'`, which ONNX does not infer of FusedMatMul; None where the stacks broadcast otherwise."""
    assert a.shape is not None  # by rank_of
    assert b.shape is not None
    stack, other = sorted((list(a.shape[:-2]), list(b.shape[:-2])), key=len, reverse=True)
    if other and other != stack:
        return None
    return ir.Shape([*stack, a.shape[-1 if across_a else -2], b.shape[-2 if across_b else -1]])


def _swap(b: GraphBuilder, x: ir.Value, rank: int) -> ir.Value:
    """`x` with its last two axes exchanged; its rank is given, for where ONNX does not infer it."""
    return b.transpose(x, [*range(rank - 2), rank - 1, rank - 2])
