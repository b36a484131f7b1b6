"""Gradients of operators that read and write by index. What meets at one place is added in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.rules.placing import (
    add_at,
    axis_of,
    dim,
    permuted_zeros,
    range_of,
    surround,
    without_bfloat16,
)
from amp_transpiler.graph.builder import rank_of
from amp_transpiler.graph.walk import constant_of

_INT64 = ir.DataType.INT64


@gradient("Gather")
def gather(n: NodeGradient) -> ir.Value:
    """`g` added at the rows that were read, with the gathered axis in front for the purpose."""
    x, indices = n.x, n.input(1)
    rank, index_rank = rank_of(x), rank_of(indices)
    axis = axis_of(n.attribute("axis", 0), rank)
    if (single := _single(n, axis)) is not None:
        return single
    perm = [axis, *(i for i in range(rank) if i != axis)]
    g_perm = [*range(axis, axis + index_rank), *range(axis), *range(axis + index_rank, rank + index_rank - 1)]
    where = n.b.unsqueeze(n.b.cast(indices, _INT64), [index_rank])
    rows = add_at(n, "ScatterND", permuted_zeros(n, x, perm), where, n.b.transpose(n.g, g_perm))
    return n.b.transpose(rows, [int(i) for i in np.argsort(perm)])


def _single(n: NodeGradient, axis: int) -> ir.Value | None:
    """The gradient by padding, if one constant position of an axis of known size is read."""
    tensor, size = constant_of(n.input(1)), dim(n.x, axis)
    if tensor is None or tensor.size != 1 or size is None:
        return None
    rank, index_rank = rank_of(n.x), rank_of(n.input(1))
    at = int(tensor.numpy().reshape(-1)[0]) % size
    g = n.b.unsqueeze(n.g, [axis]) if index_rank == 0 else n.b.squeeze(n.g, list(range(axis + 1, axis + index_rank)))
    before, after = [0] * rank, [0] * rank
    before[axis], after[axis] = at, size - 1 - at
    return surround(n, g, before, after)


@gradient("GatherElements")
def gather_elements(n: NodeGradient) -> ir.Value:
    """`g` added at the elements that were read."""
    zeros = permuted_zeros(n, n.x, range(rank_of(n.x)))
    return add_at(n, "ScatterElements", zeros, n.input(1), n.g, n.attribute("axis", 0))


@gradient("GatherND")
def gather_nd(n: NodeGradient) -> ir.Value:
    """`g` added at what was read; batch axes become coordinates in front of the others."""
    where = n.input(1)
    batch = n.attribute("batch_dims", 0)
    if batch:
        where = _with_batch_coordinates(n, where, batch)
    return add_at(n, "ScatterND", permuted_zeros(n, n.x, range(rank_of(n.x))), where, n.g)


def _with_batch_coordinates(n: NodeGradient, indices: ir.Value, batch: int) -> ir.Value:
    b, rank = n.b, rank_of(indices)
    like = b.slice(indices, [0], [1], [rank - 1])  # one number for each place that is read
    coordinates = []
    for axis in range(batch):
        size = b.squeeze(b.slice(b.shape(indices), [axis], [axis + 1], [0]), [0])
        column = b.reshape(range_of(n, size), [-1 if i == axis else 1 for i in range(rank)])
        coordinates.append(b.expand_like(column, like))
    return b.concat([*coordinates, indices], rank - 1)


@gradient("ScatterElements", "Scatter")
def scatter_elements(n: NodeGradient) -> Sequence[ir.Value | None]:
    """To the data `g`, zero where it was overwritten; to the updates what `g` is where they went."""
    added, where = _added(n), n.input(1)
    attributes = {"axis": n.attribute("axis", 0)}
    data = n.g
    if not added and n.wants(0):
        data = n.b.op("ScatterElements", [n.g, where, n.b.zeros_like(n.input(2))], attributes)
    return [data, None, n.b.op("GatherElements", [n.g, where], attributes) if n.wants(2) else None]


@gradient("ScatterND")
def scatter_nd(n: NodeGradient) -> Sequence[ir.Value | None]:
    """To the data `g`, zero where it was overwritten; to the updates what `g` is where they went."""
    added, where, data = _added(n), n.input(1), n.g
    if not added and n.wants(0):
        data = n.b.op("ScatterND", [n.g, where, n.b.zeros_like(n.input(2))])
    return [data, None, n.b.op("GatherND", [without_bfloat16(n, n.g), where]) if n.wants(2) else None]


def _added(n: NodeGradient) -> bool:
    """Whether updates are added to the data, rather than put in its place."""
    reduction = n.attribute("reduction", "none")
    if reduction not in ("none", "add"):
        raise n.error(f"reduction '{reduction}' has no gradient rule, only 'none' and 'add' have")
    return bool(reduction == "add")


@gradient("OneHot")
def one_hot(n: NodeGradient) -> Sequence[ir.Value | None]:
    """To the two values: the sum of `g` where the second went, and the rest of its sum to the first."""
    if not n.wants(2):
        return []
    b, g = n.b, n.b.high(n.g)
    ends = b.constant(np.array([0, 1]), g.dtype)
    hot = b.op("OneHot", [n.input(0), n.input(1), ends], {"axis": n.attribute("axis", -1)})
    on = b.sum(b.mul(g, hot), keepdims=False)
    off = b.sum(b.mul(g, b.sub(1.0, hot)), keepdims=False)
    return [None, None, b.concat([b.unsqueeze(off, [0]), b.unsqueeze(on, [0])], 0)]


@gradient("TopK")
def top_k(n: NodeGradient) -> ir.Value:
    """`g` among zeros at the places of the values; no place is taken twice."""
    places = n.output(1)
    return n.b.op("ScatterElements", [n.b.zeros_like(n.x, n.g.dtype), places, n.g], {"axis": n.attribute("axis", -1)})


@gradient("Compress", "Unique")
def of_unknown_size(n: NodeGradient) -> None:
    """Refused: how much is taken is known only when it is run."""
    raise n.error(
        "how many elements it takes depends on the data; multiply by a mask, or use Where, or Gather with a fixed "
        "number of indices instead"
    )
