"""Sums over leading axes that may be written as a product with a row of ones, which adds up in float32."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.known_shapes import OpenShape
from amp_transpiler.targets.kernel_conditions import summed_axes

__all__ = ["ROW_SUMS", "RowSum", "row_sum"]

ROW_SUMS = ("ReduceSum", "ReduceMean")
"""The operators that may be products with a row."""


@dataclasses.dataclass(frozen=True, slots=True)
class RowSum:
    """How a sum is a product with a row.

    Attributes:
        terms: how many numbers become one: the elements of the row.
        factor: what the row consists of: 1, or for a mean one over `terms`.
        view: the shape that makes the terms rows of a matrix; None where they are rows already.
        result: the shape that makes the product the result, as Reshape takes it; None where it has that shape.
    """

    terms: int
    factor: float
    view: tuple[int, int] | None
    result: tuple[int, ...] | None


def row_sum(node: ir.Node, shape: OpenShape | None, low: LowFormat) -> RowSum | None:
    """Return the product that a sum over rows, or their mean, may be written as; None if there is none.

    The rows are the last axis but one, or all shapes are known, so that the leading axes can be made one.

    Args:
        node: a node.
        shape: of its input, open dimensions left open.
        low: the format that it is computed in.
    """
    if not is_standard(node) or node.op_type not in ROW_SUMS:
        return None
    axes = summed_axes(node, len(shape)) if shape else None
    if not shape or not axes or len(axes) == len(shape):
        return None
    sizes = [-1 if size is None else size for size in shape]
    terms = math.prod(sizes[axis] for axis in axes) if all(sizes[axis] > 0 for axis in axes) else 0
    factor = 1.0 if node.op_type == "ReduceSum" else 1.0 / max(1, terms)
    is_leading = axes == set(range(len(axes)))
    if not terms or factor < low.smallest * 2.0 ** (low.digits - 1) or not (axes == {len(sizes) - 2} or is_leading):
        return None
    keeps = bool(node.attributes.get_int("keepdims", 1))
    if axes == {len(sizes) - 2}:
        return RowSum(terms, factor, None, None if keeps else (*[0] * (len(sizes) - 2), -1))
    if -1 in sizes:
        return None
    result = tuple(1 if axis in axes else size for axis, size in enumerate(sizes) if keeps or axis not in axes)
    return RowSum(terms, factor, (terms, math.prod(sizes[len(axes) :])), result)
