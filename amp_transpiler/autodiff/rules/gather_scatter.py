"""Gradients of operators that read and write by index. Gradients that meet in one place are added in float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.expression import Expr, concat
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.autodiff.rules.placing import add_at, axis_of, counting, permuted_zeros, surround

_INT64 = ir.DataType.INT64


@gradient("Gather")
def gather(g: Expr, x: Expr, indices: Expr, *, axis: int = 0) -> Expr:
    """`g` added at the rows that were read. ScatterND writes rows, so the gathered axis goes to the front meanwhile."""
    rank, index_rank = x.rank, indices.rank
    axis = axis_of(axis, rank)
    if (padded := _padded(g, x, indices, axis)) is not None:
        return padded
    perm = [axis, *(i for i in range(rank) if i != axis)]
    g_perm = [*range(axis, axis + index_rank), *range(axis), *range(axis + index_rank, rank + index_rank - 1)]
    where = indices.cast(_INT64).unsqueeze(index_rank)
    rows = add_at("ScatterND", permuted_zeros(x, perm), where, g.transpose(g_perm))
    return rows.transpose([int(i) for i in np.argsort(perm)])


def _padded(g: Expr, x: Expr, indices: Expr, axis: int) -> Expr | None:
    """The gradient by padding, if the positions are constant: one after the other, or the same one again and again."""
    positions, size = indices.known, x.size(axis)
    if positions is None or positions.size == 0 or size is None:
        return None
    flat = positions.reshape(-1) % size
    first, count = int(flat[0]), len(flat)
    index_axes = range(axis, axis + indices.rank)
    if (flat == first).all():
        g = g.squeeze(*index_axes) if count == 1 else g.sum(index_axes, keepdims=False).cast(g.dtype)
        g, count = g.unsqueeze(axis), 1
    elif indices.rank == 1 and np.array_equal(flat, np.arange(first, first + count)):
        pass
    else:
        return None
    before, after = [0] * x.rank, [0] * x.rank
    before[axis], after[axis] = first, size - count - first
    return surround(g, before, after)


@gradient("GatherElements")
def gather_elements(g: Expr, x: Expr, indices: Expr, *, axis: int = 0) -> Expr:
    return add_at("ScatterElements", permuted_zeros(x, range(x.rank)), indices, g, axis=axis)


@gradient("GatherND")
def gather_nd(g: Expr, x: Expr, indices: Expr, *, batch_dims: int = 0) -> Expr:
    """`g` added where it was read; batch axes become coordinates before the others."""
    where = _with_batch_coordinates(indices, batch_dims) if batch_dims else indices
    return add_at("ScatterND", permuted_zeros(x, range(x.rank)), where, g)


def _with_batch_coordinates(indices: Expr, batch: int) -> Expr:
    rank = indices.rank
    like = indices.slice([0], [1], [rank - 1])  # one number for each place that is read
    coordinates = []
    for axis in range(batch):
        size = indices.shape_tensor().slice([axis], [axis + 1], [0]).squeeze(0)
        column = counting(size).reshape([-1 if i == axis else 1 for i in range(rank)])
        coordinates.append(column.expand_like(like))
    return concat([*coordinates, indices], rank - 1)


@gradient("ScatterElements", "Scatter")
def scatter_elements(
    g: Expr, _data: Expr, indices: Expr, updates: Expr, *, axis: int = 0, reduction: str = "none"
) -> Gradients:
    """To the data `g`, zero where it was overwritten; to the updates `g` where they were written."""

    def overwritten() -> Expr:
        return g.op("ScatterElements", indices, updates.zeros_like(), axis=axis)

    return g if _adds(reduction) else overwritten, None, lambda: g.op("GatherElements", indices, axis=axis)


@gradient("ScatterND")
def scatter_nd(g: Expr, _data: Expr, indices: Expr, updates: Expr, *, reduction: str = "none") -> Gradients:
    """As for ScatterElements. CUDA has no GatherND of bfloat16."""

    def overwritten() -> Expr:
        return g.op("ScatterND", indices, updates.zeros_like())

    return g if _adds(reduction) else overwritten, None, lambda: g.without_bfloat16().op("GatherND", indices)


def _adds(reduction: str) -> bool:
    """Whether updates are added to the data, rather than written over it."""
    if reduction not in ("none", "add"):
        raise NotDifferentiable(f"reduction '{reduction}' has no gradient rule, only 'none' and 'add' have")
    return reduction == "add"


@gradient("OneHot")
def one_hot(g: Expr, indices: Expr, depth: Expr, _values: Expr, *, axis: int = -1) -> Gradients:
    """To the two values: the sum of `g` where the second was written, and for the first the sum of the rest."""

    def to_values() -> Expr:
        wide = g.wide()
        ends = wide.constant(np.array([0, 1]), wide.dtype)
        hot = indices.op("OneHot", depth, ends, axis=axis)
        on = (wide * hot).sum(keepdims=False)
        off = (wide * (1 - hot)).sum(keepdims=False)
        return concat([off.unsqueeze(0), on.unsqueeze(0)], 0)

    return None, None, to_values


@gradient("TopK")
def top_k(g: Expr, x: Expr, *, node: NodeGradient, axis: int = -1) -> Expr:
    """`g` among zeros in the places of the values; no place is taken twice."""
    places = node.output(1)
    return x.zeros_like(g.dtype).op("ScatterElements", places, g, axis=axis)


@gradient("Compress", "Unique")
def of_unknown_size() -> None:
    raise NotDifferentiable(
        "how many elements it takes depends on the data; multiply by a mask, or use Where, or Gather with a fixed "
        "number of indices instead"
    )
