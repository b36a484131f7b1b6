"""Further layers that create their parameters: volumes, bilinear products, spectral norms."""
# ruff: noqa: A002  # Paddle's argument names

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.building import builder_of, numbers, program_of, size_at, wrap
from amp_transpiler.paddle.framework.parameters import ParameterMaker
from amp_transpiler.paddle.initial_values import Initializer, Normal, XavierUniform
from amp_transpiler.paddle.nn.functional.activation import activate
from amp_transpiler.paddle.nn.functional.layout import Padding
from amp_transpiler.paddle.nn.layer.function_layer import find_function
from amp_transpiler.paddle.nn.layer.norm import SpectralNorm
from amp_transpiler.paddle.param_attr import Attr

__all__ = ["bilinear_tensor_product", "conv3d", "conv3d_transpose", "row_conv", "spectral_norm"]

Size = int | Sequence[int]


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
    """A convolution of volumes that creates its filters; see `conv2d`.

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
    window, channels = numbers(filter_size, 3, "conv3d: filter_size"), _channels(input, data_format, "conv3d")
    count = _checked_groups("conv3d", channels, num_filters, groups)
    initial = Normal(0.0, math.sqrt(2.0 / (math.prod(window) * channels)))
    maker = ParameterMaker("conv3d", name, program_of(input))
    weight = _weight(maker, "conv3d", param_attr, [num_filters, channels // count, *window], input, initial)
    bias = maker.bias(bias_attr, [num_filters], input.value.dtype)
    result = find_function("conv3d")(input, weight, bias, stride, padding, dilation, count, data_format)
    return activate(result, act)


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
    """A transposed convolution of volumes that creates its filters; see `conv2d_transpose`.

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
    what = "conv3d_transpose"
    if filter_size is None:
        raise OptionError(f"{what}: give filter_size")
    window, channels = numbers(filter_size, 3, f"{what}: filter_size"), _channels(input, data_format, what)
    count = _checked_groups(what, channels, num_filters, groups)
    maker = ParameterMaker(what, name, program_of(input))
    weight = _weight(maker, what, param_attr, [channels, num_filters // count, *window], input, XavierUniform())
    bias = maker.bias(bias_attr, [num_filters], input.value.dtype)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": count, "data_format": data_format}
    extra = {} if output_size is None else {"output_size": output_size}
    return activate(find_function(what)(input, weight, bias, **settings, **extra), act)


def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: str | None = None,
    name: str | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
) -> Variable:
    """`x @ weight[i] @ y + bias[i]` for each of `size` features.

    Args:
        x: [batch, features].
        y: [batch, features].
        size: features of the result.
        act: an activation.
        name: the layer's name instead of `bilinear_tensor_product_0`.
        param_attr: of the weight `.w_0`, [size, features of x, features of y].
        bias_attr: of the bias `.b_0`, [1, size]; False for none.
    """
    what = "bilinear_tensor_product"
    maker = ParameterMaker(what, name, program_of(x, y))
    shape = [size, size_at(x, 1, what), size_at(y, 1, what)]
    weight = _weight(maker, what, param_attr, shape, x, XavierUniform())
    bias = maker.bias(bias_attr, [1, size], x.value.dtype)
    b = builder_of(x, y)
    value = b.op("Einsum", [x.value, weight.value, y.value], {"equation": "bi,oij,bj->bo"})
    return activate(wrap(x, value if bias is None else b.add(value, bias.value)), act)


def spectral_norm(
    weight: Variable, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> Variable:
    """Return a weight over its largest singular value; see `nn.SpectralNorm`."""
    del name
    result: Variable = SpectralNorm(weight.shape, dim, power_iters, eps)(weight)
    return result


def row_conv(input: Variable, future_context_size: int, param_attr: Attr = None, act: str | None = None) -> Variable:
    """Weigh each step of a sequence with those that follow it, feature by feature.

    Args:
        input: [batch, length, features].
        future_context_size: how many following steps count.
        param_attr: of the weight `row_conv_0.w_0`, [future_context_size + 1, features].
        act: an activation.

    Raises:
        InputError: `input` does not have three dimensions.
    """
    if input.ndim != 3:
        raise InputError(f"row_conv takes [batch, length, features], got {input!r}")
    size, count = size_at(input, 2, "row_conv"), future_context_size + 1
    maker = ParameterMaker("row_conv", None, program_of(input))
    weight = _weight(maker, "row_conv", param_attr, [count, size], input, XavierUniform())
    b = builder_of(input)
    pads = b.constant([0, 0, 0, 0, future_context_size, 0])
    padded = b.transpose(b.op("Pad", [input.value, pads]), [0, 2, 1])
    filters = b.unsqueeze(b.transpose(weight.value, [1, 0]), [1])
    made: ir.Value = b.op("Conv", [padded, filters], {"group": size})
    return activate(wrap(input, b.transpose(made, [0, 2, 1])), act)


def _channels(x: Variable, data_format: str, what: str) -> int:
    return size_at(x, 1 if data_format.startswith("NC") else x.ndim - 1, what)


def _checked_groups(what: str, channels: int, filters: int, groups: int | None) -> int:
    count = groups or 1
    if count < 1 or channels % count or filters < 1 or filters % count:
        raise InputError(f"{what}: {channels} channels and {filters} filters cannot be split into {count} groups")
    return count


def _weight(
    maker: ParameterMaker, what: str, attr: Attr, shape: Sequence[int], like: Variable, initial: Initializer
) -> Variable:
    made = maker.weight(attr, shape, like.value.dtype, initial)
    if made is None:
        raise OptionError(f"{what}: the layer needs its weight: give None or a ParamAttr, not False")
    return made
