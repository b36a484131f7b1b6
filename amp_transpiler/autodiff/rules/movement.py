"""Gradients of operators that move elements: their transposes move them back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.expression import Expr, concat
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.autodiff.rules.placing import axis_of


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(g: Expr, x: Expr) -> Expr:
    return g.reshape_like(x)


@gradient("Transpose")
def transpose(g: Expr, *, perm: Sequence[int] | None = None) -> Expr:
    if perm is None:  # axes were reversed, which undoes itself
        return g.op("Transpose")
    return g.transpose([int(axis) for axis in np.argsort(list(perm))])


@gradient("Concat")
def join(g: Expr, *parts: Expr, y: Expr, axis: int) -> Gradients:
    """`g` split where the parts meet."""
    if len(parts) == 1:
        return g
    axis = axis_of(axis, y.rank)
    sizes = [part.size(axis) for part in parts]
    if None in sizes:
        where = g.constant(np.array([axis], np.int64))
        split_sizes = concat([part.shape_tensor().op("Gather", where) for part in parts], 0)
    else:
        split_sizes = g.constant(np.array(sizes, np.int64))
    pieces = g.outputs("Split", split_sizes, count=len(parts), axis=axis)
    return [piece.with_shape_of(part) for piece, part in zip(pieces, parts, strict=True)]


@gradient("Split")
def split(gs: Sequence[Expr | None], *, node: NodeGradient, axis: int = 0) -> Expr:
    """The gradients of the parts joined, zeros where a part has none."""
    return concat([node.output(i).zeros_like() if g is None else g for i, g in enumerate(gs)], axis)


@gradient("Expand")
def expand(g: Expr) -> Expr:
    return g  # the driver sums it over the axes that were repeated


@gradient("Tile")
def tile(g: Expr, x: Expr, repeats: Expr) -> Expr:
    """`g` as [repeats, size, repeats, size, ...], summed over the repeats."""
    shape = concat([part.unsqueeze(1) for part in (repeats, x.shape_tensor())], 1)
    pairs = g.reshape(shape.reshape([-1]))
    return pairs.sum(range(0, 2 * x.rank, 2), keepdims=False).reshape_like(x)


@gradient("Trilu")
def trilu(g: Expr, _x: Expr, *diagonal: Expr, upper: int = 1) -> Expr:
    return g.op("Trilu", *diagonal, upper=upper)


@gradient("CumSum")
def cumulative_sum(g: Expr, _x: Expr, axis: Expr, *, exclusive: int = 0, reverse: int = 0) -> Expr:
    """The cumulative sum of `g` from the other end, in float32."""
    return g.wide().op("CumSum", axis, exclusive=exclusive, reverse=1 - reverse)


@gradient("ReverseSequence")
def reverse_sequence(g: Expr, _x: Expr, lengths: Expr, *, batch_axis: int = 1, time_axis: int = 0) -> Expr:
    return g.op("ReverseSequence", lengths, batch_axis=batch_axis, time_axis=time_axis)
