"""Putting gradients in their places among zeros, for the rules of movement, gathering and scattering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NotDifferentiable
from amp_transpiler.autodiff.expression import Expr

__all__ = ["add_at", "axis_of", "counting", "permuted_zeros", "positions", "put_at", "surround"]

_SCATTER_ADD = 16  # the opset from which ScatterElements and ScatterND can add


def axis_of(axis: int, rank: int) -> int:
    """Return a possibly negative axis counted from the front."""
    return axis % rank if rank else 0


def surround(g: Expr, before: Sequence[int], after: Sequence[int]) -> Expr:
    """Return `g` with this many zeros before and after it along each axis."""
    if not any(before) and not any(after):
        return g
    pads = g.constant(np.array([*before, *after], np.int64))
    return g.without_bfloat16().op("Pad", pads)  # CUDA has no Pad of bfloat16


def counting(size: Expr) -> Expr:
    """Return 0, 1, ..., `size` - 1; `size` is an int64 scalar."""
    return size.constant(np.int64(0)).op("Range", size, size.constant(np.int64(1)))


def positions(x: Expr, axis: int) -> Expr:
    """Return 0, 1, ... up to the size of an axis: a constant if that is known."""
    size = x.size(axis)
    if size is not None:
        return x.constant(np.arange(size))
    return counting(x.op("Shape").slice([axis], [axis + 1], [0]).squeeze(0))


def add_at(op_type: str, zeros: Expr, indices: Expr, g: Expr, **attributes: int) -> Expr:
    """Add `g` into float32 `zeros` by `ScatterElements` or `ScatterND`; float16 sums of duplicates lose digits.

    Raises:
        NotDifferentiable: the opset has no scattering that adds.
    """
    if g.builder.opset < _SCATTER_ADD:
        raise NotDifferentiable(
            f"its gradient adds by {op_type}, which needs opset {_SCATTER_ADD}: raise the opset of the model"
        )
    return zeros.op(op_type, indices, g.wide(), reduction="add", **attributes)


def put_at(g: Expr, x: Expr, index: Sequence[Expr | None]) -> Expr:
    """Return the gradient `g` of a `Slice` of `x` with any further inputs `index`, constant or not.

    Slicing consecutive numbers in the same way gives the positions that were taken. No position is taken twice.
    """
    size = x.op("Size")
    positions = counting(size).reshape(x.shape_tensor()).op("Slice", *index)
    assert g.dtype is not None
    flat = size.unsqueeze(0).op("ConstantOfShape", value=ir.tensor(np.zeros(1, g.dtype.numpy())))
    filled = flat.op("ScatterElements", positions.reshape([-1]), g.reshape([-1]), axis=0)
    return filled.reshape_like(x)


def permuted_zeros(x: Expr, perm: Sequence[int]) -> Expr:
    """Return zeros (float32, or float64 for a float64 `x`) in the shape of `x` with its axes in the order of `perm`."""
    order = list(perm)
    element = ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    if order == list(range(x.rank)):
        return x.zeros_like(element)
    if x.is_static:
        shape = x.constant(np.array([x.sizes[axis] for axis in order], np.int64))
    else:
        shape = x.shape_tensor().op("Gather", x.constant(np.array(order, np.int64)))
    return shape.op("ConstantOfShape", value=ir.tensor(np.zeros(1, element.numpy())))
