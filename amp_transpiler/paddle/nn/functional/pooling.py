"""Pools by means and largest values over windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, builder_of, emit, numbers, static_sizes, wrap
from amp_transpiler.paddle.nn.functional.layout import Padding, as_given, channels_first, padding_attributes
from amp_transpiler.program.program import Variable

__all__ = [
    "adaptive_avg_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]

Size = int | Sequence[int]


def max_pool2d(
    x: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCHW",
) -> Any:
    """Return the largest value of each window.

    Args:
        x: [batch, channels, height, width], or with the channels last.
        kernel_size: size of the window, for both axes or each.
        stride: step of the window; the window's size unless given.
        padding: padding around the image, which is below every value.
        return_mask: whether to return (values, their places in each flattened image, int64), too.
        ceil_mode: whether a window that is only partly inside the image counts.
        data_format: `NCHW` or `NHWC`.

    Raises:
        InputError: `x` does not have four dimensions.
        OptionError: an argument means nothing, or the channels are last with `return_mask`.
    """
    return _largest("max_pool2d", x, (kernel_size, stride, padding), return_mask, ceil_mode, data_format)


def max_pool1d(
    x: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
) -> Any:
    """Return the largest value of each window of sequences [batch, channels, length]; see `max_pool2d`."""
    return _largest("max_pool1d", x, (kernel_size, stride, padding), return_mask, ceil_mode, "NCL")


def max_pool3d(
    x: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCDHW",
) -> Any:
    """Return the largest value of each window of volumes [batch, channels, depth, height, width]; see `max_pool2d`."""
    return _largest("max_pool3d", x, (kernel_size, stride, padding), return_mask, ceil_mode, data_format)


def _largest(
    what: str,
    x: Variable,
    windows: tuple[Size, Size | None, Padding],
    return_mask: bool,
    ceil_mode: bool,
    data_format: str,
) -> Any:
    attributes = {"ceil_mode": int(ceil_mode)}
    if not return_mask:
        return pool("MaxPool", what, x, windows, attributes, data_format)
    if not data_format.startswith("NC"):
        raise OptionError(f"{what}: return_mask=True needs the channels first, got data_format {data_format!r}")
    attributes |= _windows(what, x, windows, data_format)
    b = builder_of(x)
    values, places = b.nodes("MaxPool", [x.value], attributes, outputs=2)
    size = b.reduce("ReduceProd", b.slice(b.shape(x.value), [2], [x.ndim], [0]), None, keepdims=False)
    return wrap(x, values), wrap(x, b.op("Mod", [places, size]))  # ONNX counts over batch and channels, too


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
    return _average(
        "avg_pool2d", x, (kernel_size, stride, padding), ceil_mode, exclusive, divisor_override, data_format
    )


def _average(
    what: str,
    x: Variable,
    windows: tuple[Size, Size | None, Padding],
    ceil_mode: bool,
    exclusive: bool,
    divisor_override: int | None,
    data_format: str,
) -> Variable:
    counted = {"ceil_mode": int(ceil_mode), "count_include_pad": int(not exclusive or divisor_override is not None)}
    pooled = pool("AveragePool", what, x, windows, counted, data_format)
    if divisor_override is None:
        return pooled
    if ceil_mode:
        raise OptionError(f"{what}: divisor_override with ceil_mode=True is not available: pad the image instead")
    if divisor_override == 0:
        raise OptionError(f"{what}: divisor_override must not be 0")
    size = int(np.prod(numbers(windows[0], int(what[-2]), f"{what}: kernel_size")))
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
    return pool("AveragePool", "avg_pool1d", x, (kernel_size, stride, padding), counted, "NCL")


def avg_pool3d(
    x: Variable,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: int | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Return the mean of each window of volumes [batch, channels, depth, height, width]; see `avg_pool2d`."""
    return _average(
        "avg_pool3d", x, (kernel_size, stride, padding), ceil_mode, exclusive, divisor_override, data_format
    )


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
    sizes = [output_size] * 2 if output_size is None or isinstance(output_size, int) else list(output_size)
    if len(sizes) != 2 or any(size is not None and size < 1 for size in sizes):
        raise OptionError(f"{what}: output_size must be a positive number, None, or two of them, got {output_size!r}")
    if sizes == [1, 1]:
        return as_given(emit("GlobalAveragePool", [x]), data_format)
    have = static_sizes(x, what)
    want = [h if size is None else size for h, size in zip(have, sizes, strict=True)]
    if all(h % w == 0 for h, w in zip(have, want, strict=True)):
        window = [h // w for h, w in zip(have, want, strict=True)]
        pooled = emit("AveragePool", [x], {"kernel_shape": window, "strides": window})
        return as_given(pooled, data_format)
    b = builder_of(
        x
    )  # the windows have different sizes, which no ONNX operator offers: multiply with averaging matrices
    rows, columns = (means_matrix(h, w) for h, w in zip(have, want, strict=True))
    mixed = b.matmul(b.matmul(b.constant(rows, x.value.dtype), x.value), b.constant(columns.T, x.value.dtype))
    return as_given(wrap(x, mixed), data_format)


def means_matrix(size: int, windows: int) -> np.ndarray:
    """Return the averaging matrix [windows, size]; window i runs from floor(i s / w) to ceil((i + 1) s / w)."""
    matrix = np.zeros((windows, size), np.float32)
    for window in range(windows):
        begin, end = window * size // windows, -(-(window + 1) * size // windows)
        matrix[window, begin:end] = 1.0 / (end - begin)
    return matrix


def pool(
    op_type: str,
    what: str,
    x: Variable,
    windows: tuple[Size, Size | None, Padding],
    attributes: dict[str, Any],
    data_format: str,
) -> Variable:
    """Append an operator on windows.

    Args:
        op_type: the operator.
        what: the function's name, which ends in the number of spatial axes and `d`.
        x: channels first or last, as `data_format` says.
        windows: size, step and padding of the windows.
        attributes: the operator's others.
        data_format: where the channels are.

    Raises:
        InputError: `x` has another rank.
        OptionError: the windows mean nothing.
    """
    x = channels_first(x, data_format)
    return as_given(emit(op_type, [x], {**_windows(what, x, windows, data_format), **attributes}), data_format)


def _windows(what: str, x: Variable, windows: tuple[Size, Size | None, Padding], data_format: str) -> dict[str, Any]:
    spatial = int(what[-2])
    if x.ndim != spatial + 2:
        raise InputError(f"{what}: x must have {spatial + 2} dimensions, got {x!r}")
    size, stride, padding = windows
    kernel = numbers(size, spatial, f"{what}: kernel_size")
    strides = kernel if stride is None else numbers(stride, spatial, f"{what}: stride")
    if min(*kernel, *strides) < 1:
        raise OptionError(f"{what}: kernel_size and stride must be positive, got {size!r} and {stride!r}")
    return {"kernel_shape": kernel, "strides": strides, **padding_attributes(padding, spatial, data_format, what)}


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
