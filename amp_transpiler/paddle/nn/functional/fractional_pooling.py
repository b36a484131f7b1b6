"""Fractional pooling: windows of uneven sizes, whose places a random number shifts (B. Graham, arXiv 1412.6071)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.building import accept_name, builder_of, numbers, static_sizes, wrap
from amp_transpiler.paddle.nn.functional.adaptive_pooling import Sizes
from amp_transpiler.paddle.nn.functional.pooling import Size
from amp_transpiler.paddle.tensor.random import rand
from amp_transpiler.program.program import Variable

__all__ = ["fractional_max_pool2d", "fractional_max_pool3d"]


def fractional_max_pool2d(
    x: Variable,
    output_size: Sizes,
    kernel_size: Size | None = None,
    random_u: float | None = None,
    return_mask: bool = False,
) -> Any:
    """Return the largest values of windows of uneven sizes, placed so that images get a given size.

    Args:
        x: [batch, channels, height, width]; height and width must be known.
        output_size: height and width of the result, or one number for both; None keeps a size.
        kernel_size: the size of all windows, which may then overlap; without it they lie side by side.
        random_u: the number in (0, 1) that shifts the windows; drawn in each run unless given.
        return_mask: whether to return (values, their places in each flattened image, int64).

    Raises:
        InputError: `x` has another rank, its sizes are not known, or the result would be larger.
        OptionError: `random_u` is not in (0, 1), or a size means nothing.
    """
    return _pool("fractional_max_pool2d", x, output_size, kernel_size, random_u, return_mask)


def fractional_max_pool3d(
    x: Variable,
    output_size: Sizes,
    kernel_size: Size | None = None,
    random_u: float | None = None,
    return_mask: bool = False,
) -> Any:
    """Do the same for volumes [batch, channels, depth, height, width]; see `fractional_max_pool2d`."""
    return _pool("fractional_max_pool3d", x, output_size, kernel_size, random_u, return_mask)


def _pool(
    what: str, x: Variable, output_size: Sizes, kernel: Size | None, random_u: float | None, return_mask: bool
) -> Any:
    spatial = int(what[-2])
    if x.ndim != spatial + 2:
        raise InputError(f"{what}: x must have {spatial + 2} dimensions, got {x!r}")
    if random_u is not None and not 0 < random_u < 1:
        raise OptionError(f"{what}: random_u must be in (0, 1), got {random_u!r}")
    have = static_sizes(x, what)
    asked = [output_size] * spatial if output_size is None or isinstance(output_size, int) else list(output_size)
    windows = [0] * spatial if kernel is None else numbers(kernel, spatial, f"{what}: kernel_size")
    want = [size if length is None else length for size, length in zip(have, asked, strict=False)]
    if len(asked) != spatial or min(want) < 1 or (kernel is not None and min(windows) < 1):
        raise OptionError(f"{what}: sizes must be positive, {spatial} of them, got {output_size!r} and {kernel!r}")
    if any(size < length + max(window, 1) - 1 for size, length, window in zip(have, want, windows, strict=True)):
        raise InputError(f"{what}: {x!r} is too small for {want} windows of {kernel or 'any'} elements")
    with disable_amp():
        shift = rand([1]) if random_u is None else wrap(x, builder_of(x).constant(np.array([random_u], np.float32)))
        places = [_places(shift, *sizes) for sizes in zip(have, want, windows, strict=True)]
    b, pooled = builder_of(x), x.value
    for axis, inside in enumerate(places, 2):  # a window is a product of intervals: its maximum is one of maxima
        pooled = b.reduce("ReduceMax", b.op("Gather", [pooled, inside], {"axis": axis}), [axis + 1], keepdims=False)
    return (wrap(x, pooled), _positions(x, places, have)) if return_mask else wrap(x, pooled)


def _places(shift: Variable, size: int, count: int, window: int) -> ir.Value:
    """Return the numbers of the elements in each of `count` windows along an axis; a last one is repeated."""
    b = builder_of(shift)
    step = (size - window) / max(count - (window > 0), 1)
    move = shift.value
    if not window:  # no interval may be empty, nor end behind the last element
        base = size // count
        move = b.mul(move, min((base + 2) / step - 1, (size + 1 - base) / step - (count - 1)))
    edges = b.op("Floor", [b.mul(b.add(b.constant(np.arange(count + 1, dtype=np.float32)), move), step)])
    edges = b.cast(b.sub(edges, b.op("Floor", [b.mul(move, step)])), ir.DataType.INT64)
    begin, end = (b.unsqueeze(b.slice(edges, [i], [i + count], [0]), [1]) for i in (0, 1))
    end = b.add(begin, window) if window else end
    inside = b.add(begin, b.constant(np.arange(window or math.ceil(step) + 1)[None]))
    last = b.sub(b.op("Min", [end, b.constant(size)]), 1)
    return b.op("Max", [b.op("Min", [inside, last]), b.constant(0)])


def _positions(x: Variable, places: Sequence[ir.Value], have: Sequence[int]) -> Variable:
    """Return the place of the largest element of each window in the flattened image."""
    b, spatial, windows, flat = builder_of(x), len(places), x.value, None
    for axis, inside in enumerate(places):
        windows = b.op("Gather", [windows, inside], {"axis": 2 + 2 * axis})
        others = [n for n in range(2 * spatial) if n not in (axis, spatial + axis)]
        offsets = b.unsqueeze(b.mul(inside, math.prod(have[axis + 1 :])), others)
        flat = offsets if flat is None else b.add(flat, offsets)
    assert flat is not None
    order = [0, 1, *range(2, 2 + 2 * spatial, 2), *range(3, 3 + 2 * spatial, 2)]
    windows = b.reshape(b.transpose(windows, order), [0] * (2 + spatial) + [-1])
    best = b.op("ArgMax", [windows], {"axis": 2 + spatial, "keepdims": 1})
    numbers_of = b.reshape(flat, [0] * spatial + [-1])
    positions = b.op("GatherElements", [b.expand_like(numbers_of, windows), best], {"axis": 2 + spatial})
    return wrap(x, b.squeeze(positions, [2 + spatial]))


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
