"""Shows the operands of matrix products as ONNX Runtime's FusedMatMul reads them."""

from __future__ import annotations

from typing import TypeVar

import onnx_ir as ir

__all__ = ["stacked_shape"]

Size = TypeVar("Size")


def stacked_shape(node: ir.Node, index: int, shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Return the shape of an operand as a stack of matrices, before `transA` and `transB`.

    With `transBatchA` or `transBatchB` the rows come first and the stack behind them.
    """
    is_first = node.attributes.get_int("transBatchB" if index else "transBatchA", 0)
    if not is_first or len(shape) < 3:
        return shape
    return (*shape[1:-1], shape[0], shape[-1])
