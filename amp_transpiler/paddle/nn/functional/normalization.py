"""Normalises over a batch, over the last axes, over groups of channels, and by norms."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, axis_of, builder_of, emit, program_of, size_at, wrap
from amp_transpiler.paddle.nn.functional.layout import as_given, channels_first
from amp_transpiler.program.program import Variable

__all__ = [
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "normalize",
    "rms_norm",
]


def batch_norm(
    x: Variable,
    running_mean: Variable,
    running_var: Variable,
    weight: Variable | None = None,
    bias: Variable | None = None,
    training: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    data_format: str = "NCHW",
    use_global_stats: bool | None = None,
) -> Variable:
    """Normalise each channel over the batch and, in training, update the running statistics after every run.

    Statistics may be shared: each call updates what the calls before it left.

    Args:
        x: [batch, channels, ...], or with the channels last.
        running_mean: [channels]; in training it becomes `momentum * old + (1 - momentum) * mean of the batch`.
        running_var: [channels]; updated in the same way with the population variance.
        weight: [channels], factor on the result; 1 unless given.
        bias: [channels], added to it; 0 unless given.
        training: whether to normalise by the statistics of the batch instead of the running ones.
        momentum: how much of the old running statistics stays.
        epsilon: added to the variance, so that nothing is divided by 0.
        data_format: `NCHW`, `NCL`, `NC`, or with the channels last.
        use_global_stats: True to normalise by the running statistics in training too; False not to.

    Raises:
        InputError: the running statistics are not persistable.
    """
    program = program_of(x, running_mean, running_var, weight, bias)
    x = channels_first(x, data_format)
    channels = size_at(x, 1, "batch_norm")
    use_batch = not use_global_stats if use_global_stats is not None else training
    values = [
        x.value,
        _vector(x, weight, channels, 1.0, ir.DataType.FLOAT),
        _vector(x, bias, channels, 0.0, ir.DataType.FLOAT),
        *(
            program.value(program.updates.get(statistic.name, statistic.name))
            for statistic in (running_mean, running_var)
        ),
    ]
    attributes = {"epsilon": float(epsilon), "momentum": float(momentum), "training_mode": int(use_batch)}
    if not use_batch:
        return as_given(wrap(x, program.builder().op("BatchNormalization", values, attributes)), data_format)
    for statistic in (running_mean, running_var):
        if not statistic.persistable:
            raise InputError(f"batch_norm: running statistic '{statistic.name}' must be persistable, to outlive a run")
    y, mean, var = program.builder().nodes("BatchNormalization", values, attributes, outputs=3)
    program.updates[running_mean.name], program.updates[running_var.name] = str(mean.name), str(var.name)
    return as_given(wrap(x, y), data_format)


def _vector(x: Variable, vector: Variable | None, size: int, fill: float, dtype: ir.DataType | None) -> ir.Value:
    """Return the given vector, or a constant one."""
    if vector is not None:
        return vector.value
    return builder_of(x).constant(np.full(size, fill), dtype)


def layer_norm(
    x: Variable,
    normalized_shape: int | Sequence[int],
    weight: Variable | None = None,
    bias: Variable | None = None,
    epsilon: float = 1e-05,
) -> Variable:
    """Normalise over the last axes.

    Args:
        x: the tensor to normalise.
        normalized_shape: the sizes of those axes.
        weight: factor on the result, of `normalized_shape` or flat; 1 unless given.
        bias: added to it, of `normalized_shape` or flat; 0 unless given.
        epsilon: added to the variance, so that nothing is divided by 0.

    Raises:
        InputError: the last sizes of `x` are not `normalized_shape`.
    """
    sizes = [normalized_shape] if isinstance(normalized_shape, int) else [int(size) for size in normalized_shape]
    if not sizes or list(x.shape[-len(sizes) :]) != sizes:
        raise InputError(f"layer_norm: the last sizes of {x!r} must be normalized_shape {sizes}, and known")
    b = builder_of(x, weight, bias)
    scale = b.constant(np.ones(sizes), x.value.dtype) if weight is None else _in_shape(weight, sizes)
    inputs = [x.value, scale] + ([] if bias is None else [_in_shape(bias, sizes)])
    return wrap(x, b.op("LayerNormalization", inputs, {"axis": -len(sizes), "epsilon": float(epsilon)}))


def _in_shape(parameter: Variable, sizes: list[int]) -> ir.Value:
    """Return a parameter in the shape of the axes normalised."""
    if list(parameter.shape) == sizes:
        return parameter.value
    return builder_of(parameter).reshape(parameter.value, sizes)


def instance_norm(
    x: Variable,
    running_mean: Variable | None = None,
    running_var: Variable | None = None,
    weight: Variable | None = None,
    bias: Variable | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.9,
    eps: float = 1e-05,
    data_format: str = "NCHW",
) -> Variable:
    """Normalise each channel of each sample.

    Args:
        x: [batch, channels, ...], or with the channels last.
        running_mean: must be None: the statistics are always those of the input.
        running_var: must be None.
        weight: [channels], factor on the result; 1 unless given.
        bias: [channels], added to it; 0 unless given.
        use_input_stats: must be True.
        momentum: no effect without running statistics.
        eps: added to the variance.
        data_format: `NCHW`, `NCL`, or with the channels last.

    Raises:
        OptionError: running statistics are asked for.
    """
    del momentum
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise OptionError(
            "instance_norm: running statistics are not available: leave them out, with use_input_stats=True"
        )
    x = channels_first(x, data_format)
    builder_of(x, weight, bias)
    channels = size_at(x, 1, "instance_norm")
    scale, shift = (_vector(x, v, channels, fill, x.value.dtype) for v, fill in ((weight, 1.0), (bias, 0.0)))
    y = builder_of(x).op("InstanceNormalization", [x.value, scale, shift], {"epsilon": float(eps)})
    return as_given(wrap(x, y), data_format)


def group_norm(
    x: Variable,
    num_groups: int,
    epsilon: float = 1e-05,
    weight: Variable | None = None,
    bias: Variable | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Normalise groups of channels of each sample.

    Args:
        x: [batch, channels, ...], or with the channels last.
        num_groups: the number of groups; divides the number of channels.
        epsilon: added to the variance, so that nothing is divided by 0.
        weight: [channels], factor on the result; 1 unless given.
        bias: [channels], added to it; 0 unless given.
        data_format: `NCHW`, `NCL`, or with the channels last.

    Raises:
        InputError: the channels cannot be split into so many groups.
    """
    x = channels_first(x, data_format)
    b = builder_of(x, weight, bias)
    channels = size_at(x, 1, "group_norm")
    if num_groups < 1 or channels % num_groups:
        raise InputError(f"group_norm: the {channels} channels of '{x.name}' cannot be split into {num_groups} groups")
    scale, shift = (_vector(x, v, channels, fill, x.value.dtype) for v, fill in ((weight, 1.0), (bias, 0.0)))
    attributes = {"num_groups": num_groups, "epsilon": float(epsilon)}
    y = b.op("GroupNormalization", [x.value, scale, shift], attributes)
    return as_given(wrap(x, y), data_format)


def rms_norm(
    input: Variable,
    normalized_shape: int | Sequence[int],
    weight: Variable | None = None,
    eps: float = 1e-05,
) -> Variable:
    """Divide by the root of the mean square over the last axes, in float32.

    Args:
        input: [..., *normalized_shape].
        normalized_shape: the sizes of the axes.
        weight: factor on the result, in their shape; 1 unless given.
        eps: added to the mean square.

    Raises:
        InputError: the last axes of `input` have other sizes.
    """
    sizes = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    if list(input.shape[-len(sizes) :]) != sizes:
        raise InputError(f"rms_norm: the last axes of {input!r} are not {sizes}")
    b = builder_of(input, weight)
    wide = b.high(input.value)
    square = b.mean(b.mul(wide, wide), list(range(input.ndim - len(sizes), input.ndim)))
    y = b.cast(b.div(wide, b.op("Sqrt", [b.add(square, float(eps))])), input.value.dtype)
    return wrap(input, y if weight is None else b.mul(y, b.cast(_in_shape(weight, sizes), input.value.dtype)))


def local_response_norm(
    x: Variable,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    data_format: str = "NCHW",
) -> Variable:
    """Divide by `(k + alpha * mean square of the neighbouring channels) ** beta`, in float32.

    Args:
        x: [batch, channels, ...], or with the channels last.
        size: how many channels count, half of them before.
        alpha: factor on the mean square; channels beyond the ends count as zeros.
        beta: the power.
        k: what is added.
        data_format: `NCHW`, `NCL`, `NCDHW`, or with the channels last.
    """
    x = channels_first(x, data_format)
    b = builder_of(x)
    wide = b.high(x.value)
    square = b.mul(wide, wide)
    ends = [0] * (2 * x.ndim)
    ends[1], ends[x.ndim + 1] = size // 2, (size - 1) // 2
    padded = b.op("Pad", [square, b.constant(np.array(ends, np.int64))])
    parts = [b.slice(padded, [i], [i - size + 1 or 2**63 - 1], [1]) for i in range(size)]
    mean = b.div(b.op("Sum", parts), float(size)) if size > 1 else square
    divisor = b.pow(b.add(b.mul(mean, float(alpha)), float(k)), float(beta))
    return as_given(wrap(x, b.cast(b.div(wide, divisor), x.value.dtype)), data_format)


def normalize(x: Variable, p: float = 2, axis: int = 1, epsilon: float = 1e-12) -> Variable:
    """Divide by the p-norm along `axis`, or by `epsilon` where that is larger.

    Raises:
        OptionError: `p` is not positive.
    """
    if p <= 0:
        raise OptionError(f"normalize: p must be positive, got {p}")
    b, axes = builder_of(x), [axis_of(x, axis)]
    if p in (1, 2):
        norm = b.reduce(f"ReduceL{int(p)}", x.value, axes)
    else:
        size = emit("Abs", [x]).value
        norm = b.pow(b.sum(b.pow(size, float(p)), axes), 1.0 / p)
    return wrap(x, b.div(x.value, b.cast(b.maximum(norm, epsilon), x.value.dtype)))


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
