"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.nn.functional.building import builder_of, emit, numbers, static_sizes, wrap
from amp_transpiler.paddle.nn.functional.layout import Padding, as_given, channels_first, padding_attributes

__all__ = ["adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "max_pool1d", "max_pool2d"]

Size = int | Sequence[int]


def max_pool2d(
    x: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCHW",
) -> Variable:
    """Return the largest value of each window.

    Args:
        x: [batch, channels, height, width], or with the channels last.
        kernel_size: size of the window, for both axes or each.
        stride: step of the window; the window's size unless given.
        padding: padding around the image, which is below every value.
        return_mask: must be False.
        ceil_mode: whether a window that is only partly inside the image counts.
        data_format: `NCHW` or `NHWC`.

    Raises:
        InputError: `x` does not have four dimensions.
        OptionError: an argument means nothing, or `return_mask` is set.
    """
    _no_mask(return_mask)
    return _pool("MaxPool", "max_pool2d", x, (kernel_size, stride, padding), {"ceil_mode": int(ceil_mode)}, data_format)


def max_pool1d(
    x: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
) -> Variable:
    """Return the largest value of each window of sequences [batch, channels, length]; see `max_pool2d`."""
    _no_mask(return_mask)
    return _pool("MaxPool", "max_pool1d", x, (kernel_size, stride, padding), {"ceil_mode": int(ceil_mode)}, "NCL")


def avg_pool2d(
    x: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: int | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Return the mean of each window.

    Args:
        x: [batch, channels, height, width], or with the channels last.
        kernel_size: size of the window, for both axes or each.
        stride: step of the window; the window's size unless given.
        padding: zeros around the image.
        ceil_mode: whether a window that is only partly inside the image counts.
        exclusive: whether to divide by the number of image elements in the window, padding left out.
        divisor_override: a divisor to use instead.
        data_format: `NCHW` or `NHWC`.

    Raises:
        InputError: `x` does not have four dimensions.
        OptionError: an argument means nothing.
    """
    counted = {"ceil_mode": int(ceil_mode), "count_include_pad": int(not exclusive or divisor_override is not None)}
    pooled = _pool("AveragePool", "avg_pool2d", x, (kernel_size, stride, padding), counted, data_format)
    if divisor_override is None:
        return pooled
    if ceil_mode:
        raise OptionError("avg_pool2d: divisor_override with ceil_mode=True is not available: pad the image instead")
    if divisor_override == 0:
        raise OptionError("avg_pool2d: divisor_override must not be 0")
    size = int(np.prod(numbers(kernel_size, 2, "avg_pool2d: kernel_size")))
    return wrap(pooled, builder_of(pooled).mul(pooled.value, size / divisor_override))


def avg_pool1d(
    x: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    exclusive: bool = True,
    ceil_mode: bool = False,
) -> Variable:
    """Return the mean of each window of sequences [batch, channels, length]; see `avg_pool2d`."""
    counted = {"ceil_mode": int(ceil_mode), "count_include_pad": int(not exclusive)}
    return _pool("AveragePool", "avg_pool1d", x, (kernel_size, stride, padding), counted, "NCL")


def adaptive_avg_pool2d(
    x: Variable, output_size: int | Sequence[int | None] | None, data_format: str = "NCHW"
) -> Variable:
    """Return the means of windows placed so that the result has a given size.

    Args:
        x: [batch, channels, height, width], or with the channels last; the sizes must be known unless
            `output_size` is 1.
        output_size: height and width of the result, or one number for both; None keeps a size.
        data_format: `NCHW` or `NHWC`.

    Raises:
        InputError: `x` does not have four dimensions, or its sizes are not known.
        OptionError: an argument means nothing.
    """
    what = "adaptive_avg_pool2d"
    x = channels_first(x, data_format)
    if x.ndim != 4:
        raise InputError(f"{what}: x must have 4 dimensions, got {x!r}")
    given = [output_size] * 2 if output_size is None or isinstance(output_size, int) else list(output_size)
    if len(given) != 2 or any(size is not None and size < 1 for size in given):
        raise OptionError(f"{what}: output_size must be a positive number, None, or two of them, got {output_size!r}")
    if given == [1, 1]:
        return as_given(emit("GlobalAveragePool", [x]), data_format)
    have = static_sizes(x, what)
    want = [h if size is None else size for h, size in zip(have, given, strict=True)]
    if all(h % w == 0 for h, w in zip(have, want, strict=True)):
        window = [h // w for h, w in zip(have, want, strict=True)]
        pooled = emit("AveragePool", [x], {"kernel_shape": window, "strides": window})
        return as_given(pooled, data_format)
    b = builder_of(
        x
    )  # the windows have different sizes, which no ONNX operator offers: multiply with averaging matrices
    rows, columns = (_means(h, w) for h, w in zip(have, want, strict=True))
    mixed = b.matmul(b.matmul(b.constant(rows, x.value.dtype), x.value), b.constant(columns.T, x.value.dtype))
    return as_given(wrap(x, mixed), data_format)


def _means(size: int, windows: int) -> np.ndarray:
    """Return the averaging matrix [windows, size]; window i runs from floor(i s / w) to ceil((i + 1) s / w)."""
    matrix = np.zeros((windows, size), np.float32)
    for window in range(windows):
        begin, end = window * size // windows, -(-(window + 1) * size // windows)
        matrix[window, begin:end] = 1.0 / (end - begin)
    return matrix


def _no_mask(return_mask: bool) -> None:
    if return_mask:
        raise OptionError(
            "max_pool: return_mask=True is not available: ONNX counts its indices over batch and channels"
        )


def _pool(
    op_type: str,
    what: str,
    x: Variable,
    windows: tuple[Size, Size | None, Padding],
    attributes: dict[str, Any],
    data_format: str,
) -> Variable:
    spatial = int(what[-2])
    x = channels_first(x, data_format)
    if x.ndim != spatial + 2:
        raise InputError(f"{what}: x must have {spatial + 2} dimensions, got {x!r}")
    size, stride, padding = windows
    kernel = numbers(size, spatial, f"{what}: kernel_size")
    strides = kernel if stride is None else numbers(stride, spatial, f"{what}: stride")
    if min(*kernel, *strides) < 1:
        raise OptionError(f"{what}: kernel_size and stride must be positive, got {size!r} and {stride!r}")
    pads = padding_attributes(padding, spatial, data_format, what)
    pooled = emit(op_type, [x], {"kernel_shape": kernel, "strides": strides, **pads, **attributes})
    return as_given(pooled, data_format)


mark_functions(globals(), __all__)
