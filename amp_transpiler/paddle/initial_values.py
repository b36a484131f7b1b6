"""Initial values of parameters: functions of a random generator and a shape (`framework.persistables.Initial`)."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments

__all__ = [
    "Assign",
    "Bilinear",
    "Constant",
    "Dirac",
    "Initializer",
    "KaimingNormal",
    "KaimingUniform",
    "Normal",
    "Orthogonal",
    "TruncatedNormal",
    "Uniform",
    "XavierNormal",
    "XavierUniform",
    "calculate_gain",
    "chosen_initializer",
    "set_global_initializer",
]


class Initializer(abc.ABC):
    """Computes the initial value of a parameter."""

    @abc.abstractmethod
    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of this shape."""


@dataclasses.dataclass(frozen=True, slots=True)
class Constant(Initializer):
    """One number everywhere.

    Attributes:
        value: the number.
    """

    value: float = 0.0

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:  # noqa: ARG002
        """Return an array full of `value`."""
        return np.full(shape, self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """The normal distribution.

    Attributes:
        mean: its mean.
        std: its standard deviation.
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _check_spread("Normal", "std", self.std)

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return independent draws."""
        return random.normal(self.mean, self.std, shape)


@dataclasses.dataclass(frozen=True, slots=True)
class TruncatedNormal(Initializer):
    """The normal distribution without its tails.

    Attributes:
        mean: mean of the whole distribution.
        std: its standard deviation.
        a: the lowest value, in standard deviations from the mean.
        b: the highest.
    """

    mean: float = 0.0
    std: float = 1.0
    a: float = -2.0
    b: float = 2.0

    def __post_init__(self) -> None:
        _check_spread("TruncatedNormal", "std", self.std)
        # Values outside the bounds are drawn again. With less of the distribution inside, that would take too long.
        if 0.5 * (math.erf(self.b / math.sqrt(2)) - math.erf(self.a / math.sqrt(2))) < 1e-3:
            raise OptionError(
                f"TruncatedNormal: a={self.a} and b={self.b} leave less than a thousandth of the distribution: "
                "give bounds, in standard deviations, that are further apart or nearer to 0"
            )

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return independent draws; values outside the bounds are drawn again."""
        flat = np.atleast_1d(random.standard_normal(shape)).reshape(-1)
        while (outside := np.flatnonzero((flat < self.a) | (flat > self.b))).size:
            flat[outside] = random.standard_normal(outside.size)
        return self.mean + self.std * flat.reshape(shape)


@dataclasses.dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """The uniform distribution on [low, high).

    Attributes:
        low: the lowest value.
        high: the bound that all values are below.
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise OptionError(f"Uniform: low must not be above high, got low={self.low}, high={self.high}")

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return independent draws."""
        return random.uniform(self.low, self.high, shape)


@dataclasses.dataclass(frozen=True, slots=True)
class _Xavier(Initializer):
    """Glorot and Bengio's initial values: the variance is `gain² * 2 / (fan_in + fan_out)`.

    Attributes:
        fan_in: the number of inputs of an output; from the shape unless given.
        fan_out: the number of outputs of an input; from the shape unless given.
        gain: factor on the standard deviation.
    """

    fan_in: float | None = None
    fan_out: float | None = None
    gain: float = 1.0

    def _deviation(self, shape: tuple[int, ...]) -> float:
        fan_in, fan_out = fans(shape)
        total = (fan_in if self.fan_in is None else self.fan_in) + (fan_out if self.fan_out is None else self.fan_out)
        return self.gain * math.sqrt(2.0 / total) if total else 0.0


class XavierNormal(_Xavier):
    """Normal, of standard deviation `gain * sqrt(2 / (fan_in + fan_out))`."""

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return independent draws."""
        return random.normal(0.0, self._deviation(shape), shape)


class XavierUniform(_Xavier):
    """Uniform, up to `gain * sqrt(6 / (fan_in + fan_out))` on either side of 0."""

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return independent draws."""
        return _uniform(random, self._deviation(shape), shape)


@dataclasses.dataclass(frozen=True, slots=True)
class _Kaiming(Initializer):
    """He's initial values: the variance is `gain² / fan_in`.

    Attributes:
        fan_in: the number of inputs of an output; from the shape unless given.
        negative_slope: slope of `leaky_relu` below 0.
        nonlinearity: the activation that follows, which decides the gain: `relu`, `leaky_relu`, `tanh`, `selu`,
            `sigmoid` or `linear`.
    """

    fan_in: float | None = None
    negative_slope: float = 0.0
    nonlinearity: str = "relu"

    def __post_init__(self) -> None:
        _gain(self.nonlinearity, self.negative_slope)

    def _deviation(self, shape: tuple[int, ...]) -> float:
        fan_in = fans(shape)[0] if self.fan_in is None else self.fan_in
        return _gain(self.nonlinearity, self.negative_slope) / math.sqrt(fan_in) if fan_in else 0.0


class KaimingNormal(_Kaiming):
    """Normal, of standard deviation `gain / sqrt(fan_in)`."""

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return independent draws."""
        return random.normal(0.0, self._deviation(shape), shape)


class KaimingUniform(_Kaiming):
    """Uniform, up to `gain * sqrt(3 / fan_in)` on either side of 0."""

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return independent draws."""
        return _uniform(random, self._deviation(shape), shape)


class Assign(Initializer):
    """A given array.

    Args:
        value: an array or a list, with as many elements as the parameter.
    """

    def __init__(self, value: Any) -> None:
        self.value = np.array(value)

    def __repr__(self) -> str:
        return f"Assign({self.value.dtype} {list(self.value.shape)})"

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:  # noqa: ARG002
        """Return the value.

        Raises:
            InputError: it does not have as many elements as the shape.
        """
        if self.value.size != math.prod(shape):
            raise InputError(
                f"Assign: a value of shape {list(self.value.shape)} cannot be a parameter of {list(shape)}"
            )
        return self.value.reshape(shape)


class Bilinear(Initializer):
    """Filters that enlarge images by bilinear interpolation, for transposed convolutions: [out, in, size, size]."""

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:  # noqa: ARG002
        """Return the same tent in every filter.

        Raises:
            InputError: the filters are not square.
        """
        if len(shape) != 4 or shape[2] != shape[3]:
            raise InputError(f"Bilinear: a parameter of square filters, [out, in, size, size], got {list(shape)}")
        size = shape[3]
        factor = math.ceil(size / 2.0)
        center = (2 * factor - 1 - factor % 2) / (2.0 * factor)
        tent = 1.0 - np.abs(np.arange(size) / factor - center)
        return np.broadcast_to(np.outer(tent, tent), shape).copy()


@dataclasses.dataclass(frozen=True, slots=True)
class Dirac(Initializer):
    """Filters that leave as many channels as possible as they are: 1 in the middle of filter `i` at channel `i`.

    Attributes:
        groups: the groups of the convolution.
    """

    groups: int = 1

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:  # noqa: ARG002
        """Return the filters.

        Raises:
            InputError: they are no filters of one to three axes, or cannot be split into the groups.
        """
        if not 3 <= len(shape) <= 5 or shape[0] % self.groups:
            raise InputError(f"Dirac: {list(shape)} are no filters of {self.groups} groups")
        values, each = np.zeros(shape), shape[0] // self.groups
        middle = tuple(size // 2 for size in shape[2:])
        for group in range(self.groups):
            for channel in range(min(each, shape[1])):
                values[(group * each + channel, channel, *middle)] = 1.0
        return values


@dataclasses.dataclass(frozen=True, slots=True)
class Orthogonal(Initializer):
    """Rows, or columns if there are fewer, at right angles to each other and of one length.

    Attributes:
        gain: their length.
    """

    gain: float = 1.0

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return a drawn matrix of the first axis by all others.

        Raises:
            InputError: there are fewer than two axes.
        """
        if len(shape) < 2:
            raise InputError(f"Orthogonal: a parameter of two axes or more, got {list(shape)}")
        rows, columns = shape[0], math.prod(shape[1:])
        q, r = np.linalg.qr(random.standard_normal((max(rows, columns), min(rows, columns))))
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
        return self.gain * (q.T if rows < columns else q).reshape(shape)


_chosen: dict[str, Initializer | None] = {"w": None, "b": None}


def set_global_initializer(weight_init: Initializer | None, bias_init: Initializer | None = None) -> None:
    """Set the initial values of the layers that are made from now on, where no attribute says else; None: their own.

    Args:
        weight_init: of weights.
        bias_init: of biases.
    """
    _chosen.update(w=weight_init, b=bias_init)


def chosen_initializer(suffix: str) -> Initializer | None:
    """Return what `set_global_initializer` set for weights (`w`) or biases (`b`)."""
    return _chosen.get(suffix)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return by how much an activation function makes the deviation of what passes it smaller, as a factor.

    Args:
        nonlinearity: `relu`, `leaky_relu`, `tanh`, `selu`, `sigmoid`, `linear` or a convolution.
        param: slope of `leaky_relu` below 0; 0.01 unless given.

    Raises:
        OptionError: it is another function.
    """
    name = "linear" if nonlinearity.startswith(("conv", "linear")) else nonlinearity
    return _gain(name, 0.01 if param is None else param)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return fan-in and fan-out: rows and columns of a matrix; of a filter [out, in, ...] times its window."""
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    if len(shape) == 2:
        return shape[0], shape[1]
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _uniform(random: np.random.Generator, deviation: float, shape: tuple[int, ...]) -> np.ndarray:
    """Draw from the uniform distribution around 0 that has this standard deviation."""
    limit = math.sqrt(3.0) * deviation
    return random.uniform(-limit, limit, shape)


def _gain(nonlinearity: str, slope: float) -> float:
    gains = {
        "relu": math.sqrt(2.0),
        "leaky_relu": math.sqrt(2.0 / (1.0 + slope**2)),
        "tanh": 5.0 / 3.0,
        "selu": 0.75,
        "sigmoid": 1.0,
        "linear": 1.0,
    }
    if nonlinearity not in gains:
        raise OptionError(f"unknown nonlinearity {nonlinearity!r}: expected one of {', '.join(gains)}")
    return gains[nonlinearity]


def _check_spread(what: str, name: str, value: float) -> None:
    if value < 0:
        raise OptionError(f"{what}: {name} must not be negative, got {value}")


check_arguments(globals(), __all__)
