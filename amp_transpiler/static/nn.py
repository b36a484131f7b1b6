"""Layers with parameters of their own, with Paddle's signatures and defaults."""

from __future__ import annotations

import math
from collections.abc import Sequence

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.variable import Variable
from amp_transpiler.nn import functional
from amp_transpiler.nn.functional.building import numbers, wrap
from amp_transpiler.nn.initializer import Constant, Normal, XavierUniform
from amp_transpiler.param_attr import Attr
from amp_transpiler.static.parameters import Layer

__all__ = [
    "batch_norm",
    "conv2d",
    "conv2d_transpose",
    "embedding",
    "fc",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "prelu",
]

_ACTIVATIONS = ("relu", "relu6", "gelu", "sigmoid", "tanh", "softmax", "leaky_relu", "elu", "selu", "swish", "mish")


def _activated(x: Variable, act: str | None) -> Variable:
    if act is None:
        return x
    if act not in _ACTIVATIONS:
        raise OptionError(f"unknown activation {act!r}: expected one of {', '.join(_ACTIVATIONS)}")
    made: Variable = getattr(functional, act)(x)
    return made


def _needed(variable: Variable | None, layer: str) -> Variable:
    if variable is None:
        raise OptionError(f"{layer}: its weight cannot be left out (param_attr=False)")
    return variable


def conv2d(
    input: Variable,  # noqa: A002  # Paddle's name, here and below
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_cudnn: bool = True,  # noqa: ARG001  # Paddle's
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Convolve [N, C, H, W] with `num_filters` filters, add a bias, and activate.

    Raises:
        InputError: the channels are unknown, or `groups` does not divide them.
    """
    layer = Layer("conv2d", name)
    groups = groups or 1
    channels = input.shape[1] if input.ndim == 4 else -1
    if channels < 1 or channels % groups:
        raise InputError(
            f"conv2d: '{input.name}' must be [N, C, H, W] with C known and divisible by groups={groups}, got {list(input.shape)}"
        )
    size = numbers(filter_size, 2, "filter_size")
    shape = (num_filters, channels // groups, *size)
    # Paddle's default: He and others', with the fan in of one filter.
    start = Normal(0.0, math.sqrt(2.0 / (math.prod(size) * channels)))
    weight = _needed(layer.weight(param_attr, shape, None, start), "conv2d")
    bias = layer.bias(bias_attr, (num_filters,), None, Constant(0.0))
    made = functional.conv2d(input, weight, bias, stride, padding, dilation, groups, data_format)
    return _activated(made, act)


def conv2d_transpose(
    input: Variable,  # noqa: A002
    num_filters: int,
    filter_size: int | Sequence[int],
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Convolve [N, C, H, W] backwards, add a bias, and activate."""
    layer = Layer("conv2d_transpose", name)
    groups = groups or 1
    shape = (input.shape[1], num_filters // groups, *numbers(filter_size, 2, "filter_size"))
    weight = _needed(layer.weight(param_attr, shape, None, XavierUniform()), "conv2d_transpose")
    bias = layer.bias(bias_attr, (num_filters,), None, Constant(0.0))
    made = functional.conv2d_transpose(input, weight, bias, stride, padding, 0, dilation, groups)
    return _activated(made, act)


def fc(
    x: Variable | None = None,
    size: int = 0,
    num_flatten_dims: int = 1,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    activation: str | None = None,
    name: str | None = None,
    *,
    input: Variable | None = None,  # noqa: A002
    param_attr: Attr = None,
    act: str | None = None,
) -> Variable:
    """Map the features of `x` linearly to `size`, add a bias, and activate.

    Dimensions from `num_flatten_dims` on are the features, of known sizes; those before stay. `input`, `param_attr` and
    `act` are older names of `x`, `weight_attr` and `activation`.
    """
    x = x if x is not None else input
    if x is None or size < 1:
        raise OptionError(f"fc needs an input and a size of 1 or more, got {x!r} and {size}")
    flat = num_flatten_dims % x.ndim if num_flatten_dims < 0 else num_flatten_dims
    features = x.shape[flat:]
    if not features or min(features) < 1:
        raise InputError(f"fc: the dimensions of '{x.name}' from {flat} on must be known, got {list(x.shape)}")
    layer = Layer("fc", name)
    width = math.prod(features)
    weight = _needed(
        layer.weight(weight_attr if weight_attr is not None else param_attr, (width, size), None, XavierUniform()),
        "fc",
    )
    bias = layer.bias(bias_attr, (size,), None, Constant(0.0))
    if len(features) > 1:  # 0 keeps a dimension
        x = wrap(x, x.program.builder().reshape(x.value, [*[0] * flat, width]))
    return _activated(functional.linear(x, weight, bias), activation or act)


def embedding(
    input: Variable,  # noqa: A002
    size: Sequence[int],
    is_sparse: bool = False,  # noqa: ARG001  # Paddle's
    is_distributed: bool = False,  # noqa: ARG001  # Paddle's
    padding_idx: int | None = None,
    param_attr: Attr = None,
    dtype: str = "float32",
) -> Variable:
    """Look up rows of a table of `size` (rows, width)."""
    if dtype != "float32":
        raise OptionError(f"embedding: parameters start as float32, got dtype={dtype!r}; decorate makes them low")
    layer = Layer("embedding")
    table = _needed(layer.weight(param_attr, size, None, XavierUniform()), "embedding")
    return functional.embedding(input, table, padding_idx)


def batch_norm(
    input: Variable,  # noqa: A002
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    use_global_stats: bool = False,
) -> Variable:
    """Normalise every channel, axis 1, and activate; moving statistics are kept in the scope."""
    if data_layout != "NCHW":
        raise OptionError(f"batch_norm: data_layout must be 'NCHW', got {data_layout!r}")
    layer, channels = Layer("batch_norm", name), _channels(input, "batch_norm")
    scale = _or_constant(input, layer.weight(param_attr, (channels,), None, Constant(1.0)), channels, 1.0)
    shift = _or_constant(input, layer.bias(bias_attr, (channels,), None), channels, 0.0)
    mean = layer.statistic(moving_mean_name, channels, 0.0)
    variance = layer.statistic(moving_variance_name, channels, 1.0)
    training = not (is_test or use_global_stats)
    return _activated(functional.batch_norm(input, mean, variance, scale, shift, training, momentum, epsilon), act)


def layer_norm(
    input: Variable,  # noqa: A002
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Normalise over the dimensions from `begin_norm_axis` on, whose sizes must be known, and activate."""
    layer, axis = Layer("layer_norm", name), begin_norm_axis % input.ndim
    shape = input.shape[axis:]
    if min(shape) < 1:
        raise InputError(
            f"layer_norm: the dimensions of '{input.name}' from {axis} on must be known, got {list(input.shape)}"
        )
    weight = layer.weight(param_attr if scale else False, shape, None, Constant(1.0))
    bias = layer.bias(bias_attr if shift else False, shape, None, Constant(0.0))
    return _activated(functional.layer_norm(input, shape, weight, bias, epsilon), act)


def instance_norm(
    input: Variable,  # noqa: A002
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """Normalise every channel of every sample."""
    layer, channels = Layer("instance_norm", name), _channels(input, "instance_norm")
    weight = layer.weight(param_attr, (channels,), None, Constant(1.0))
    bias = layer.bias(bias_attr, (channels,), None, Constant(0.0))
    return functional.instance_norm(input, weight=weight, bias=bias, eps=epsilon)


def group_norm(
    input: Variable,  # noqa: A002
    groups: int,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Normalise groups of channels of every sample, and activate."""
    layer, channels = Layer("group_norm", name), _channels(input, "group_norm")
    weight = layer.weight(param_attr, (channels,), None, Constant(1.0))
    bias = layer.bias(bias_attr, (channels,), None, Constant(0.0))
    return _activated(functional.group_norm(input, groups, epsilon, weight, bias), act)


def prelu(x: Variable, mode: str, param_attr: Attr = None, name: str | None = None) -> Variable:
    """`x` where positive, else a learnt slope times `x`; `mode` is `all` (one slope) or `channel`."""
    layer = Layer("prelu", name)
    sizes = {"all": 1, "channel": _channels(x, "prelu")}
    if mode not in sizes:
        raise OptionError(f"prelu: mode must be 'all' or 'channel', got {mode!r}")
    slope = _needed(layer.weight(param_attr, (sizes[mode],), None, Constant(0.25)), "prelu")
    return functional.prelu(x, slope)


def _channels(x: Variable, layer: str) -> int:
    if x.ndim < 2 or x.shape[1] < 1:
        raise InputError(f"{layer}: the channels of '{x.name}', axis 1, must be known, got {list(x.shape)}")
    return x.shape[1]


def _or_constant(like: Variable, parameter: Variable | None, channels: int, value: float) -> Variable:
    """A parameter, or what it would start from if there is to be none."""
    if parameter is not None:
        return parameter
    return wrap(like, like.program.builder().constant([value] * channels, like.value.dtype))
