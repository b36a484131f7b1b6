"""Offers activation functions, element by element or along an axis."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, axis_of, builder_of, emit, size_at, wrap
from amp_transpiler.paddle.tensor.elementwise import clip
from amp_transpiler.paddle.tensor.random import gumbel_like, rand_like
from amp_transpiler.paddle.tensor.shaping import split, unflatten
from amp_transpiler.program.program import Variable

__all__ = [
    "celu",
    "elu",
    "elu_",
    "gelu",
    "glu",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "leaky_relu",
    "leaky_relu_",
    "log_sigmoid",
    "log_softmax",
    "logsigmoid",
    "maxout",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "relu_",
    "rrelu",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softmax_",
    "softplus",
    "softshrink",
    "softsign",
    "swiglu",
    "swish",
    "tanh",
    "tanh_",
    "tanhshrink",
    "thresholded_relu",
    "thresholded_relu_",
]


def relu(x: Variable) -> Variable:
    """Return `max(x, 0)`."""
    return emit("Relu", [x])


def relu6(x: Variable) -> Variable:
    """Return `min(max(x, 0), 6)`."""
    b = builder_of(x)
    low, high = (b.constant(bound, x.value.dtype) for bound in (0.0, 6.0))
    return wrap(x, b.op("Clip", [x.value, low, high]))


def leaky_relu(x: Variable, negative_slope: float = 0.01) -> Variable:
    """Return `x` where it is positive, else `negative_slope * x`."""
    return emit("LeakyRelu", [x], {"alpha": float(negative_slope)})


def elu(x: Variable, alpha: float = 1.0) -> Variable:
    """Return `x` where it is positive, else `alpha * (exp(x) - 1)`."""
    return emit("Elu", [x], {"alpha": float(alpha)})


def selu(x: Variable, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772) -> Variable:
    """Return `scale * x` where `x` is positive, else `scale * alpha * (exp(x) - 1)`."""
    return emit("Selu", [x], {"alpha": float(alpha), "gamma": float(scale)})


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """Return `x` times the normal distribution's probability below `x`; `approximate` by a tanh."""
    return emit("Gelu", [x], {"approximate": "tanh" if approximate else "none"})


def sigmoid(x: Variable) -> Variable:
    """Return `1 / (1 + exp(-x))`."""
    return emit("Sigmoid", [x])


def tanh(x: Variable) -> Variable:
    """Return the hyperbolic tangent."""
    return emit("Tanh", [x])


def softmax(x: Variable, axis: int = -1, dtype: Any = None) -> Variable:
    """Return `exp(x)` over its sum along `axis`; `x` is cast to `dtype` first if that is given."""
    return emit("Softmax", [_cast(x, dtype)], {"axis": axis_of(x, axis)})


def log_softmax(x: Variable, axis: int = -1, dtype: Any = None) -> Variable:
    """Return the logarithm of `softmax`."""
    return emit("LogSoftmax", [_cast(x, dtype)], {"axis": axis_of(x, axis)})


def softplus(x: Variable, beta: float = 1, threshold: float = 20) -> Variable:
    """Return `log(1 + exp(beta * x)) / beta`, and `x` itself where `beta * x` is above `threshold`."""
    b = builder_of(x)
    scaled = x.value if beta == 1 else b.mul(x.value, beta)
    soft = b.op("Softplus", [scaled])
    soft = soft if beta == 1 else b.div(soft, beta)
    if threshold < 20:  # above 20, softplus(x) and x are the same number in float32
        soft = b.where(b.compare("Greater", scaled, threshold), x.value, soft)
    return wrap(x, soft)


def softsign(x: Variable) -> Variable:
    """Return `x / (1 + |x|)`."""
    return emit("Softsign", [x])


def hardsigmoid(x: Variable, slope: float = 0.1666667, offset: float = 0.5) -> Variable:
    """Return `slope * x + offset`, kept between 0 and 1."""
    return emit("HardSigmoid", [x], {"alpha": float(slope), "beta": float(offset)})


def hardswish(x: Variable) -> Variable:
    """Return `x` times `x / 6 + 1 / 2` kept between 0 and 1."""
    return emit("HardSwish", [x])


def silu(x: Variable) -> Variable:
    """Return `x * sigmoid(x)`."""
    return emit("Mul", [x, sigmoid(x)])


def swish(x: Variable) -> Variable:
    """Return `x * sigmoid(x)`, as `silu`."""
    return silu(x)


def mish(x: Variable) -> Variable:
    """Return `x * tanh(softplus(x))`."""
    return emit("Mish", [x])


def celu(x: Variable, alpha: float = 1.0) -> Variable:
    """Return `x` where it is positive, else `alpha * (exp(x / alpha) - 1)`."""
    b = builder_of(x)
    if alpha == 1:
        return emit("Elu", [x])
    return wrap(x, b.mul(b.op("Elu", [b.div(x.value, float(alpha))]), float(alpha)))


def glu(x: Variable, axis: int = -1) -> Variable:
    """Return the first half of `x` along `axis`, times the sigmoid of the second."""
    half, gate = split(x, 2, axis)
    return emit("Mul", [half, sigmoid(gate)])


def gumbel_softmax(x: Variable, temperature: float = 1.0, hard: bool = False, axis: int = -1) -> Variable:
    """Draw a class at random by the scores `x`, softened by softmax.

    Args:
        x: scores of the classes along `axis`.
        temperature: the draw is the sharper the nearer it is to 0.
        hard: whether the result is 1 for one class and 0 for the others; gradients are those of the soft draw.
        axis: where the classes are.
    """
    b, place = builder_of(x), axis_of(x, axis)
    noise = gumbel_like(x)
    soft = emit("Softmax", [wrap(x, b.div(b.add(x.value, noise.value), float(temperature)))], {"axis": place})
    if not hard:
        return soft
    largest = b.reduce("ReduceMax", soft.value, [place], low=True)
    with_ones = wrap(x, b.cast(b.compare("Equal", soft.value, largest), x.value.dtype))
    fixed = wrap(x, b.sub(with_ones.value, soft.value))
    fixed.stop_gradient = True
    return emit("Add", [fixed, soft])


def hardshrink(x: Variable, threshold: float = 0.5) -> Variable:
    """Return `x` where it is beyond `threshold` on either side, else 0."""
    b = builder_of(x)
    return wrap(x, b.where(b.compare("Greater", b.op("Abs", [x.value]), float(threshold)), x.value, 0.0))


def hardtanh(x: Variable, min: float = -1.0, max: float = 1.0) -> Variable:
    """Return `x` kept between `min` and `max`."""
    return clip(x, min, max)


def log_sigmoid(x: Variable) -> Variable:
    """Return the logarithm of the sigmoid, without overflow."""
    b = builder_of(x)
    return wrap(x, b.neg(b.op("Softplus", [b.neg(x.value)])))


logsigmoid = log_sigmoid


def maxout(x: Variable, groups: int, axis: int = 1) -> Variable:
    """Return the largest of each `groups` channels that follow one another.

    Raises:
        InputError: the channels cannot be grouped so.
    """
    place = axis_of(x, axis)
    channels = size_at(x, place, "maxout")
    if groups < 1 or channels % groups:
        raise InputError(f"maxout: the {channels} channels of '{x.name}' cannot be split into groups of {groups}")
    apart = unflatten(x, place, [channels // groups, groups])
    return wrap(x, builder_of(x).reduce("ReduceMax", apart.value, [place + 1], keepdims=False, low=True))


def rrelu(x: Variable, lower: float = 1.0 / 8.0, upper: float = 1.0 / 3.0, training: bool = True) -> Variable:
    """Return `x` where it is positive, else `x` times a slope; training draws it from [lower, upper) for each element.

    Otherwise the slope is the mean of both.

    Raises:
        OptionError: the bounds are not in order, or outside of [0, 1].
    """
    if not 0 <= lower <= upper <= 1:
        raise OptionError(f"rrelu: expected 0 <= lower <= upper <= 1, got {lower} and {upper}")
    if not training or lower == upper:
        return leaky_relu(x, (lower + upper) / 2)
    b = builder_of(x)
    slope = b.add(b.mul(rand_like(x).value, upper - lower), lower)
    return wrap(x, b.where(b.compare("Greater", x.value, 0.0), x.value, b.mul(x.value, slope)))


def softshrink(x: Variable, threshold: float = 0.5) -> Variable:
    """Return `x` moved towards 0 by `threshold`, 0 where it is nearer than that."""
    return emit("Sub", [x, clip(x, -float(threshold), float(threshold))])


def swiglu(x: Variable, y: Variable | None = None) -> Variable:
    """Return `silu(x) * y`; without `y`, of both halves of `x` along the last axis."""
    gate, factor = split(x, 2, -1) if y is None else (x, y)
    return emit("Mul", [silu(gate), factor])


def tanhshrink(x: Variable) -> Variable:
    """Return `x - tanh(x)`."""
    return emit("Sub", [x, tanh(x)])


def thresholded_relu(x: Variable, threshold: float = 1.0, value: float = 0.0) -> Variable:
    """Return `x` where it is above `threshold`, else `value`."""
    b = builder_of(x)
    return wrap(x, b.where(b.compare("Greater", x.value, float(threshold)), x.value, float(value)))


def prelu(x: Variable, weight: Variable, data_format: str = "NCHW") -> Variable:
    """Return `x` where it is positive, else `weight * x`.

    Args:
        x: of rank 2 or more unless `weight` is one number.
        weight: one number, one for each channel, or anything that broadcasts to `x`.
        data_format: where the channels are.

    Raises:
        InputError: the weight fits none of these.
    """
    b = builder_of(x, weight)
    slope = weight.value
    if weight.ndim == 1 and weight.shape[0] != 1:
        axis = 1 if data_format.startswith("NC") else x.ndim - 1
        if x.ndim < 2 or x.shape[axis] != weight.shape[0]:
            raise InputError(
                f"prelu: weight of shape {list(weight.shape)} does not fit {x!r}: give one for each channel"
            )
        slope = b.reshape(slope, [-1, *[1] * (x.ndim - 1 - axis)])
    return wrap(x, b.op("PRelu", [x.value, slope]))


def activate(x: Variable, name: str | None) -> Variable:
    """Apply the activation named by a layer's `act`; None leaves `x` as it is.

    Raises:
        OptionError: there is no activation of this name.
    """
    if name is None:
        return x
    if name not in _BY_NAME:
        raise OptionError(f"unknown activation {name!r}: expected one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name](x)


_BY_NAME: dict[str, Callable[[Variable], Variable]] = {
    "elu": elu,
    "gelu": gelu,
    "hard_sigmoid": hardsigmoid,
    "hard_swish": hardswish,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "leaky_relu": leaky_relu,
    "log_softmax": log_softmax,
    "mish": mish,
    "relu": relu,
    "relu6": relu6,
    "selu": selu,
    "sigmoid": sigmoid,
    "silu": silu,
    "softmax": softmax,
    "softplus": softplus,
    "softsign": softsign,
    "swish": swish,
    "tanh": tanh,
}


def _cast(x: Variable, dtype: Any) -> Variable:
    return x if dtype is None else wrap(x, builder_of(x).explicit_cast(x.value, parse_dtype(dtype)))


# In static mode nothing is overwritten, as in Paddle.
elu_ = elu
hardtanh_ = hardtanh
leaky_relu_ = leaky_relu
relu_ = relu
softmax_ = softmax
tanh_ = tanh
thresholded_relu_ = thresholded_relu

accept_name(globals(), __all__)
mark_functions(globals(), __all__)
