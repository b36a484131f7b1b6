"""Builds layers that create their parameters, with Paddle's signatures and defaults."""
# ruff: noqa: A002  # Paddle's argument names

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import axis_of, builder_of, choice, numbers, program_of, size_at, wrap
from amp_transpiler.paddle.framework.control_flow import case, cond, switch_case, while_loop
from amp_transpiler.paddle.framework.element_types import declared_dtype
from amp_transpiler.paddle.framework.parameters import ParameterMaker, create_parameter
from amp_transpiler.paddle.initial_values import Constant, XavierUniform
from amp_transpiler.paddle.nn.functional import common, normalization, prelu as functional_prelu
from amp_transpiler.paddle.nn.functional.activation import activate
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.paddle.static.convolutions import conv2d, conv2d_transpose, conv3d, conv3d_transpose
from amp_transpiler.paddle.static.deformable import deform_conv2d
from amp_transpiler.paddle.static.more_layers import bilinear_tensor_product, row_conv, spectral_norm
from amp_transpiler.paddle.static.noise_contrast import nce
from amp_transpiler.paddle.static.pylayer import static_pylayer
from amp_transpiler.paddle.static.unavailable import (
    py_func,
    sequence_conv,
    sequence_expand,
    sequence_first_step,
    sequence_last_step,
    sequence_pool,
    sequence_softmax,
    sparse_embedding,
)
from amp_transpiler.program.program import Variable

__all__ = [
    "batch_norm",
    "bilinear_tensor_product",
    "case",
    "cond",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "create_parameter",
    "deform_conv2d",
    "embedding",
    "fc",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "nce",
    "prelu",
    "py_func",
    "row_conv",
    "sequence_conv",
    "sequence_expand",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_pool",
    "sequence_softmax",
    "sparse_embedding",
    "spectral_norm",
    "static_pylayer",
    "switch_case",
    "while_loop",
]


def fc(
    x: Variable | Sequence[Variable] | None = None,
    size: int = 0,
    num_flatten_dims: int = 1,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    activation: str | None = None,
    name: str | None = None,
    *,
    input: Variable | Sequence[Variable] | None = None,
    param_attr: Attr = None,
    act: str | None = None,
) -> Variable:
    """Append a fully connected layer: `activation(x @ weight + bias)`.

    Args:
        x: one variable, or several whose products are added. Axes from `num_flatten_dims` on are flattened into one.
        size: the number of outputs, which is the size of the last axis.
        num_flatten_dims: the number of leading axes that stay; a negative number counts from the last axis.
        weight_attr: of the weight `fc_0.w_0`, [in, size]; starts with Xavier's uniform values.
        bias_attr: of the bias `fc_0.b_0`, [size]; starts at 0; False for no bias.
        activation: `relu`, `softmax`, ...
        name: the layer's name instead of `fc_0`.
        input: older name of `x`.
        param_attr: older name of `weight_attr`.
        act: older name of `activation`.

    Raises:
        InputError: the sizes of the axes to flatten are not known.
        OptionError: there is no input, or `size` is not positive.
    """
    operands = input if x is None else x
    inputs = [operands] if isinstance(operands, Variable) else list(operands or ())
    if not inputs or size < 1:
        raise OptionError(f"fc needs an input and a size of 1 or more, got {operands!r} and {size}")
    layer = ParameterMaker("fc", name, program_of(*inputs))
    total: Variable | None = None
    for item in inputs:
        flat = _flattened(item, num_flatten_dims)
        attr = param_attr if weight_attr is None else weight_attr
        weight = _needed(layer.weight(attr, [flat.shape[-1], size], item.value.dtype, XavierUniform()), "fc")
        product = common.linear(flat, weight)
        total = product if total is None else total + product
    assert total is not None
    bias = layer.bias(bias_attr, [size], inputs[0].value.dtype)
    return activate(total if bias is None else total + bias, activation or act)


def _flattened(x: Variable, keep: int) -> Variable:
    """Return `x` with all axes from `keep` on flattened into one."""
    front = axis_of(x, keep)
    if front == 0:
        raise InputError(f"fc: num_flatten_dims must leave an axis in front, got {keep} for {x!r}")
    behind = x.shape[front:]
    if any(size < 0 for size in behind):
        raise InputError(f"fc: the sizes of '{x.name}' from axis {front} on must be known, got shape {x.value.shape}")
    if len(behind) == 1:
        return x
    return wrap(x, builder_of(x).reshape(x.value, [0] * front + [math.prod(behind)]))


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Attr = None,
    dtype: Any = "float32",
) -> Variable:
    """Look up rows of a table by their numbers.

    Args:
        input: row numbers, int64 or int32, of any shape.
        size: rows and columns of the table `embedding_0.w_0`, which starts with Xavier's uniform values.
        is_sparse: no effect: gradients are dense.
        is_distributed: must be False.
        padding_idx: a row that reads as zeros and gets no gradient; a negative number counts from the last row.
        param_attr: of the table.
        dtype: its element type.

    Raises:
        OptionError: `is_distributed` is set, or `size` does not have two numbers.
    """
    if is_distributed:
        raise OptionError("embedding: is_distributed=True is not available: a program runs on one device")
    layer = ParameterMaker("embedding", None, program_of(input))
    shape = numbers(size, 2, "embedding: size")
    table = _needed(layer.weight(param_attr, shape, declared_dtype(dtype), XavierUniform()), "embedding")
    return common.embedding(input, table, padding_idx, sparse=is_sparse)


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Variable:
    """Append batch normalisation with running statistics; see `nn.functional.batch_norm`.

    Scale `batch_norm_0.w_0` starts at 1, bias `.b_0` at 0, mean `.w_1` at 0 and variance `.w_2` at 1; all are float32.

    Args:
        input: [batch, channels, ...], or with the channels last.
        act: an activation, such as `relu`.
        is_test: normalise by the running statistics, and do not update them.
        momentum: how much of the old running statistics stays.
        epsilon: added to the variance, so that nothing is divided by 0.
        param_attr: of the scale; False for none.
        bias_attr: of the bias; False for none.
        data_layout: `NCHW` or `NHWC`.
        in_place: no effect.
        name: the layer's name instead of `batch_norm_0`.
        moving_mean_name: the mean's name.
        moving_variance_name: the variance's name.
        do_model_average_for_mean_and_var: no effect.
        use_global_stats: normalise by the running statistics in training too.

    Raises:
        InputError: the channels are not known, or another layer updates the same statistics.
    """
    del in_place, do_model_average_for_mean_and_var
    channels = size_at(input, _channel_axis(input, data_layout), "batch_norm")
    layer = ParameterMaker("batch_norm", name, program_of(input))
    scale = layer.weight(param_attr, [channels], None, Constant(1.0))
    bias = layer.bias(bias_attr, [channels], None)
    mean = layer.statistic(moving_mean_name, channels, 0.0)
    variance = layer.statistic(moving_variance_name, channels, 1.0)
    training = not (is_test or use_global_stats)
    result = normalization.batch_norm(
        input, mean, variance, scale, bias, training, momentum, epsilon, data_format=data_layout
    )
    return activate(result, act)


def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-05,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Append layer normalisation over all axes from `begin_norm_axis` on.

    Scale `layer_norm_0.w_0` starts at 1 and bias `.b_0` at 0; both are flat vectors of the normalised size.

    Args:
        input: the tensor to normalise; the sizes of those axes must be known.
        scale: whether there is a scale.
        shift: whether there is a bias.
        begin_norm_axis: the first axis normalised over.
        epsilon: added to the variance, so that nothing is divided by 0.
        param_attr: of the scale; False for none.
        bias_attr: of the bias; False for none.
        act: an activation.
        name: the layer's name instead of `layer_norm_0`.

    Raises:
        InputError: the sizes are not known.
    """
    sizes = input.shape[axis_of(input, begin_norm_axis) :]
    if any(size < 0 for size in sizes):
        raise InputError(f"layer_norm: the sizes from axis {begin_norm_axis} on must be known, got {input!r}")
    layer = ParameterMaker("layer_norm", name, program_of(input))
    count, dtype = [math.prod(sizes)], input.value.dtype
    weight = layer.weight(param_attr, count, dtype, Constant(1.0)) if scale else None
    bias = layer.bias(bias_attr, count, dtype) if shift else None
    return activate(normalization.layer_norm(input, sizes, weight, bias, epsilon), act)


def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-05,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: str | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Append group normalisation; scale `group_norm_0.w_0` starts at 1, bias `.b_0` at 0, [channels] both.

    Args:
        input: [batch, channels, ...], or with the channels last.
        groups: the number of groups; divides the number of channels.
        epsilon: added to the variance, so that nothing is divided by 0.
        param_attr: of the scale; False for none.
        bias_attr: of the bias; False for none.
        act: an activation.
        data_layout: `NCHW` or `NHWC`.
        name: the layer's name instead of `group_norm_0`.

    Raises:
        InputError: the channels are not known, or cannot be split into so many groups.
    """
    channels = size_at(input, _channel_axis(input, data_layout), "group_norm")
    layer = ParameterMaker("group_norm", name, program_of(input))
    weight = layer.weight(param_attr, [channels], input.value.dtype, Constant(1.0))
    bias = layer.bias(bias_attr, [channels], input.value.dtype)
    return activate(normalization.group_norm(input, groups, epsilon, weight, bias, data_layout), act)


def instance_norm(
    input: Variable,
    epsilon: float = 1e-05,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """Append instance normalisation; scale `instance_norm_0.w_0` starts at 1, bias `.b_0` at 0, [channels] both.

    Args:
        input: [batch, channels, ...].
        epsilon: added to the variance, so that nothing is divided by 0.
        param_attr: of the scale; False for none.
        bias_attr: of the bias; False for none.
        name: the layer's name instead of `instance_norm_0`.

    Raises:
        InputError: the channels are not known.
    """
    channels = size_at(input, 1, "instance_norm")
    layer = ParameterMaker("instance_norm", name, program_of(input))
    weight = layer.weight(param_attr, [channels], input.value.dtype, Constant(1.0))
    bias = layer.bias(bias_attr, [channels], input.value.dtype)
    return normalization.instance_norm(input, weight=weight, bias=bias, eps=epsilon)


def prelu(
    x: Variable, mode: str, param_attr: Attr = None, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Return `x` where it is positive, else `x` times a slope `prelu_0.w_0`, which starts at 0.25.

    Args:
        x: [batch, channels, ...], or with the channels last.
        mode: one slope for `all`, for each `channel`, or for each `element` of a sample.
        param_attr: of the slope: [1], or the shape of a sample with 1 along axes that share the slope.
        data_format: `NCHW` or `NHWC`.
        name: the layer's name instead of `prelu_0`.

    Raises:
        InputError: a size of the slope is not known.
        OptionError: there is no such mode.
    """
    choice("prelu: mode", mode, ("all", "channel", "element"))
    shape = [1]
    if mode == "channel":
        axis = _channel_axis(x, data_format)
        shape = [x.shape[axis] if other == axis else 1 for other in range(x.ndim)]
    elif mode == "element":
        shape = [1, *x.shape[1:]]
    layer = ParameterMaker("prelu", name, program_of(x))
    weight = _needed(layer.weight(param_attr, shape, x.value.dtype, Constant(0.25)), "prelu")
    return functional_prelu(x, weight, data_format)


def _channel_axis(x: Variable, data_format: str) -> int:
    return axis_of(x, 1) if data_format.startswith("NC") else x.ndim - 1


def _needed(weight: Variable | None, what: str) -> Variable:
    if weight is None:
        raise OptionError(f"{what}: the layer needs its weight: give None or a ParamAttr, not False")
    return weight


check_arguments(globals(), __all__)
