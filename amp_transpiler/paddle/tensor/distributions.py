"""Draws numbers from further distributions. No gradient passes through a draw.

The methods that end in `_` return numbers in the shape and type of the variable; as all of them here, they overwrite
nothing: write `x = x.exponential_()`.
"""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.building import Number, accept_name, as_dtype, binary, builder_of, emit, wrap
from amp_transpiler.paddle.framework.control_flow import while_loop
from amp_transpiler.paddle.tensor.logic import any as any_of, where
from amp_transpiler.paddle.tensor.random import (
    bernoulli,
    fractions_like,
    gumbel_like,
    normal_like,
    randint_like,
)
from amp_transpiler.paddle.tensor.reduction import cumsum
from amp_transpiler.paddle.tensor.search import argmax, topk
from amp_transpiler.program.program import Variable

__all__ = [
    "bernoulli_",
    "binomial",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "poisson",
    "random_",
    "standard_gamma",
    "top_p_sampling",
    "uniform_",
]

_TRIES = 16  # of Marsaglia and Tsang's, each is taken with a probability of 0.95 at least
_LONG = 600.0  # beyond this exp(-x) would vanish in float64, and the normal distribution is near enough


def _inside(x: Variable) -> Variable:
    """Return numbers drawn evenly from within (0, 1), float32, in the shape of `x`."""
    return fractions_like(x) * (1 - 2.0**-23) + 2.0**-25


def _done(drawn: Variable, like: Variable) -> Variable:
    """Return drawn numbers in the type of a variable, without a gradient."""
    drawn = as_dtype(drawn, like.dtype)
    drawn.stop_gradient = True
    return drawn


def uniform_(x: Variable, min: float = -1.0, max: float = 1.0, seed: int = 0) -> Variable:
    """Return numbers drawn evenly from [min, max)."""
    with disable_amp():
        return _done(fractions_like(x, seed) * (max - min) + min, x)


def normal_(x: Variable, mean: float = 0.0, std: float = 1.0) -> Variable:
    """Return numbers drawn from a normal distribution."""
    with disable_amp():
        return _done(normal_like(x) * std + mean, x)


def log_normal_(x: Variable, mean: float = 1.0, std: float = 2.0) -> Variable:
    """Return numbers whose logarithms are drawn from a normal distribution."""
    with disable_amp():
        return _done(emit("Exp", [normal_like(x) * std + mean]), x)


def exponential_(x: Variable, lam: float = 1.0) -> Variable:
    """Return numbers drawn from the exponential distribution of rate `lam`."""
    with disable_amp():
        return _done(emit("Log", [_inside(x)]) * (-1.0 / lam), x)


def cauchy_(x: Variable, loc: float = 0.0, scale: float = 1.0) -> Variable:
    """Return numbers drawn from Cauchy's distribution."""
    with disable_amp():
        return _done(emit("Tan", [(_inside(x) - 0.5) * math.pi]) * scale + loc, x)


def geometric_(x: Variable, probs: float) -> Variable:
    """Return how many trials each element takes up to the first success, whose probability is `probs`."""
    with disable_amp():
        return _done(emit("Floor", [emit("Log", [_inside(x)]) * (1 / math.log1p(-probs))]) + 1.0, x)


def bernoulli_(x: Variable, p: float = 0.5) -> Variable:
    """Return 1 with the probability `p`, else 0."""
    drawn = bernoulli(x, p)
    drawn.stop_gradient = True
    return drawn


def random_(x: Variable, from_: int = 0, to: int | None = None) -> Variable:
    """Return whole numbers drawn evenly from [from_, to), or from [0, from_) without `to`; from all up to 2^24."""
    low, high = (0, from_ or 2**24) if to is None else (from_, to)
    return randint_like(x, low, high)


# ---- counts ----


def poisson(x: Variable) -> Variable:
    """Return numbers drawn from the Poisson distributions with these means."""
    with disable_amp():
        mean = x.astype("float64")
        small = where(mean < _LONG, mean, 1.0)
        first = emit("Exp", [-small])
        counted = _inverted(x, first, lambda count: small / (count + 1.0))
        around = emit("Round", [as_dtype(normal_like(x), "float64") * emit("Sqrt", [mean]) + mean])
        return _done(where(mean < _LONG, counted, where(around < 0.0, 0.0, around)), x)


def binomial(count: Variable, prob: Variable) -> Variable:
    """Return how many of `count` trials succeed, of which each does with the probability `prob`: int64."""
    with disable_amp():
        trials = as_dtype(binary("Add", count.astype("float64"), prob.astype("float64") * 0.0), "float64")
        chance = as_dtype(binary("Add", prob.astype("float64"), trials * 0.0), "float64")
        turned = chance > 0.5
        rare = where(turned, 1.0 - chance, chance)
        log_none = trials * emit("Log", [1.0 - rare])
        short = log_none > -_LONG
        odds = rare / (1.0 - rare)
        first = emit("Exp", [where(short, log_none, 0.0)])
        counted = _inverted(trials, first, lambda number: (trials - number) / (number + 1.0) * odds)
        spread = emit("Sqrt", [trials * rare * (1.0 - rare)])
        around = emit("Round", [as_dtype(normal_like(trials), "float64") * spread + trials * rare])
        successes = where(short, counted, where(around < 0.0, 0.0, around))
        successes = as_dtype(where(turned, trials - successes, successes), "int64")
        successes.stop_gradient = True
        return successes


def _inverted(like: Variable, first: Variable, ratio: Any) -> Variable:
    """Return the first counts whose probabilities add up to more than numbers drawn evenly; float64.

    Args:
        like: of the shape to draw.
        first: the probability of 0.
        ratio: from a count, the probability of the next over its own.
    """
    drawn = as_dtype(fractions_like(like), "float64")

    def go_on(_count: Variable, _share: Variable, total: Variable) -> Variable:
        return any_of(drawn > total)

    def step(count: Variable, share: Variable, total: Variable) -> list[Variable]:
        on = drawn > total
        share = where(on, share * ratio(count), share)
        return [where(on, count + 1.0, count), share, where(on, where(share > 0.0, total + share, 1.0), total)]

    counts: Variable = while_loop(go_on, step, [first * 0.0, first, first])[0]
    return counts


def standard_gamma(x: Variable) -> Variable:
    """Return numbers drawn from the gamma distributions of these shapes and rate 1 (Marsaglia and Tsang's method)."""
    with disable_amp():
        b, shape = builder_of(x), x.astype("float32")
        larger = where(shape < 1.0, shape + 1.0, shape)
        d = larger - 1 / 3
        c = 1.0 / emit("Sqrt", [d * 9.0])
        many = wrap(x, b.add(b.unsqueeze(shape.value, [0]), b.constant(np.zeros([_TRIES] + [1] * x.ndim, np.float32))))
        z = normal_like(many)
        v = c * z + 1.0
        v = v * v * v
        safe = where(v > 0.0, v, 1.0)
        fits = emit("Log", [_inside(many)]) < z * z * 0.5 + d - d * safe + d * emit("Log", [safe])
        taken = emit("And", [v > 0.0, fits])
        best = b.op("ArgMax", [b.cast(taken.value, ir.DataType.INT32)], {"axis": 0})  # the first that is taken
        drawn = d * wrap(x, b.squeeze(b.op("GatherElements", [safe.value, best], {"axis": 0}), [0]))
        power = emit("Exp", [emit("Log", [_inside(x)]) / shape])
        return _done(where(shape < 1.0, drawn * power, drawn), x)


def top_p_sampling(
    x: Variable,
    ps: Variable,
    threshold: Variable | None = None,
    topp_seed: Variable | None = None,
    seed: int = -1,
    k: int = 0,
    mode: str = "truncated",
    return_top: bool = False,
) -> tuple[Variable, Variable]:
    """Draw one of the most probable classes of each row, which together have the probability `ps`.

    Args:
        x: probabilities, [batch, classes].
        ps: how much the classes to draw from sum up to, [batch] or [batch, 1].
        threshold: classes of a lower probability are left out, [batch] or [batch, 1].
        topp_seed: Paddle's, no effect: the program's seed counts.
        seed: Paddle's, no effect.
        k: the most classes to draw from; 0 for any number.
        mode: Paddle's, no effect.
        return_top: Paddle's, no effect.

    Returns:
        The probabilities of the drawn classes, and the classes, int64: [batch, 1] both.
    """
    del topp_seed, seed, mode, return_top
    b = builder_of(x, ps, threshold)
    size = x.shape[-1] if k < 1 else k
    shares, classes = topk(x, size, -1)
    with disable_amp():
        wide = shares.astype("float32")
        before = cumsum(wide, -1) - wide
        column: Number = wrap(x, b.reshape(b.cast(ps.value, ir.DataType.FLOAT), [-1, 1]))
        counts = before < column
        if threshold is not None:
            enough = wide >= wrap(x, b.reshape(b.cast(threshold.value, ir.DataType.FLOAT), [-1, 1]))
            first = wrap(x, b.constant(np.arange(size) == 0))
            counts = emit("And", [counts, emit("Or", [enough, first])])
        scores = where(counts, emit("Log", [wide]) + gumbel_like(wide), -math.inf)
        place = argmax(scores, -1, keepdim=True)
    drawn = [wrap(x, b.op("GatherElements", [part.value, place.value], {"axis": 1})) for part in (shares, classes)]
    return drawn[0], drawn[1]


accept_name(globals(), __all__)
