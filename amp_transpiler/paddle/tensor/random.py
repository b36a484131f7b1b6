"""Draws random numbers. A program draws them from its seed and its step's number, so each run draws others.

The same seed draws the same on every machine, and a program that is resumed goes on as if it had not stopped. The
numbers are not those of Paddle's generator. A test program (`clone(for_test=True)`) draws the same in each run.
"""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.graph.random_words import fractions, in_turns, keys
from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.building import Number, Size, accept_name, as_dtype, binary, builder_of, size_at, wrap
from amp_transpiler.paddle.framework.default_dtype import get_default_dtype
from amp_transpiler.paddle.framework.programs import default_startup_program
from amp_transpiler.paddle.framework.random_state import ensure_random_state
from amp_transpiler.paddle.framework.turns import turn_numbers
from amp_transpiler.paddle.tensor.creation import full
from amp_transpiler.paddle.tensor.search import argmax, argsort, topk
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.runtime.lowering import RANDOM_SEED, RANDOM_STEP

__all__ = [
    "bernoulli",
    "gaussian",
    "log_normal",
    "multinomial",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "standard_normal",
    "uniform",
]

Shape = Variable | Sequence[Size] | int


def _fractions(shape: ir.Value, program: Program, seed: int = 0) -> ir.Value:
    """Draw numbers from [0, 1), float32, in the shape of a value of the program."""
    ensure_random_state(program, default_startup_program())
    b = program.builder()
    with disable_amp():  # the words do not fit into 16 bits
        mark = f"{b.names.fresh('random')}/{seed}" if seed else b.names.fresh("random")
        state = [program.value(name) for name in (RANDOM_SEED, RANDOM_STEP)]
        if seed:
            state[0] = b.constant(np.array(seed, np.int64))
        drawn = fractions(b, shape, in_turns(b, keys(b, [mark], state[0], state[1]), turn_numbers(program)))
        if shape.shape is not None and not len(shape.shape):
            drawn = b.reshape(drawn, [])
        elif list(drawn.shape or [None]) != list(shape.shape or []):
            drawn = b.expand_like(drawn, shape)  # along axes of size 1 whose size was not known
    return drawn


def _drawn(shape: Shape, seed: int = 0) -> Variable:
    like = full(shape, 0.0, "float32")
    return wrap(like, _fractions(like.value, like.program, seed))


def fractions_like(x: Variable, seed: int = 0) -> Variable:
    """Return numbers drawn evenly from [0, 1), float32, in the shape of `x`."""
    return wrap(x, _fractions(x.value, x.program, seed))


def normal_like(like: Variable, seed: int = 0) -> Variable:
    """Draw standard normal numbers, float32, from pairs of uniform ones (Box and Muller's method)."""
    b = builder_of(like)
    first, second = (_fractions(like.value, like.program, seed) for _ in range(2))
    with disable_amp():
        radius = b.op("Sqrt", [b.mul(b.op("Log", [b.add(b.mul(first, 1 - 2.0**-24), 2.0**-25)]), -2.0)])
        return wrap(like, b.mul(radius, b.op("Cos", [b.mul(second, 2 * math.pi)])))


def uniform(shape: Shape, dtype: Any = None, min: float = -1.0, max: float = 1.0, seed: int = 0) -> Variable:
    """Return numbers drawn evenly from [min, max).

    Args:
        shape: sizes; numbers, or integer variables of one element, or an integer vector.
        dtype: element type; the default float type unless given.
        min: the lowest.
        max: the bound that all are below.
        seed: a seed of its own, instead of the program's.
    """
    drawn = _drawn(shape, seed)
    with disable_amp():
        placed = drawn if (min, max) == (0, 1) else binary("Add", binary("Mul", drawn, max - min), min)
    return as_dtype(placed, dtype or get_default_dtype())


def rand(shape: Shape, dtype: Any = None) -> Variable:
    """Return numbers drawn evenly from [0, 1)."""
    return uniform(shape, dtype, 0, 1)


def rand_like(input: Variable, *, dtype: Any = None) -> Variable:
    """Return numbers drawn evenly from [0, 1), in the shape and type of `input`."""
    return as_dtype(wrap(input, _fractions(input.value, input.program)), dtype or input.dtype)


def randn(shape: Shape, dtype: Any = None) -> Variable:
    """Return numbers drawn from the normal distribution of mean 0 and standard deviation 1."""
    return as_dtype(normal_like(full(shape, 0.0, "float32")), dtype or get_default_dtype())


standard_normal = randn


def randn_like(x: Variable, dtype: Any = None) -> Variable:
    """Return numbers drawn from the standard normal distribution, in the shape and type of `x`."""
    return as_dtype(normal_like(x), dtype or x.dtype)


def normal(mean: Number = 0.0, std: Number = 1.0, shape: Shape | None = None) -> Variable:
    """Return numbers drawn from normal distributions.

    Args:
        mean: a number, or a variable of means.
        std: a number, or a variable of standard deviations.
        shape: sizes, if both are numbers.

    Raises:
        InputError: both are numbers, and no shape is given.
    """
    variables = [item for item in (mean, std) if isinstance(item, Variable)]
    if len(variables) == 2:
        like = binary("Add", variables[0], variables[1])
    elif variables:
        like = variables[0]
    elif shape is not None:
        like = full(shape, 0.0, "float32")
    else:
        raise InputError("normal: give a shape, or variables of means or standard deviations")
    drawn = normal_like(like)
    result = binary("Add", binary("Mul", as_dtype(drawn, variables[0].dtype if variables else "float32"), std), mean)
    return as_dtype(result, variables[0].dtype if variables else get_default_dtype())


def gaussian(shape: Shape, mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = None) -> Variable:
    """Return numbers drawn from one normal distribution."""
    drawn = normal_like(full(shape, 0.0, "float32"), seed)
    return as_dtype(binary("Add", binary("Mul", drawn, std), mean), dtype or get_default_dtype())


def gumbel_like(x: Variable) -> Variable:
    """Return numbers drawn from Gumbel's distribution, in the shape and type of `x`."""
    b, drawn = builder_of(x), _fractions(x.value, x.program)
    with disable_amp():
        shifted = b.add(b.mul(drawn, 1 - 2.0**-23), 2.0**-25)  # within (0, 1), so that both logarithms are finite
        noise = wrap(x, b.neg(b.op("Log", [b.neg(b.op("Log", [shifted]))])))
        return as_dtype(noise, x.dtype)


def log_normal(mean: Number = 1.0, std: Number = 2.0, shape: Shape | None = None) -> Variable:
    """Return numbers whose logarithms are drawn by `normal`."""
    drawn = normal(mean, std, shape)
    return wrap(drawn, builder_of(drawn).op("Exp", [drawn.value]))


def randint(low: int = 0, high: int | None = None, shape: Shape = (1,), dtype: Any = None) -> Variable:
    """Return integers drawn evenly from [low, high), or from [0, low) without `high`: int64 unless `dtype` is given.

    Raises:
        OptionError: there is no such integer, or more than 2^24 of them.
    """
    return _integers(_drawn(shape), low, high, dtype or "int64")


def randint_like(x: Variable, low: int = 0, high: int | None = None, dtype: Any = None) -> Variable:
    """Return integers drawn evenly from [low, high), or from [0, low) without `high`, in the shape and type of `x`."""
    return _integers(wrap(x, _fractions(x.value, x.program)), low, high, dtype or x.dtype)


def _integers(drawn: Variable, low: int, high: int | None, dtype: Any) -> Variable:
    first, bound = (0, low) if high is None else (low, high)
    if not 0 < bound - first <= 2**24:
        raise OptionError(f"randint: expected 1 to 2^24 integers to draw from, got [{first}, {bound})")
    b = builder_of(drawn)
    with disable_amp():
        place = b.cast(b.op("Floor", [b.mul(drawn.value, float(bound - first))]), ir.DataType.INT64)
    return wrap(drawn, b.cast(b.add(place, first) if first else place, parse_dtype(dtype)))


def randperm(n: int, dtype: Any = "int64") -> Variable:
    """Return the numbers from 0 to `n - 1` in a random order."""
    return as_dtype(argsort(_drawn([n])), dtype)


def bernoulli(x: Variable, p: float | None = None) -> Variable:
    """Return 1 with the probability that `x` says (or `p`, for all), else 0, in the shape and type of `x`."""
    drawn = wrap(x, _fractions(x.value, x.program))
    with disable_amp():
        return as_dtype(binary("Less", drawn, x if p is None else p), x.dtype)


def multinomial(x: Variable, num_samples: int = 1, replacement: bool = False) -> Variable:
    """Return indices drawn by weights, which need not add up to 1: int64.

    Args:
        x: weights, [..., classes]; the number of classes must be known.
        num_samples: how many to draw.
        replacement: whether one index may be drawn again.

    Raises:
        OptionError: more are asked for than there are.
    """
    classes = size_at(x, -1, "multinomial")
    if not replacement and num_samples > classes:
        raise OptionError(f"multinomial: {num_samples} cannot be drawn of {classes} without replacement")
    b = builder_of(x)
    scores = b.op("Log", [b.high(x.value)])
    if replacement:
        zeros = b.constant(np.zeros([num_samples, 1], np.float32))
        scores = b.add(b.unsqueeze(scores, [x.ndim - 1]), zeros)
    like = wrap(x, scores)
    with disable_amp():  # the largest of the scores and Gumbel's numbers is each one with its probability
        noisy = binary("Add", like, gumbel_like(like))
    return argmax(noisy, -1) if replacement else topk(noisy, num_samples, -1)[1]


accept_name(globals(), __all__)
