"""Gradients of arithmetic."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient


@gradient("Add")
def add(n: NodeGradient) -> list[ir.Value | None]:
    """`g`, `g`."""
    return [n.g, n.g]


@gradient("Sub")
def sub(n: NodeGradient) -> list[ir.Value | None]:
    """`g`, `-g`."""
    return [n.g, n.b.neg(n.g) if n.wants(1) else None]


@gradient("Mul")
def mul(n: NodeGradient) -> list[ir.Value | None]:
    """`g b`, `g a`."""
    a, b = n.input(0), n.input(1)
    return [n.b.mul(n.g, b) if n.wants(0) else None, n.b.mul(n.g, a) if n.wants(1) else None]


@gradient("Identity", "Cast")
def same(n: NodeGradient) -> ir.Value:
    """`g`: the driver casts it to the type of the input."""
    return n.g


@gradient("MatMul")
def matmul(n: NodeGradient) -> list[ir.Value | None]:
    """`g B'`, `A' g`, for matrices and stacks of them; vectors become matrices for the purpose."""
    a, b, g = n.input(0), n.input(1), n.g
    rows, columns = a.shape is not None and len(a.shape) == 1, b.shape is not None and len(b.shape) == 1
    a2 = n.b.unsqueeze(a, [0]) if rows else a
    b2 = n.b.unsqueeze(b, [1]) if columns else b
    g = n.b.unsqueeze(g, [-1]) if columns else g
    g = n.b.unsqueeze(g, [-2]) if rows else g
    da = db = None
    if n.wants(0):
        da = n.b.matmul(g, n.b.swap_last(b2))
        da = n.b.squeeze(n.b.sum_to(da, a2), [0]) if rows else da
    if n.wants(1):
        db = n.b.matmul(n.b.swap_last(a2), g)
        db = n.b.squeeze(n.b.sum_to(db, b2), [1]) if columns else db
    return [da, db]
