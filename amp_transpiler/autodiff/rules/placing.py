"""Putting gradients in their places among zeros: what rules of movement, gathering and scattering share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.graph.builder import is_static, rank_of, shape_of

__all__ = ["add_at", "axis_of", "dim", "permuted_zeros", "put_at", "range_of", "surround", "without_bfloat16"]

_SCATTER_ADD = 16  # the opset whose ScatterElements and ScatterND can add


def without_bfloat16(n: NodeGradient, x: ir.Value) -> ir.Value:
    """Return `x`, in float32 if it is bfloat16: CUDA has no Pad, Where, Equal, GatherND of bfloat16."""
    return n.b.high(x) if x.dtype == ir.DataType.BFLOAT16 else x


def axis_of(axis: int, rank: int) -> int:
    """Return a possibly negative axis counted from the front."""
    return axis % rank if rank else 0


def dim(value: ir.Value, axis: int) -> int | None:
    """Return the size of one axis, None if it is not known."""
    size = value.shape[axis] if value.shape is not None else None
    return size if isinstance(size, int) else None


def surround(n: NodeGradient, g: ir.Value, before: Sequence[int], after: Sequence[int]) -> ir.Value:
    """Return `g` with so many zeros before and after it along each axis."""
    if not any(before) and not any(after):
        return g
    pads = n.b.constant(np.array([*before, *after], np.int64))
    return n.b.op("Pad", [without_bfloat16(n, g), pads])


def range_of(n: NodeGradient, size: ir.Value) -> ir.Value:
    """Return 0, 1, ..., `size` - 1; `size` is an int64 scalar."""
    return n.b.op("Range", [n.b.constant(np.int64(0)), size, n.b.constant(np.int64(1))])


def add_at(
    n: NodeGradient, op_type: str, zeros: ir.Value, indices: ir.Value, g: ir.Value, axis: int | None = None
) -> ir.Value:
    """Add `g` into float32 `zeros` by `ScatterElements` or `ScatterND`: fp16 sums of duplicates would swamp.

    Raises:
        ModelError: the opset has no scattering that adds.
    """
    if n.b.opset < _SCATTER_ADD:
        raise n.error(f"its gradient adds by {op_type}, which needs opset {_SCATTER_ADD}: raise the opset of the model")
    attributes: dict[str, object] = {"reduction": "add"}
    if axis is not None:
        attributes["axis"] = axis
    return n.b.op(op_type, [zeros, indices, n.b.high(g)], attributes)


def put_at(n: NodeGradient, index: Sequence[ir.Value | None]) -> ir.Value:
    """Return the gradient of the first input, for a `Slice` with these further inputs, whatever they are.

    The positions taken are found by slicing a range of numbers likewise: no position is taken twice.
    """
    b, x = n.b, n.x
    size = b.op("Size", [x])
    positions = b.op("Slice", [b.reshape(range_of(n, size), b.shape(x)), *index])
    flat = b.op(
        "ConstantOfShape",
        [b.unsqueeze(size, [0])],
        {"value": ir.tensor(np.zeros(1, n.g.dtype.numpy()))},  # type: ignore[union-attr]  # a gradient has a type
    )
    filled = b.op("ScatterElements", [flat, b.reshape(positions, [-1]), b.reshape(n.g, [-1])], {"axis": 0})
    return b.reshape_like(filled, x)


def permuted_zeros(n: NodeGradient, x: ir.Value, perm: Sequence[int]) -> ir.Value:
    """Return float zeros (float32 for a low `x`) in the shape of `x` with its axes in the order of `perm`."""
    order = list(perm)
    element = ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    if order == list(range(rank_of(x))):
        return n.b.zeros_like(x, element)
    if is_static(x):
        shape = n.b.constant(np.array([shape_of(x)[axis] for axis in order], np.int64))
    else:
        shape = n.b.op("Gather", [n.b.shape(x), n.b.constant(np.array(order, np.int64))])
    return n.b.op("ConstantOfShape", [shape], {"value": ir.tensor(np.zeros(1, element.numpy()))})
