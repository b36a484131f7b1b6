"""Gradient of GridSample, by its definition: each point is a weighted sum of the pixels around it."""

from __future__ import annotations

import itertools
import math

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.definitions import defined
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.windows import sizes_of

_INT64 = ir.DataType.INT64
_MODES = {"bilinear": 2, "linear": 2, "nearest": 1}  # mode -> pixels along each axis that count


def _grid_sample(node: NodeGradient, x: Expr, grid: Expr) -> Expr:
    mode = str(node.attribute("mode", "linear"))
    if mode not in _MODES:
        raise NotDifferentiable(f"mode '{mode}' is not supported, only linear and nearest are")
    channels, *sizes = sizes_of(x, 1)
    outputs = sizes_of(grid, 1)[:-1]
    rank = len(sizes)
    places = grid.wide().reshape([0, math.prod(outputs), rank])
    pixels = x.reshape([0, channels, math.prod(sizes)]).transpose([0, 2, 1])
    # The last coordinate of a point belongs to the first spatial axis.
    at = [places.slice([rank - 1 - i], [rank - i], [2]) for i in range(rank)]
    at = [_source(node, place, size) for place, size in zip(at, sizes, strict=True)]
    total: Expr | None = None
    for corner in itertools.product(range(_MODES[mode]), repeat=rank):
        index, weight = _corner(at, sizes, corner, nearest=mode == "nearest")
        corner_pixels = pixels.op("GatherND", index, batch_dims=1).wide()
        corner_pixels = corner_pixels * weight if weight is not None else corner_pixels
        total = corner_pixels if total is None else total + corner_pixels
    assert total is not None
    return total.cast(x.dtype).transpose([0, 2, 1]).reshape([0, channels, *outputs])


defined("GridSample", domain="")(_grid_sample)
defined("GridSample", domain="com.microsoft")(_grid_sample)


def _source(node: NodeGradient, place: Expr, size: int) -> Expr:
    """Return where in the image a coordinate from -1 to 1 lies, in pixels."""
    aligned = bool(node.attribute("align_corners", 0))
    at = (place + 1) * ((size - 1) / 2) if aligned else ((place + 1) * size - 1) * 0.5
    padding = node.attribute("padding_mode", "zeros")
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
        period = 2 * max(high - low, 1e-6)
        beyond = (at - low).abs()
        beyond = beyond - (beyond / period).op("Floor") * period
        at = beyond.minimum(period - beyond) + low
    return at if padding == "zeros" else at.maximum(0.0).minimum(size - 1.0)


def _corner(at: list[Expr], sizes: list[int], corner: tuple[int, ...], *, nearest: bool) -> tuple[Expr, Expr | None]:
    """Return the flat index of a pixel beside each point, and its weight: 0 outside of the image.

    Args:
        at: the coordinates, one axis after the other.
        sizes: of the image.
        corner: 0 for the pixel at or before the point, 1 for the one after it, along each axis.
        nearest: whether only the nearest pixel counts.
    """
    index: Expr | None = None
    weight: Expr | None = None
    for place, size, after in zip(at, sizes, corner, strict=True):
        start = place.round() if nearest else place.op("Floor")
        pixel = start + after if after else start
        inside = ((pixel >= 0) & (pixel <= size - 1)).cast(place.dtype)
        if not nearest:
            inside = inside * (place - start if after else 1 - (place - start))
        weight = inside if weight is None else weight * inside
        step = pixel.maximum(0.0).minimum(size - 1.0).cast(_INT64)
        index = step if index is None else index * size + step
    assert index is not None
    return index, weight
