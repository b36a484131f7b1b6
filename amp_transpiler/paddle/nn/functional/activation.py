"""Activation functions: element by element, or along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.nn.functional.building import axis_of, builder_of, emit, wrap

__all__ = [
    "elu",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "log_softmax",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "swish",
    "tanh",
]


def relu(x: Variable) -> Variable:
    """`max(x, 0)`."""
    return emit("Relu", [x])


def relu6(x: Variable) -> Variable:
    """`min(max(x, 0), 6)`."""
    b = builder_of(x)
    low, high = (b.constant(bound, x.value.dtype) for bound in (0.0, 6.0))
    return wrap(x, b.op("Clip", [x.value, low, high]))


def leaky_relu(x: Variable, negative_slope: float = 0.01) -> Variable:
    """`x` where it is positive, else `negative_slope * x`."""
    return emit("LeakyRelu", [x], {"alpha": float(negative_slope)})


def elu(x: Variable, alpha: float = 1.0) -> Variable:
    """`x` where it is positive, else `alpha * (exp(x) - 1)`."""
    return emit("Elu", [x], {"alpha": float(alpha)})


def selu(x: Variable, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772) -> Variable:
    """`scale * x` where `x` is positive, else `scale * alpha * (exp(x) - 1)`."""
    return emit("Selu", [x], {"alpha": float(alpha), "gamma": float(scale)})


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """`x` times the normal distribution's probability below `x`; `approximate` by a tanh."""
    return emit("Gelu", [x], {"approximate": "tanh" if approximate else "none"})


def sigmoid(x: Variable) -> Variable:
    """`1 / (1 + exp(-x))`."""
    return emit("Sigmoid", [x])


def tanh(x: Variable) -> Variable:
    """The hyperbolic tangent."""
    return emit("Tanh", [x])


def softmax(x: Variable, axis: int = -1, dtype: Any = None) -> Variable:
    """`exp(x)` over its sum along `axis`; `x` is cast to `dtype` first if that is given."""
    return emit("Softmax", [_cast(x, dtype)], {"axis": axis_of(x, axis)})


def log_softmax(x: Variable, axis: int = -1, dtype: Any = None) -> Variable:
    """The logarithm of `softmax`."""
    return emit("LogSoftmax", [_cast(x, dtype)], {"axis": axis_of(x, axis)})


def softplus(x: Variable, beta: float = 1, threshold: float = 20) -> Variable:
    """`log(1 + exp(beta * x)) / beta`, and `x` itself where `beta * x` is above `threshold`."""
    b = builder_of(x)
    scaled = x.value if beta == 1 else b.mul(x.value, beta)
    soft = b.op("Softplus", [scaled])
    soft = soft if beta == 1 else b.div(soft, beta)
    if threshold < 20:  # above 20, softplus(x) and x are the same number in float32
        soft = b.where(b.compare("Greater", scaled, threshold), x.value, soft)
    return wrap(x, soft)


def softsign(x: Variable) -> Variable:
    """`x / (1 + |x|)`."""
    return emit("Softsign", [x])


def hardsigmoid(x: Variable, slope: float = 0.1666667, offset: float = 0.5) -> Variable:
    """`slope * x + offset`, kept between 0 and 1."""
    return emit("HardSigmoid", [x], {"alpha": float(slope), "beta": float(offset)})


def hardswish(x: Variable) -> Variable:
    """`x` times `x / 6 + 1 / 2` kept between 0 and 1."""
    return emit("HardSwish", [x])


def silu(x: Variable) -> Variable:
    """`x * sigmoid(x)`."""
    return emit("Mul", [x, sigmoid(x)])


def swish(x: Variable) -> Variable:
    """`x * sigmoid(x)`, as `silu`."""
    return silu(x)


def mish(x: Variable) -> Variable:
    """`x * tanh(softplus(x))`."""
    return emit("Mish", [x])


def prelu(x: Variable, weight: Variable, data_format: str = "NCHW") -> Variable:
    """`x` where it is positive, else `weight * x`.

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


mark_functions(globals(), __all__)
