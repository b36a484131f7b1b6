"""Builds convolutions of images and volumes that create their filters, such as `paddle.static.nn.conv2d`."""
# ruff: noqa: A002  # Paddle's argument names

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import numbers, program_of, size_at
from amp_transpiler.paddle.framework.parameters import ParameterMaker
from amp_transpiler.paddle.initial_values import Initializer, Normal, XavierUniform
from amp_transpiler.paddle.nn.functional import conv
from amp_transpiler.paddle.nn.functional.activation import activate
from amp_transpiler.paddle.nn.functional.layout import Padding
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.program.program import Variable

__all__ = ["conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose"]

Size = int | Sequence[int]
_FUNCTIONS: Mapping[str, Callable[..., Variable]] = {
    "conv2d": conv.conv2d,
    "conv3d": conv.conv3d,
    "conv2d_transpose": conv.conv2d_transpose,
    "conv3d_transpose": conv.conv3d_transpose,
}


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Append a convolution that creates its filters; see `nn.functional.conv2d`.

    Args:
        input: [batch, channels, height, width], or with the channels last.
        num_filters: the number of filters.
        filter_size: their height and width.
        stride: step of the window.
        padding: zeros around the image.
        dilation: distance between the elements of the window.
        groups: 1 unless given.
        param_attr: of the filters `conv2d_0.w_0`, [filters, channels / groups, height, width]; normal initial values
            of standard deviation `sqrt(2 / (height * width * channels))`.
        bias_attr: of the bias `conv2d_0.b_0`, [filters]; starts at 0; False for no bias.
        use_cudnn: no effect.
        act: an activation, such as `relu`.
        name: the layer's name instead of `conv2d_0`.
        data_format: `NCHW` or `NHWC`.

    Raises:
        InputError: the channels are not known, or groups do not divide them and the filters.
    """
    del use_cudnn
    parts = (param_attr, bias_attr, act, name)
    return _convolution(
        "conv2d", input, num_filters, filter_size, (stride, padding, dilation), groups, parts, data_format
    )


def conv3d(
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Append a convolution of volumes that creates its filters; see `conv2d`.

    Args:
        input: [batch, channels, depth, height, width], or with the channels last.
        num_filters: the number of filters.
        filter_size: their sizes.
        stride: step of the window.
        padding: zeros around the volume.
        dilation: distance between the elements of the window.
        groups: 1 unless given.
        param_attr: of the filters `conv3d_0.w_0`; normal initial values of variance 2 / (window * channels).
        bias_attr: of the bias `conv3d_0.b_0`; False for none.
        use_cudnn: no effect.
        act: an activation, such as `relu`.
        name: the layer's name instead of `conv3d_0`.
        data_format: `NCDHW` or `NDHWC`.

    Raises:
        InputError: the channels are not known, or groups do not divide them and the filters.
    """
    del use_cudnn
    parts = (param_attr, bias_attr, act, name)
    return _convolution(
        "conv3d", input, num_filters, filter_size, (stride, padding, dilation), groups, parts, data_format
    )


def conv2d_transpose(
    input: Variable,
    num_filters: int,
    output_size: int | Sequence[int] | None = None,
    filter_size: int | Sequence[int] | None = None,
    padding: Padding = 0,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Append a transposed convolution that creates its filters; see `nn.functional.conv2d_transpose`.

    Args:
        input: [batch, channels, height, width], or with the channels last.
        num_filters: the number of channels of the result.
        output_size: height and width of the result; computed from the filters unless given.
        filter_size: height and width of the filters; must be given.
        padding: how much is cut off around the result.
        stride: step of the window in the result.
        dilation: distance between the elements of the window.
        groups: 1 unless given.
        param_attr: of the filters `conv2d_transpose_0.w_0`, [channels, filters / groups, height, width]; Xavier's
            uniform initial values.
        bias_attr: of the bias `conv2d_transpose_0.b_0`, [filters]; starts at 0; False for no bias.
        use_cudnn: no effect.
        act: an activation, such as `relu`.
        name: the layer's name instead of `conv2d_transpose_0`.
        data_format: `NCHW` or `NHWC`.

    Raises:
        InputError: the channels are not known, or groups do not divide them and the filters.
        OptionError: `filter_size` is not given.
    """
    del use_cudnn
    parts, windows = (param_attr, bias_attr, act, name), (stride, padding, dilation)
    what = "conv2d_transpose"
    return _convolution(what, input, num_filters, filter_size, windows, groups, parts, data_format, output_size)


def conv3d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    padding: Padding = 0,
    stride: Size = 1,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Append a transposed convolution of volumes that creates its filters; see `conv2d_transpose`.

    Args:
        input: [batch, channels, depth, height, width], or with the channels last.
        num_filters: the number of filters.
        output_size: the sizes of the result; computed from the filters unless given.
        filter_size: the sizes of the filters; must be given.
        padding: how much is cut off around the result.
        stride: step of the window in the result.
        dilation: distance between the elements of the window.
        groups: 1 unless given.
        param_attr: of the filters `conv3d_transpose_0.w_0`; Xavier's uniform initial values.
        bias_attr: of the bias `conv3d_transpose_0.b_0`; False for none.
        use_cudnn: no effect.
        act: an activation, such as `relu`.
        name: the layer's name instead of `conv3d_transpose_0`.
        data_format: `NCDHW` or `NDHWC`.

    Raises:
        InputError: the channels are not known, or groups do not divide them and the filters.
        OptionError: `filter_size` is not given.
    """
    del use_cudnn
    parts, windows = (param_attr, bias_attr, act, name), (stride, padding, dilation)
    what = "conv3d_transpose"
    return _convolution(what, input, num_filters, filter_size, windows, groups, parts, data_format, output_size)


def _convolution(
    what: str,
    x: Variable,
    filters: int,
    filter_size: Size | None,
    windows: tuple[Size, Padding, Size],
    groups: int | None,
    parts: tuple[Attr, Attr, str | None, str | None],
    data_format: str,
    output_size: Size | None = None,
) -> Variable:
    """Append a convolution or its transpose; `parts` are attributes of its parameters, an activation and a name."""
    if filter_size is None:
        raise OptionError(f"{what}: give filter_size")
    weight_attr, bias_attr, act, name = parts
    transposed = what.endswith("transpose")
    window = numbers(filter_size, 3 if "3d" in what else 2, f"{what}: filter_size")
    channels, count = _grouped(what, x, filters, groups, data_format)
    layer = ParameterMaker(what, name, program_of(x))
    first, second = (channels, filters) if transposed else (filters, channels)
    deviation = math.sqrt(2.0 / (math.prod(window) * channels))
    initial: Initializer = XavierUniform() if transposed else Normal(0.0, deviation)
    weight = layer.weight(weight_attr, [first, second // count, *window], x.value.dtype, initial)
    if weight is None:
        raise OptionError(f"{what}: the layer needs its weight: give None or a ParamAttr, not False")
    bias = layer.bias(bias_attr, [filters], x.value.dtype)
    stride, padding, dilation = windows
    settings: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": count}
    if output_size is not None:
        settings["output_size"] = output_size
    return activate(_FUNCTIONS[what](x, weight, bias, data_format=data_format, **settings), act)


def _grouped(what: str, x: Variable, filters: int, groups: int | None, data_format: str) -> tuple[int, int]:
    """Return the number of channels and of groups, checked against each other and against the filters."""
    channels, groups = size_at(x, 1 if data_format.startswith("NC") else x.ndim - 1, what), groups or 1
    if groups < 1 or channels % groups or filters < 1 or filters % groups:
        raise InputError(f"{what}: {channels} channels and {filters} filters cannot be split into {groups} groups")
    return channels, groups


check_arguments(globals(), __all__)
