"""Computes which place of a plane each tap of a convolution's kernel meets, as tables that a Gather reads.

Along an axis the gradient of a weight is `dW[i] = sum over u of g[u] * x[s*u + d*i - b]`, with stride s, dilation d and
padding b. Its taps are rows of the data, `x[s*u + d*i - b]`, or where the stride is 1 rows of the result's gradient:
`dW[i] = sum over v of g[v + b - d*i] * x[v]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from amp_transpiler.training_passes.convolution_layer import Layer

__all__ = ["ZERO", "Table", "aligned", "of_batch", "tap_tables"]

Table: TypeAlias = "np.ndarray"
ZERO = -1  # no place of the plane


def tap_tables(layer: Layer, on_gradient: Sequence[bool]) -> tuple[Table, Table]:
    """Return for data and gradient the place in the plane, for each tap on that side and each place of the sum.

    Args:
        layer: the convolution.
        on_gradient: for each axis, whether its taps are rows of the gradient.
    """
    axes = [_axis(layer, axis, turned=turned) for axis, turned in enumerate(on_gradient)]
    return _plane([x for x, _ in axes], layer.inputs), _plane([g for _, g in axes], layer.outputs)


def of_batch(table: Table, samples: int, size: int) -> Table:
    """Return the table of `samples` planes of `size` places that lie one behind the other."""
    starts = np.arange(samples)[None, :, None] * size
    return np.where(table[:, None] == ZERO, ZERO, table[:, None] + starts).reshape(len(table), -1)


def aligned(x_table: Table, g_table: Table, multiple: int) -> tuple[Table, Table]:
    """Add places to the sum until their number is a multiple: zeros on one side, anything that is read on the other."""
    more = -x_table.shape[1] % multiple
    on_gradient = _has_zeros(g_table) or not _has_zeros(x_table)
    return _longer(x_table, more, zeros=not on_gradient), _longer(g_table, more, zeros=on_gradient)


def _axis(layer: Layer, axis: int, *, turned: bool) -> tuple[Table, Table]:
    """Return the places along one axis: [taps, places] of the data and of the gradient, one of which has one tap."""
    size, out, begin = layer.inputs[axis], layer.outputs[axis], layer.pads[axis]
    taps = np.arange(layer.kernel[axis])[:, None] * layer.dilations[axis]
    if turned:
        places = np.arange(size)[None]
        return places, _inside(places + begin - taps, out)
    places = np.arange(out)[None]
    return _inside(places * layer.strides[axis] + taps - begin, size), places


def _inside(places: Table, size: int) -> Table:
    return np.where((places >= 0) & (places < size), places, ZERO)


def _plane(axes: Sequence[Table], sizes: Sequence[int]) -> Table:
    """Return [taps, places] of a plane, from those of its axes."""
    rank = len(axes)
    index, is_outside = np.zeros((1,) * (2 * rank), np.int64), np.zeros((1,) * (2 * rank), bool)
    for axis, places in enumerate(axes):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = places.shape
        spread = places.reshape(shape)
        index = index * sizes[axis] + spread
        is_outside = is_outside | (spread == ZERO)
    taps = math.prod(len(places) for places in axes)
    return np.where(is_outside, ZERO, index).reshape(taps, -1)


def _longer(table: Table, more: int, *, zeros: bool) -> Table:
    if not more:
        return table
    return np.pad(table, ((0, 0), (0, more)), constant_values=ZERO if zeros else table.max())


def _has_zeros(table: Table) -> bool:
    return bool((table == ZERO).any())
