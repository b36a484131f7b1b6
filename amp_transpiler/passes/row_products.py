"""Sums over rows as products with a row of ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.walk import is_used
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder
from amp_transpiler.precision.row_sums import RowSum

__all__ = ["RowProducts"]


class RowProducts(Pass[PassResult]):
    """Writes 16-bit sums over rows, and means of rows, as products with a row; counts them.

    CUDA adds up the partial sums of a reduction over leading axes in 16 bits, in any order. A product adds up in
    float32 and reads the rows once. Views make the rows those of a matrix and give the result its shape; they cost no
    launch.

    Args:
        found: the sums, each with the product that it is.
    """

    def __init__(self, row_sums: Mapping[ir.Node, RowSum]) -> None:
        self._row_sums = row_sums

    def call(self, model: ir.Model) -> PassResult:
        names = NameAllocator(model) if self._row_sums else None
        for node, product in self._row_sums.items():
            assert names is not None, "there are sums"
            _rewrite(node, product, names)
        return PassResult(model, modified=bool(self._row_sums), count=len(self._row_sums))


def _rewrite(node: ir.Node, product: RowSum, names: NameAllocator) -> None:
    value, result = node.inputs[0], node.outputs[0]
    assert value is not None, "a reduction has an input"
    assert value.dtype is not None, "it is typed"
    builder, others = NodeBuilder(node, names), [other for other in node.inputs[1:] if other is not None]
    row = builder.constant(np.full((1, product.terms), product.factor).astype(value.dtype.numpy()), value.dtype)
    matrix = value if product.view is None else builder.node("Reshape", [value, _shape(builder, product.view)])
    if product.view is not None:
        matrix.dtype, matrix.shape = value.dtype, ir.Shape(product.view)
    if product.result is None:
        builder.become("MatMul", [row, matrix])
    else:
        total = builder.node("MatMul", [row, matrix], dtype=result.dtype)
        builder.become("Reshape", [total, _shape(builder, product.result)])
    for axes in others:
        _drop(axes)


def _drop(value: ir.Value) -> None:
    """Remove a constant that nobody reads any more."""
    maker = value.producer()
    if maker is not None:
        remove_unread(maker)
    elif not is_used(value) and value.graph is not None and not value.is_graph_input():
        value.graph.initializers.pop(str(value.name), None)


def _shape(builder: NodeBuilder, sizes: tuple[int, ...]) -> ir.Value:
    return builder.constant(np.array(sizes, np.int64))
