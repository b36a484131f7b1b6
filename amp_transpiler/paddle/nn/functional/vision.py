"""Moves pixels: shuffles them, makes columns of windows, samples at grids; builds masks and smooths labels."""
# Paddle's names

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, builder_of, choice, in_one_type, numbers, size_at, wrap
from amp_transpiler.paddle.nn.functional.common import interpolate, pad
from amp_transpiler.paddle.nn.functional.layout import as_given, channels_first
from amp_transpiler.program.program import Variable

__all__ = [
    "affine_grid",
    "bilinear",
    "channel_shuffle",
    "fold",
    "grid_sample",
    "label_smooth",
    "pixel_shuffle",
    "pixel_unshuffle",
    "sequence_mask",
    "temporal_shift",
    "unfold",
    "upsample",
    "zeropad2d",
]

Pair = int | Sequence[int]

# ---- channels and pixels ----


def pixel_shuffle(x: Variable, upscale_factor: int, data_format: str = "NCHW") -> Variable:
    """Turn channels into pixels: [batch, channels * factor^2, h, w] becomes [batch, channels, h * factor, w * factor].

    Raises:
        InputError: the channels are no multiple of the factor's square.
    """
    x = channels_first(x, data_format)
    channels = size_at(x, 1, "pixel_shuffle")
    if channels % upscale_factor**2:
        raise InputError(f"pixel_shuffle: {channels} channels of '{x.name}' are no multiple of {upscale_factor}^2")
    b = builder_of(x)
    return as_given(wrap(x, b.op("DepthToSpace", [x.value], {"blocksize": upscale_factor, "mode": "CRD"})), data_format)


def pixel_unshuffle(x: Variable, downscale_factor: int, data_format: str = "NCHW") -> Variable:
    """Turn pixels into channels, which undoes `pixel_shuffle`.

    Raises:
        InputError: height or width is no multiple of the factor.
    """
    x = channels_first(x, data_format)
    r = downscale_factor
    if any(size >= 0 and size % r for size in x.shape[2:]):
        raise InputError(f"pixel_unshuffle: height and width of {x!r} must be multiples of {r}")
    b, channels = builder_of(x), size_at(x, 1, "pixel_unshuffle")
    deep = b.op("SpaceToDepth", [x.value], {"blocksize": r})  # the pixels before the channels
    order = np.arange(r * r * channels).reshape(r * r, channels).T.reshape(-1)
    regrouped = deep if channels == 1 else b.op("Gather", [deep, b.constant(order.astype(np.int64))], {"axis": 1})
    return as_given(wrap(x, regrouped), data_format)


def channel_shuffle(x: Variable, groups: int, data_format: str = "NCHW") -> Variable:
    """Take channels from each group in turn.

    Raises:
        InputError: the channels cannot be split into so many groups.
    """
    x = channels_first(x, data_format)
    channels = size_at(x, 1, "channel_shuffle")
    if groups < 1 or channels % groups:
        raise InputError(f"channel_shuffle: the {channels} channels of '{x.name}' cannot be split into {groups} groups")
    b = builder_of(x)
    order = np.arange(channels).reshape(groups, -1).T.reshape(-1)
    return as_given(wrap(x, b.op("Gather", [x.value, b.constant(order.astype(np.int64))], {"axis": 1})), data_format)


def temporal_shift(x: Variable, seg_num: int, shift_ratio: float = 0.25, data_format: str = "NCHW") -> Variable:
    """Move a share of the channels one frame back, and as many one frame ahead.

    Args:
        x: [batch * seg_num, channels, height, width], or with the channels last.
        seg_num: how many frames belong together.
        shift_ratio: the share, at most a half.
        data_format: `NCHW` or `NHWC`.
    """
    x = channels_first(x, data_format)
    b, channels = builder_of(x), size_at(x, 1, "temporal_shift")
    rest = b.slice(b.shape(x.value), [1], [4], [0])
    frames = b.reshape(x.value, b.concat([b.constant(np.array([-1, seg_num], np.int64)), rest], 0))
    frames.shape = ir.Shape([None, seg_num, *x.shape[1:2], None, None])
    first, second = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    lengths = b.constant(np.array([first, second - first, channels - second], np.int64))
    back, ahead, still = b.nodes("Split", [frames, lengths], {"axis": 2}, outputs=3)
    moved = []
    for part, (before, after) in ((back, (1, -1)), (ahead, (-1, 1))):
        ends = b.constant(np.array([0, before, 0, 0, 0, 0, after, 0, 0, 0], np.int64))
        moved.append(b.op("Pad", [part, ends]))
    return as_given(wrap(x, b.reshape_like(b.concat([*moved, still], 2), x.value)), data_format)


def zeropad2d(x: Variable, padding: Pair, data_format: str = "NCHW") -> Variable:
    """Put zeros around images: left, right, top, bottom, or one number for all."""
    return pad(x, numbers(padding, 4, "zeropad2d: padding"), "constant", 0.0, data_format)


def upsample(
    x: Variable,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
    data_format: str = "NCHW",
) -> Variable:
    """Resize images, as `interpolate`."""
    return interpolate(x, size, scale_factor, mode, align_corners, align_mode, data_format)


# ---- windows ----


def unfold(x: Variable, kernel_sizes: Pair, strides: Pair = 1, paddings: Pair = 0, dilations: Pair = 1) -> Variable:
    """Return the windows of images as columns.

    Args:
        x: [batch, channels, height, width], of known sizes but for the batch.
        kernel_sizes: size of the window, for both axes or each.
        strides: step of the window.
        paddings: zeros around the image: one number, for both axes, or top, left, bottom and right.
        dilations: distance between the elements of the window.

    Returns:
        [batch, channels * window, windows].
    """
    size, step, spread = (
        numbers(v, 2, f"unfold: {what}")
        for v, what in ((kernel_sizes, "kernel_sizes"), (strides, "strides"), (dilations, "dilations"))
    )
    edges = _edges(paddings, "unfold")
    b, channels = builder_of(x), size_at(x, 1, "unfold")
    value, places = x.value, []
    if any(edges):
        ends = [0, 0, edges[0], edges[1], 0, 0, edges[2], edges[3]]
        value = b.op("Pad", [value, b.constant(np.array(ends, np.int64))])
    for axis in range(2):
        length = size_at(x, 2 + axis, "unfold") + edges[axis] + edges[axis + 2]
        count = (length - spread[axis] * (size[axis] - 1) - 1) // step[axis] + 1
        places.append(np.arange(size[axis])[:, None] * spread[axis] + np.arange(count) * step[axis])
    rows = b.op("Gather", [value, b.constant(places[0])], {"axis": 2})
    taps = b.transpose(b.op("Gather", [rows, b.constant(places[1])], {"axis": 4}), [0, 1, 2, 4, 3, 5])
    windows = places[0].shape[1] * places[1].shape[1]
    return wrap(x, b.reshape(taps, [-1, channels * size[0] * size[1], windows]))


def _edges(paddings: Pair, what: str) -> list[int]:
    """Return the padding at the top, left, bottom and right."""
    amounts = [paddings] if isinstance(paddings, int) else [int(amount) for amount in paddings]
    if len(amounts) == 4:
        return amounts
    return numbers(amounts, 2, f"{what}: paddings") * 2


def fold(
    x: Variable, output_sizes: Pair, kernel_sizes: Pair, strides: Pair = 1, paddings: Pair = 0, dilations: Pair = 1
) -> Variable:
    """Add windows, which are columns, to images, where `unfold` took them from.

    Args:
        x: [batch, channels * window, windows].
        output_sizes: height and width of the images.
        kernel_sizes: size of the window, for both axes or each.
        strides: step of the window.
        paddings: what is cut off around the image: one number, for both axes, or top, left, bottom and right.
        dilations: distance between the elements of the window.

    Returns:
        [batch, channels, height, width].

    Raises:
        InputError: there are not as many windows or channels as these sizes need.
    """
    image, size, step, spread = (
        numbers(v, 2, f"fold: {what}")
        for v, what in (
            (output_sizes, "output_sizes"),
            (kernel_sizes, "kernel_sizes"),
            (strides, "strides"),
            (dilations, "dilations"),
        )
    )
    edges, taps = _edges(paddings, "fold"), size[0] * size[1]
    width = size_at(x, 1, "fold")
    counts, extra = [], []
    for axis in range(2):
        room = image[axis] + edges[axis] + edges[axis + 2] - spread[axis] * (size[axis] - 1) - 1
        counts.append(room // step[axis] + 1)
        extra.append(room % step[axis])
    if width % taps or x.shape[2] not in (-1, counts[0] * counts[1]):
        raise InputError(f"fold: expected [batch, a multiple of {taps}, {counts[0] * counts[1]}], got {x!r}")
    b, channels = builder_of(x), width // taps
    columns = b.reshape(x.value, [-1, width, *counts])
    place = np.tile(np.eye(taps, dtype=np.float32).reshape(taps, 1, *size), (channels, 1, 1, 1))
    attributes = {"strides": step, "dilations": spread, "pads": edges, "group": channels}
    if any(extra):
        attributes["output_padding"] = extra
    return wrap(x, b.op("ConvTranspose", [columns, b.constant(place, x.value.dtype)], attributes))


# ---- sampling ----


def affine_grid(theta: Variable, out_shape: Sequence[int], align_corners: bool = True) -> Variable:
    """Return the places, from -1 to 1, at which images moved by matrices are sampled; see `grid_sample`.

    Args:
        theta: [batch, 2, 3], or [batch, 3, 4] for volumes.
        out_shape: [batch, channels, height, width], or with a depth before the height.
        align_corners: whether -1 and 1 are the centres of the outermost pixels, or their edges.

    Returns:
        [batch, height, width, 2], or [batch, depth, height, width, 3].

    Raises:
        InputError: the matrices do not fit the shape.
    """
    sizes = [int(size) for size in out_shape][2:]
    if theta.ndim != 3 or theta.shape[1:] != (len(sizes), len(sizes) + 1):
        raise InputError(f"affine_grid: expected theta [batch, {len(sizes)}, {len(sizes) + 1}], got {theta!r}")
    lines = []
    for size in sizes:
        line = np.linspace(-1, 1, size) if size > 1 else np.zeros(1)
        lines.append(line if align_corners else line * (size - 1) / size)
    points = np.stack([*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(sizes)], -1)
    b = builder_of(theta)
    flat = b.constant(points.reshape(-1, len(sizes) + 1), theta.value.dtype)
    grid = b.matmul(flat, b.transpose(theta.value, [0, 2, 1]))
    return wrap(theta, b.reshape(grid, [-1, *sizes, len(sizes)]))


def grid_sample(
    x: Variable, grid: Variable, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = True
) -> Variable:
    """Sample images at the places of a grid.

    Args:
        x: [batch, channels, height, width].
        grid: [batch, height, width, 2]: column and row, from -1 to 1.
        mode: `bilinear` or `nearest`.
        padding_mode: what is outside: `zeros`, the `border`, or the image's `reflection`.
        align_corners: whether -1 and 1 are the centres of the outermost pixels, or their edges.

    Raises:
        OptionError: there is no such mode.
    """
    choice("grid_sample: mode", mode, ("bilinear", "nearest"))
    choice("grid_sample: padding_mode", padding_mode, ("zeros", "border", "reflection"))
    b = builder_of(x, grid)
    names = {"bilinear": "linear"} if b.opset >= 20 else {}
    attributes = {"mode": names.get(mode, mode), "padding_mode": padding_mode, "align_corners": int(align_corners)}
    return wrap(x, b.op("GridSample", [x.value, grid.value], attributes))


# ---- products, masks, labels ----


def bilinear(x1: Variable, x2: Variable, weight: Variable, bias: Variable | None = None) -> Variable:
    """Return `x1 @ weight[k] @ x2` for each output k, and `bias`.

    Args:
        x1: [batch, one].
        x2: [batch, other].
        weight: [out, one, other].
        bias: [1, out].
    """
    b = builder_of(x1, x2, weight, bias)
    rows = b.matmul(b.unsqueeze(x1.value, [0]), weight.value)  # [out, batch, other]
    products = b.transpose(b.cast(b.sum(b.mul(rows, x2.value), [2], keepdims=False), x1.value.dtype), [1, 0])
    return wrap(x1, products if bias is None else b.add(products, bias.value))


def sequence_mask(x: Variable, maxlen: int | Variable | None = None, dtype: Any = "int64") -> Variable:
    """Return 1 at the first places of each row, as many as `x` says, and 0 behind.

    Args:
        x: lengths, integers.
        maxlen: the size of the new last axis; the largest length unless given.
        dtype: element type of the result.
    """
    b = builder_of(x, maxlen if isinstance(maxlen, Variable) else None)
    lengths = b.cast(x.value, ir.DataType.INT64)
    if maxlen is None:
        end = b.reduce("ReduceMax", lengths, None, keepdims=False)
    else:
        end = b.constant(int(maxlen)) if isinstance(maxlen, int) else b.reshape(b.cast(maxlen.value, lengths.dtype), [])
    places = b.op("Range", [b.constant(0), end, b.constant(1)])
    return wrap(x, b.cast(b.compare("Less", places, b.unsqueeze(lengths, [x.ndim])), parse_dtype(dtype)))


def label_smooth(label: Variable, prior_dist: Variable | None = None, epsilon: float = 0.1) -> Variable:
    """Return `(1 - epsilon) * label + epsilon * prior`; the prior is even unless `prior_dist` is given.

    Raises:
        OptionError: `epsilon` is outside of [0, 1].
    """
    if not 0 <= epsilon <= 1:
        raise OptionError(f"label_smooth: epsilon must be from 0 to 1, got {epsilon}")
    b = builder_of(label, prior_dist)
    scaled = b.mul(label.value, 1.0 - epsilon)
    if prior_dist is None:
        return wrap(label, b.add(scaled, epsilon / size_at(label, -1, "label_smooth")))
    return wrap(label, b.add(scaled, b.mul(in_one_type(label, prior_dist)[1], float(epsilon))))


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
