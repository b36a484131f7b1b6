"""Pools to a size, undoes pooling, and pools by norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, builder_of, emit, numbers, static_sizes, wrap
from amp_transpiler.paddle.nn.functional.layout import Padding, as_given, channels_first
from amp_transpiler.paddle.nn.functional.pooling import Size, means_matrix, pool
from amp_transpiler.program.program import Variable

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
]

Sizes = int | Sequence[int | None] | None

# ---- to a size ----


def adaptive_avg_pool1d(x: Variable, output_size: Sizes) -> Variable:
    """Average windows placed so that sequences [batch, channels, length] get a given length."""
    return _means(x, output_size, 1, "NCL")


def adaptive_avg_pool3d(x: Variable, output_size: Sizes, data_format: str = "NCDHW") -> Variable:
    """Average windows placed so that volumes get a given size; see `adaptive_avg_pool2d`."""
    return _means(x, output_size, 3, data_format)


def adaptive_max_pool1d(x: Variable, output_size: Sizes, return_mask: bool = False) -> Variable:
    """Return the largest values of windows that give sequences [batch, channels, length] a given length."""
    return _largest(x, output_size, 1, return_mask)


def adaptive_max_pool2d(x: Variable, output_size: Sizes, return_mask: bool = False) -> Variable:
    """Return the largest values of windows that give images [batch, channels, height, width] a given size."""
    return _largest(x, output_size, 2, return_mask)


def adaptive_max_pool3d(x: Variable, output_size: Sizes, return_mask: bool = False) -> Variable:
    """Return the largest values of windows placed so that volumes get a given size."""
    return _largest(x, output_size, 3, return_mask)


def _target_sizes(x: Variable, output_size: Sizes, spatial: int, what: str) -> tuple[list[int], list[int]]:
    """Return the sizes that there are, and those that are asked for.

    Raises:
        InputError: `x` has another rank, or its sizes are not known.
        OptionError: the sizes mean nothing.
    """
    if x.ndim != spatial + 2:
        raise InputError(f"{what}{spatial}d: x must have {spatial + 2} dimensions, got {x!r}")
    sizes = [output_size] * spatial if output_size is None or isinstance(output_size, int) else list(output_size)
    if len(sizes) == 1:
        sizes = sizes * spatial
    if len(sizes) != spatial or any(size is not None and size < 1 for size in sizes):
        raise OptionError(
            f"{what}{spatial}d: expected a positive size, None, or {spatial} of them, got {output_size!r}"
        )
    have = list(static_sizes(x, f"{what}{spatial}d"))
    return have, [h if size is None else size for h, size in zip(have, sizes, strict=True)]


def _means(x: Variable, output_size: Sizes, spatial: int, data_format: str) -> Variable:
    x = channels_first(x, data_format)
    if output_size == 1 or output_size == [1] * spatial:
        return as_given(emit("GlobalAveragePool", [x]), data_format)
    have, want = _target_sizes(x, output_size, spatial, "adaptive_avg_pool")
    if all(h % w == 0 for h, w in zip(have, want, strict=True)):
        window = [h // w for h, w in zip(have, want, strict=True)]
        return as_given(emit("AveragePool", [x], {"kernel_shape": window, "strides": window}), data_format)
    b, value = builder_of(x), x.value
    for axis, (size, windows) in enumerate(zip(have, want, strict=True), 2):
        if size == windows:
            continue
        order = [i for i in range(x.ndim) if i != axis] + [axis]
        mixed = b.matmul(b.transpose(value, order), b.constant(means_matrix(size, windows).T, x.value.dtype))
        value = b.transpose(mixed, [int(i) for i in np.argsort(order)])
    return as_given(wrap(x, value), data_format)


def _largest(x: Variable, output_size: Sizes, spatial: int, return_mask: bool) -> Variable:
    if return_mask:
        raise OptionError("adaptive_max_pool: return_mask=True is not available: use max_pool with windows of one size")
    have, want = _target_sizes(x, output_size, spatial, "adaptive_max_pool")
    if all(h % w == 0 for h, w in zip(have, want, strict=True)):
        window = [h // w for h, w in zip(have, want, strict=True)]
        return emit("MaxPool", [x], {"kernel_shape": window, "strides": window})
    b, value = builder_of(x), x.value
    for axis, (size, windows) in enumerate(zip(have, want, strict=True), 2):
        begins = [i * size // windows for i in range(windows)]
        ends = [-(-(i + 1) * size // windows) for i in range(windows)]
        longest = max(end - begin for begin, end in zip(begins, ends, strict=True))
        # Shorter windows hold their last element again.
        places = np.array([[min(b0 + i, e0 - 1) for i in range(longest)] for b0, e0 in zip(begins, ends, strict=True)])
        taken = b.op("Gather", [value, b.constant(places.astype(np.int64))], {"axis": axis})
        value = b.reduce("ReduceMax", taken, [axis + 1], keepdims=False, low=True)
    return wrap(x, value)


# ---- back from a size ----


def max_unpool1d(
    x: Variable,
    indices: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    data_format: str = "NCL",
    output_size: Sequence[int] | None = None,
) -> Variable:
    """Put values back where `max_pool1d` took them from, with zeros between; see `max_unpool2d`."""
    return _unpool(x, indices, (kernel_size, stride, padding), output_size, 1, data_format)


def max_unpool2d(
    x: Variable,
    indices: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    data_format: str = "NCHW",
    output_size: Sequence[int] | None = None,
) -> Variable:
    """Put values back where `max_pool2d` took them from, with zeros between.

    Args:
        x: [batch, channels, height, width], of known sizes.
        indices: what `max_pool2d(..., return_mask=True)` gave.
        kernel_size: size of the window.
        stride: step of the window; the window's size unless given.
        padding: padding around the image.
        data_format: channels first.
        output_size: the sizes of the result, the last of them height and width; made from the window unless given.

    Raises:
        OptionError: the channels are last.
    """
    return _unpool(x, indices, (kernel_size, stride, padding), output_size, 2, data_format)


def max_unpool3d(
    x: Variable,
    indices: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    data_format: str = "NCDHW",
    output_size: Sequence[int] | None = None,
) -> Variable:
    """Put values back where `max_pool3d` took them from, with zeros between; see `max_unpool2d`."""
    return _unpool(x, indices, (kernel_size, stride, padding), output_size, 3, data_format)


def _unpool(
    x: Variable,
    indices: Variable,
    windows: tuple[Size, Size | None, Size],
    output_size: Sequence[int] | None,
    spatial: int,
    data_format: str,
) -> Variable:
    what = f"max_unpool{spatial}d"
    if not data_format.startswith("NC"):
        raise OptionError(f"{what}: the channels must be first, got data_format {data_format!r}")
    size, stride, padding = windows
    kernel, pads = numbers(size, spatial, what), numbers(padding, spatial, what)
    steps = kernel if stride is None else numbers(stride, spatial, what)
    have = static_sizes(x, what)
    sizes = [(h - 1) * s - 2 * p + k for h, s, p, k in zip(have, steps, pads, kernel, strict=True)]
    if output_size is not None:
        sizes = [int(s) for s in output_size][-spatial:]
    b, (flat, wide) = builder_of(x, indices), (math.prod(have), math.prod(sizes))
    values = b.reshape(x.value, [0, 0, flat])
    places = b.reshape(b.cast(indices.value, ir.DataType.INT64), [0, 0, flat])
    lead = b.slice(b.shape(x.value), [0], [2], [0])
    room = b.concat([lead, b.constant(np.array([wide], np.int64))], 0)
    zeros = b.op("Expand", [b.constant(0, x.value.dtype), room])
    written = b.op("ScatterElements", [zeros, places, values], {"axis": 2})
    return wrap(x, b.reshape(written, [0, 0, *sizes]))


# ---- by norms ----


def lp_pool1d(
    x: Variable,
    norm_type: float,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    data_format: str = "NCL",
) -> Variable:
    """Return the norms of windows of sequences: the root of the sum of powers; see `lp_pool2d`."""
    return _norms(x, norm_type, (kernel_size, stride, padding), ceil_mode, 1, data_format)


def lp_pool2d(
    x: Variable,
    norm_type: float,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    data_format: str = "NCHW",
) -> Variable:
    """Return the norms of windows of images: `(sum of |x| ** norm_type) ** (1 / norm_type)`.

    Args:
        x: [batch, channels, height, width], or with the channels last.
        norm_type: the power; a whole number.
        kernel_size: size of the window.
        stride: step of the window; the window's size unless given.
        padding: zeros around the image.
        ceil_mode: whether a window that is only partly inside the image counts.
        data_format: `NCHW` or `NHWC`.

    Raises:
        OptionError: the power is no positive whole number.
    """
    return _norms(x, norm_type, (kernel_size, stride, padding), ceil_mode, 2, data_format)


def _norms(
    x: Variable,
    norm_type: float,
    windows: tuple[Size, Size | None, Padding],
    ceil_mode: bool,
    spatial: int,
    data_format: str,
) -> Variable:
    if norm_type < 1 or norm_type != int(norm_type):
        raise OptionError(f"lp_pool{spatial}d: norm_type must be a positive whole number, got {norm_type}")
    attributes = {"p": int(norm_type), "ceil_mode": int(ceil_mode)}
    return pool("LpPool", f"lp_pool{spatial}d", x, windows, attributes, data_format)


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
