"""Resize along one axis as a matrix [out, in]: Resize is linear and acts on each axis separately.

The formulas are those of ONNX's reference for Resize. Coordinates are computed in float32 as in ONNX Runtime, since the
last bit may decide which pixel is nearest.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from amp_transpiler.autodiff.windows import Matrix

__all__ = ["AxisResize", "resize_matrix"]

_Coordinates: TypeAlias = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class AxisResize:
    """A resize along one axis.

    Attributes:
        size, out: number of elements before and after.
        scale: the one given, or `out / size`.
        mode: `nearest`, `linear` or `cubic`.
        coordinates: the attribute `coordinate_transformation_mode`.
        nearest: the attribute `nearest_mode`, or `simple` for older opsets.
        cubic_coeff_a, exclude_outside, antialias: as the attributes.
        roi: start and end of the region, for `tf_crop_and_resize`.
    """

    size: int
    out: int
    scale: float
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    roi: tuple[float, float] = (0.0, 1.0)


def resize_matrix(r: AxisResize) -> Matrix:
    """Return the matrix [out, size] of a resize; a row is zero where the result is the extrapolation value.

    Raises:
        ValueError: ONNX does not know the name of the mode or of the coordinates.
    """
    at = _source_coordinates(r)
    if r.mode == "nearest":
        matrix = _nearest(r, at)
    elif r.antialias and r.scale < 1:
        matrix = _taps(r, at, 2 * (math.ceil((1 if r.mode == "linear" else 2) / r.scale) + 1), r.scale)
    elif r.mode == "linear":
        matrix = _taps(r, np.clip(at, 0, r.size - 1), 2)
    elif r.mode == "cubic":
        matrix = _taps(r, at, 4)
    else:
        raise ValueError(f"unknown mode of Resize {r.mode!r}: want nearest, linear or cubic")
    if r.coordinates == "tf_crop_and_resize":
        matrix[(at < 0) | (at > r.size - 1)] = 0.0
    return matrix


def _source_coordinates(r: AxisResize) -> _Coordinates:
    f32 = np.float32
    y, scale = np.arange(r.out, dtype=f32), f32(r.scale)
    half = (y + f32(0.5)) / scale - f32(0.5)
    if r.coordinates == "half_pixel":
        return half
    if r.coordinates == "pytorch_half_pixel":
        return half if r.out > 1 else np.zeros(1, f32)
    if r.coordinates == "asymmetric":
        return y / scale
    if r.coordinates == "align_corners":
        return y * f32(r.size - 1) / f32(r.out - 1) if r.out > 1 else np.zeros(r.out, f32)
    if r.coordinates == "half_pixel_symmetric":
        adjustment = f32(r.out) / (scale * f32(r.size))
        return f32(r.size / 2) * (f32(1) - adjustment) + half
    if r.coordinates == "tf_crop_and_resize":
        start, end = f32(r.roi[0]), f32(r.roi[1])
        if r.out == 1:
            return np.full(1, f32(0.5) * (start + end) * f32(r.size - 1), f32)
        return start * f32(r.size - 1) + y * (end - start) * f32(r.size - 1) / f32(r.out - 1)
    raise ValueError(f"unknown coordinate_transformation_mode of Resize {r.coordinates!r}")


def _nearest(r: AxisResize, at: _Coordinates) -> Matrix:
    if r.nearest == "simple":  # before opset 11
        index = np.ceil(at) if r.scale < 1 else np.floor(at)
    elif r.nearest == "round_prefer_floor":
        index = np.ceil(at - np.float32(0.5))
    elif r.nearest == "round_prefer_ceil":
        index = np.floor(at + np.float32(0.5))
    else:
        index = np.floor(at) if r.nearest == "floor" else np.ceil(at)
    matrix = np.zeros((r.out, r.size))
    matrix[np.arange(r.out), np.clip(index, 0, r.size - 1).astype(np.int64)] = 1.0
    return matrix


def _taps(r: AxisResize, at: _Coordinates, taps: int, narrow: float = 1.0) -> Matrix:
    """The weights of the `taps` pixels around each coordinate; a pixel outside counts for the one at the edge.

    Args:
        r: the resize.
        at: the position in the input of each output element.
        taps: the number of pixels, which is even.
        narrow: factor on the distances that the kernel sees; below 1 (antialiasing) the weights are scaled to sum to 1.
    """
    first = np.floor(at).astype(np.int64) - (taps // 2 - 1)
    matrix = np.zeros((r.out, r.size))
    for row in range(r.out):
        index = first[row] + np.arange(taps)
        weights = _kernel(r, (index - float(at[row])) * narrow)
        if r.exclude_outside:
            weights = np.where((index >= 0) & (index < r.size), weights, 0.0)
        if r.exclude_outside or narrow < 1:
            weights = weights / weights.sum()
        np.add.at(matrix[row], np.clip(index, 0, r.size - 1), weights)
    return matrix


def _kernel(r: AxisResize, distance: Matrix) -> Matrix:
    """The triangle (linear) or the piecewise cubic with parameter `a` (Keys 1981) at these distances."""
    x, a = np.abs(distance), r.cubic_coeff_a
    if r.mode == "linear":
        return np.maximum(1.0 - x, 0.0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))
