"""Protection from ONNX Runtime's MatmulTransposeFusion where a transposed matrix is multiplied by a vector."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.vector_products import vector_products
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["GuardVectors"]

logger = logging.getLogger(__name__)


class GuardVectors(Pass[PassResult]):
    """Writes a product of a transposed matrix and a vector as one of matrices; counts them.

    ONNX Runtime fuses the Transpose into the product and then multiplies the matrix as it was, without an error. Two
    Reshapes, which cost no launch, keep the numbers right.
    """

    def call(self, model: ir.Model) -> PassResult:
        products = [node for node in vector_products(model) if _rank(node.inputs[0]) >= 2]
        names = NameAllocator(model) if products else None
        for node in products:
            assert names is not None, "there are products"
            _with_a_column(node, names)
        if products:
            logger.info("%d products with a vector written as matrix products: ONNX Runtime errs", len(products))
        return PassResult(model, modified=bool(products), count=len(products))


def _rank(value: ir.Value | None) -> int:
    """Return the rank of a left operand; 0 where neither its shape nor the Transpose above it tells."""
    if value is None:
        return 0
    node = value.producer()
    if value.shape is not None or node is None:
        return 0 if value.shape is None else value.shape.rank()
    perm = node.attributes.get("perm") if node.op_type == "Transpose" else None
    return len(perm.as_ints()) if perm is not None else max(map(_rank, node.inputs))


def _with_a_column(node: ir.Node, names: NameAllocator) -> None:
    """Multiply by the vector as a column, and drop the last dimension of the result."""
    matrix, vector, result = node.inputs[0], node.inputs[1], node.outputs[0]
    assert matrix is not None, "a MatMul has two inputs"
    assert vector is not None, "a MatMul has two inputs"
    builder = NodeBuilder(node, names)
    column = builder.node("Reshape", [vector, builder.constant(np.array([-1, 1], np.int64))], dtype=vector.dtype)
    rows = builder.node("MatMul", [matrix, column], dtype=result.dtype)
    product = rows.producer()
    assert product is not None, "the builder made it"
    if vector.shape is not None:
        column.shape = ir.Shape([*vector.shape.dims, 1])
    if result.shape is not None:
        rows.shape = ir.Shape([*result.shape.dims, 1])
    shape = np.array([*[0] * (_rank(matrix) - 2), -1], np.int64)  # 0: as it is
    builder.become("Reshape", [rows, builder.constant(shape)])
    node.name, product.name = product.name, node.name
