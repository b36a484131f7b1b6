"""Computes convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, emit, for_parameters, numbers, size_at
from amp_transpiler.paddle.nn.functional.layout import Padding, as_given, channels_first, padding_attributes
from amp_transpiler.program.program import Variable

__all__ = ["conv1d", "conv1d_transpose", "conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose"]


def conv2d(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Correlate images with filters.

    Args:
        x: [batch, channels, height, width], or with the channels last.
        weight: [filters, channels / groups, height, width].
        bias: [filters].
        stride: step of the window, for both axes or each.
        padding: zeros around the image: `SAME`, `VALID`, or numbers (see `layout.padding_attributes`).
        dilation: distance between the elements of the window.
        groups: channels and filters are split into this many groups; filters of a group see only its channels.
        data_format: `NCHW` or `NHWC`.

    Raises:
        InputError: channels, filters and groups do not fit each other.
        OptionError: stride, padding, dilation or format mean nothing.
    """
    return _conv(x, weight, bias, (stride, padding, dilation), groups, data_format, 2)


def conv1d(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    data_format: str = "NCL",
) -> Variable:
    """Correlate sequences [batch, channels, length] with filters [filters, channels / groups, length]; see `conv2d`."""
    return _conv(x, weight, bias, (stride, padding, dilation), groups, data_format, 1)


def conv3d(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    data_format: str = "NCDHW",
) -> Variable:
    """Correlate volumes [batch, channels, depth, height, width] with filters; see `conv2d`."""
    return _conv(x, weight, bias, (stride, padding, dilation), groups, data_format, 3)


_Windows = tuple[int | Sequence[int], Padding, int | Sequence[int]]


def _conv(
    x: Variable,
    weight: Variable,
    bias: Variable | None,
    windows: _Windows,
    groups: int,
    data_format: str,
    spatial: int,
) -> Variable:
    what = f"conv{spatial}d"
    x = channels_first(x, data_format)
    _check_ranks(what, x, weight, spatial)
    channels = size_at(x, 1, what)
    if groups < 1 or channels != weight.shape[1] * groups or weight.shape[0] % groups:
        raise InputError(
            f"{what}: '{x.name}' has {channels} channels and weight '{weight.name}' is {list(weight.shape)} with "
            f"groups={groups}: expected [a multiple of {groups}, channels / groups, ...]"
        )
    attributes = _window_attributes(what, windows, groups, data_format, spatial)
    operands = for_parameters(x, weight, *([] if bias is None else [bias]))
    return as_given(emit("Conv", operands, attributes), data_format)


def _window_attributes(what: str, windows: _Windows, groups: int, data_format: str, spatial: int) -> dict[str, Any]:
    stride, padding, dilation = windows
    pads = padding_attributes(padding, spatial, data_format, what)
    dilations = numbers(dilation, spatial, f"{what}: dilation")
    if "auto_pad" in pads:
        dilations = [1] * spatial  # as Paddle does; ONNX Runtime computes wrong padding for a dilated window
    strides = numbers(stride, spatial, f"{what}: stride")
    if min(*strides, *dilations) < 1:
        raise OptionError(f"{what}: stride and dilation must be positive, got {stride!r} and {dilation!r}")
    return {"strides": strides, "dilations": dilations, "group": groups, **pads}


def _check_ranks(what: str, x: Variable, weight: Variable, spatial: int) -> None:
    if x.ndim != spatial + 2 or weight.ndim != spatial + 2:
        raise InputError(f"{what}: x and weight must have {spatial + 2} dimensions, got {x!r} and {weight!r}")


def conv2d_transpose(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    output_size: int | Sequence[int] | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Spread each value by a filter, as the gradient of a convolution does.

    Args:
        x: [batch, channels, height, width], or with the channels last.
        weight: [channels, filters / groups, height, width].
        bias: [filters].
        stride: step of the window in the result.
        padding: how much is cut off around the result.
        output_padding: how much is added at the end of each axis of the result; less than the stride.
        dilation: distance between the elements of the window.
        groups: channels and filters are split into this many groups.
        output_size: height and width of the result, instead of `output_padding`.
        data_format: `NCHW` or `NHWC`.

    Raises:
        InputError: channels and weight do not fit each other, or no result has that size.
        OptionError: stride, padding, dilation or format mean nothing.
    """
    windows = (stride, padding, dilation)
    return _transposed(x, weight, bias, windows, (output_padding, output_size), groups, data_format, 2)


def conv1d_transpose(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    output_size: int | Sequence[int] | None = None,
    data_format: str = "NCL",
) -> Variable:
    """Spread each value of sequences by a filter; see `conv2d_transpose`."""
    windows = (stride, padding, dilation)
    return _transposed(x, weight, bias, windows, (output_padding, output_size), groups, data_format, 1)


def conv3d_transpose(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    output_size: int | Sequence[int] | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Spread each value of volumes by a filter; see `conv2d_transpose`."""
    windows = (stride, padding, dilation)
    return _transposed(x, weight, bias, windows, (output_padding, output_size), groups, data_format, 3)


def _transposed(
    x: Variable,
    weight: Variable,
    bias: Variable | None,
    windows: _Windows,
    result: tuple[int | Sequence[int], int | Sequence[int] | None],
    groups: int,
    data_format: str,
    spatial: int,
) -> Variable:
    output_padding, output_size = result
    what = f"conv{spatial}d_transpose"
    x = channels_first(x, data_format)
    _check_ranks(what, x, weight, spatial)
    channels = size_at(x, 1, what)
    if groups < 1 or channels != weight.shape[0] or channels % groups:
        raise InputError(
            f"{what}: '{x.name}' has {channels} channels and weight '{weight.name}' is {list(weight.shape)} with "
            f"groups={groups}: expected [channels, filters / groups, ...]"
        )
    attributes = _window_attributes(what, windows, groups, data_format, spatial)
    extra = numbers(output_padding, spatial, f"{what}: output_padding")
    if output_size is not None:
        if any(extra):
            raise OptionError(f"{what}: give output_padding or output_size, not both")
        extra = _extra(x, weight, numbers(output_size, spatial, f"{what}: output_size"), attributes)
    if any(extra):
        attributes["output_padding"] = extra
    operands = for_parameters(x, weight, *([] if bias is None else [bias]))
    return as_given(emit("ConvTranspose", operands, attributes), data_format)


def _extra(x: Variable, weight: Variable, output_size: Sequence[int], attributes: dict[str, Any]) -> list[int]:
    """Return the output padding that gives this size."""
    strides, dilations = attributes["strides"], attributes["dilations"]
    if "auto_pad" in attributes:
        raise OptionError("conv_transpose: padding 'SAME' settles the size of the result: leave out output_size")
    spatial = x.ndim - 2
    pads = attributes.get("pads", [0] * 2 * spatial)
    extra = []
    for axis in range(spatial):
        size = size_at(x, 2 + axis, "conv_transpose with output_size")
        window = dilations[axis] * (weight.shape[2 + axis] - 1) + 1
        least = (size - 1) * strides[axis] + window - pads[axis] - pads[axis + spatial]
        if not least <= output_size[axis] < least + strides[axis]:
            raise InputError(
                f"conv_transpose: output_size {list(output_size)} cannot result from {x!r}: along axis {2 + axis} "
                f"expected {least} to {least + strides[axis] - 1}"
            )
        extra.append(output_size[axis] - least)
    return extra


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
