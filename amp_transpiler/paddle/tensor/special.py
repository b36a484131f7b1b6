"""Computes special functions: gamma and related ones, Bessel's, the inverse error function, common divisors.

They are computed in float32, whatever the element type and the level of mixed precision.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.building import accept_name, as_dtype, builder_of, emit, wrap
from amp_transpiler.paddle.framework.control_flow import while_loop
from amp_transpiler.paddle.tensor.elementwise import maximum, minimum
from amp_transpiler.paddle.tensor.logic import any as any_of, where
from amp_transpiler.paddle.tensor.reduction import sum as sum_of
from amp_transpiler.paddle.tensor.shaping import broadcast_tensors
from amp_transpiler.program.program import Variable

__all__ = [
    "digamma",
    "erfinv",
    "frexp",
    "gammainc",
    "gammaincc",
    "gammaln",
    "gcd",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "lcm",
    "lgamma",
    "multigammaln",
    "nextafter",
    "polygamma",
]

_MOST_TERMS, _LAST_TERM, _LEAST = 2000.0, 1e-12, 1e-300  # of series that are summed in float64
_SHIFT = 8  # arguments below this are moved up by it: the series behind are for large ones


_LEAST_NORMAL, _LARGEST = 2.0**-126, float(np.finfo(np.float32).max)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _in_float32(function: _Function) -> _Function:
    """Let a function of floats take any numbers, and return the type that it is given, or float32 for integers."""

    @functools.wraps(function)
    def computed(x: Variable, *args: Any, **kwargs: Any) -> Any:
        dtype = x.dtype if is_float_tensor(x.value) else "float32"
        with disable_amp():
            result = function(x.astype("float32"), *args, **kwargs)
            parts = result if isinstance(result, tuple) else (result,)
            parts = tuple(as_dtype(part, dtype) for part in parts)
        return parts if isinstance(result, tuple) else parts[0]

    return cast("_Function", computed)


def _polynomial(x: Variable, coefficients: Sequence[float]) -> Variable:
    """Evaluate the polynomial with these coefficients, the constant first."""
    result = x * coefficients[-1] + coefficients[-2]
    for number in reversed(coefficients[:-2]):
        result = result * x + number
    return result


def _constant(x: Variable) -> Variable:
    """Return a copy of `x` that no gradient passes through."""
    copy = emit("Identity", [x])
    copy.stop_gradient = True
    return copy


# ---- the gamma function ----


def _mirrored(x: Variable) -> tuple[Variable, Variable, Variable]:
    """Return whether `x` < 1/2; `x`, or `1 - x` there; and there the distance to the nearest whole number, else 1/4."""
    below = x < 0.5
    return below, where(below, 1.0 - x, x), where(below, x - emit("Round", [x]), 0.25)


@_in_float32
def lgamma(x: Variable) -> Variable:
    """Return the logarithm of the absolute value of the gamma function."""
    return _log_gamma(x)


def _log_gamma(x: Variable) -> Variable:
    below, y, distance = _mirrored(x)
    small = y < _SHIFT
    near, z = where(small, y, 1.0), where(small, y + _SHIFT, y)
    product = near
    for step in range(1, _SHIFT):
        product = product * (near + step)
    inverse = 1.0 / z
    series = inverse * _polynomial(inverse * inverse, [1 / 12, -1 / 360, 1 / 1260])
    stirling = (z - 0.5) * (emit("Log", [z]) - 1.0) + series + (0.5 * math.log(2 * math.pi) - 0.5)
    value = stirling - where(small, emit("Log", [product]), 0.0)
    sine = emit("Abs", [emit("Sin", [distance * math.pi])])
    return where(below, math.log(math.pi) - emit("Log", [sine]) - value, value)


gammaln = lgamma


def gammainc(x: Variable, y: Variable) -> Variable:
    """Return the regularised lower incomplete gamma function: the share of the integral of `t^(x - 1) e^-t` up to `y`.

    Args:
        x: the exponent, positive; as in Paddle, no gradient reaches it.
        y: the bound, not negative.
    """
    return _incomplete(x, y, upper=False)


def gammaincc(x: Variable, y: Variable) -> Variable:
    """Return `1 - gammainc(x, y)`, exact where that is small."""
    return _incomplete(x, y, upper=True)


def _incomplete(x: Variable, y: Variable, *, upper: bool) -> Variable:
    """Integrate up to `y`, or from `y` on with `upper`; the derivative by `y` is `y^(x - 1) e^-y / gamma(x)`."""
    dtype = y.dtype if is_float_tensor(y.value) else "float32"
    with disable_amp():
        a, z = broadcast_tensors([x.astype("float64"), y.astype("float64")])
        exponent, bound = _constant(a), _constant(z)
        sound = emit("And", [exponent > 0.0, bound >= 0.0])
        inside = emit("And", [sound, emit("And", [bound > 0.0, bound < math.inf])])
        safe, at = where(inside, exponent, 1.0), where(inside, bound, 1.0)
        factor = emit("Exp", [safe * emit("Log", [at]) - at - _log_gamma(safe)])  # at^safe e^-at / gamma(safe)
        near = at < safe + 1.0
        low, high = factor * _series(safe, where(near, at, 1.0)), factor * _fraction(safe, where(near, safe + 2.0, at))
        value = where(near, 1.0 - low, high) if upper else where(near, low, 1.0 - high)
        ends = where(bound > 0.0, 0.0, 1.0) if upper else where(bound > 0.0, 1.0, 0.0)
        result = where(sound, where(inside, value, ends), math.nan)
        slope = factor / at * (-1.0 if upper else 1.0)
        return as_dtype(result + where(inside, slope * (z - bound), 0.0), dtype)


def _repeat(
    step: Callable[..., list[Variable]], small: Callable[..., Variable], states: Sequence[Variable]
) -> list[Variable]:
    """Call a step of a series, which is told its number, until what `small` returns is nowhere true; no gradients."""
    count = wrap(states[0], builder_of(states[0]).constant(np.array(1.0)))
    most = wrap(states[0], builder_of(states[0]).constant(np.array(_MOST_TERMS)))

    def go_on(number: Variable, *now: Variable) -> Variable:
        return emit("And", [number < most, any_of(small(*now))])

    def body(number: Variable, *now: Variable) -> list[Variable]:
        return [number + 1.0, *step(number, *now)]

    return [_constant(state) for state in while_loop(go_on, body, [count, *states])[1:]]


def _series(a: Variable, z: Variable) -> Variable:
    """Sum `1 / a + z / (a (a + 1)) + ...`, for `z` below `a + 1`."""
    first = 1.0 / a

    def step(number: Variable, term: Variable, total: Variable) -> list[Variable]:
        term = term * z / (a + number)
        return [term, total + term]

    return _repeat(step, lambda term, total: term > total * _LAST_TERM, [first, first])[1]


def _fraction(a: Variable, z: Variable) -> Variable:
    """Return `1 / (z + 1 - a - 1 (1 - a) / (z + 3 - a - 2 (2 - a) / ...))`, for `z` above `a + 1`: Lentz's method."""
    start = 1.0 / (z + 1.0 - a)

    def step(number: Variable, over: Variable, under: Variable, total: Variable, change: Variable) -> list[Variable]:
        part = number * (a - number)
        middle = z + 1.0 - a + number * 2.0
        under = 1.0 / (part * under + middle)
        over = middle + part / over
        change = over * under
        return [over, under, total * change, change]

    infinite = start * 0.0 + 1.0 / _LEAST
    states = [infinite, start, start, start * 0.0]
    return _repeat(step, lambda *now: emit("Abs", [now[3] - 1.0]) > _LAST_TERM, states)[2]


@_in_float32
def digamma(x: Variable) -> Variable:
    """Return the derivative of `lgamma`."""
    below, y, distance = _mirrored(x)
    small = y < _SHIFT
    near, z = where(small, y, 1.0), where(small, y + _SHIFT, y)
    steps = 1.0 / near
    for step in range(1, _SHIFT):
        steps = steps + 1.0 / (near + step)
    inverse = 1.0 / z
    square = inverse * inverse
    series = inverse * 0.5 + square * _polynomial(square, [1 / 12, -1 / 120, 1 / 252])
    value = emit("Log", [z]) - series - where(small, steps, 0.0)
    return where(below, value - math.pi / emit("Tan", [distance * math.pi]), value)


@_in_float32
def polygamma(x: Variable, n: int) -> Variable:
    """Return the `n`-th derivative of `digamma`, for positive `x`.

    Raises:
        OptionError: `n` is negative.
    """
    if n < 0:
        raise OptionError(f"polygamma: n must be 0 or larger, got {n}")
    if n == 0:
        return digamma(x)
    power = n + 1.0
    terms = x ** (-power)
    for step in range(1, _SHIFT):
        terms = terms + (x + step) ** (-power)
    z = x + _SHIFT
    tail = z ** (1 - power) / (power - 1) + z ** (-power) * 0.5
    factor = power
    for bernoulli, order in ((1 / 12, 1), (-1 / 720, 3), (1 / 30240, 5)):
        tail = tail + z ** (-power - order) * (bernoulli * factor)
        factor *= (power + order) * (power + order + 1)
    return (terms + tail) * ((-1.0) ** (n + 1) * math.factorial(n))


@_in_float32
def multigammaln(x: Variable, p: int) -> Variable:
    """Return the logarithm of the gamma function of `p` dimensions, for `x` above `(p - 1) / 2`."""
    b = builder_of(x)
    halves = b.constant(np.arange(p) / 2, x.value.dtype)
    parts = lgamma(wrap(x, b.sub(b.unsqueeze(x.value, [x.ndim]), halves)))
    return sum_of(parts, -1) + p * (p - 1) / 4 * math.log(math.pi)


# ---- the inverse error function ----

# M. Giles, Approximating the erfinv function: the constant comes first.
_MIDDLE = [
    1.50140941,
    0.246640727,
    -0.00417768164,
    -0.00125372503,
    0.00021858087,
    -4.39150654e-06,
    -3.5233877e-06,
    3.43273939e-07,
    2.81022636e-08,
]
_ENDS = [
    2.83297682,
    1.00167406,
    0.00943887047,
    -0.0076224613,
    0.00573950773,
    -0.00367342844,
    0.00134934322,
    0.000100950558,
    -0.000200214257,
]


@_in_float32
def erfinv(x: Variable) -> Variable:
    """Return the number whose error function is `x`: infinite at -1 and 1, NaN beyond."""
    inside = emit("Abs", [x]) < 1.0
    y = where(inside, x, 0.0)
    w = -emit("Log", [(1.0 - y) * (1.0 + y)])
    middle = _polynomial(minimum(w, 5.0) - 2.5, _MIDDLE)
    ends = _polynomial(emit("Sqrt", [maximum(w, 5.0)]) - 3.0, _ENDS)
    near = _constant(y * where(w < 5.0, middle, ends))
    slope = emit("Exp", [near * near]) * (math.sqrt(math.pi) / 2)
    refined = near - (emit("Erf", [near]) - y) * slope  # a step of Newton's, which has the right derivative too
    return where(inside, refined, where(emit("Abs", [x]) > 1.0, math.nan, _constant(x) * math.inf))


# ---- Bessel's functions ----

# M. Abramowitz and I. Stegun, 9.8.1 to 9.8.4, in (x / 3.75)^2 up to 3.75 and in 3.75 / x beyond.
_BOUND = 3.75
_I0 = [1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813]
_I0_FAR = [
    0.39894228,
    0.01328592,
    0.00225319,
    -0.00157565,
    0.00916281,
    -0.02057706,
    0.02635537,
    -0.01647633,
    0.00392377,
]
_I1 = [0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411]
_I1_FAR = [
    0.39894228,
    -0.03988024,
    -0.00362018,
    0.00163801,
    -0.01031555,
    0.02282967,
    -0.02895312,
    0.01787654,
    -0.00420059,
]


def _bessel(x: Variable, near: Sequence[float], far: Sequence[float], scaled: bool) -> Variable:
    """Return the even part of a modified Bessel function; `scaled`: times `exp(-|x|)`."""
    size = emit("Abs", [x])
    small = size <= _BOUND
    low, high = minimum(size, _BOUND) * (1 / _BOUND), maximum(size, _BOUND)
    inner = _polynomial(low * low, near)
    outer = _polynomial(_BOUND / high, far) / emit("Sqrt", [high])
    if scaled:
        return where(small, inner * emit("Exp", [-size]), outer)
    return where(small, inner, outer * emit("Exp", [high]))


@_in_float32
def i0(x: Variable) -> Variable:
    """Return the modified Bessel function of the first kind of order 0."""
    return _bessel(x, _I0, _I0_FAR, scaled=False)


@_in_float32
def i0e(x: Variable) -> Variable:
    """Return `i0(x) * exp(-|x|)`."""
    return _bessel(x, _I0, _I0_FAR, scaled=True)


@_in_float32
def i1(x: Variable) -> Variable:
    """Return the modified Bessel function of the first kind of order 1."""
    return _odd(x) * _bessel(x, _I1, _I1_FAR, scaled=False)


@_in_float32
def i1e(x: Variable) -> Variable:
    """Return `i1(x) * exp(-|x|)`."""
    return _odd(x) * _bessel(x, _I1, _I1_FAR, scaled=True)


def _odd(x: Variable) -> Variable:
    """Return `x` where its size is at most 3.75, beyond that its sign."""
    return where(emit("Abs", [x]) <= _BOUND, x, emit("Sign", [x]))


# ---- whole numbers, and parts of floats ----


def gcd(x: Variable, y: Variable) -> Variable:
    """Return the greatest common divisors of integers, not negative; `gcd(0, 0)` is 0."""
    a, b = emit("Abs", [x + y * 0]), emit("Abs", [y + x * 0])

    def go_on(_: Variable, rest: Variable) -> Variable:
        return any_of(rest != 0)

    def step(large: Variable, small: Variable) -> list[Variable]:
        done = small == 0
        rest = emit("Mod", [large, where(done, 1, small)])
        return [where(done, large, small), where(done, 0, rest)]

    divisors: Variable = while_loop(go_on, step, [a, b])[0]
    return divisors


def lcm(x: Variable, y: Variable) -> Variable:
    """Return the least common multiples of integers, not negative; 0 where one of them is 0."""
    shared = gcd(x, y)
    return emit("Div", [emit("Abs", [x + y * 0]), where(shared == 0, 1, shared)]) * emit("Abs", [y])


@_in_float32
def frexp(x: Variable) -> tuple[Variable, Variable]:
    """Return numbers of a size in [0.5, 1), and whole powers of two: `x` is the first times 2 to the second."""
    size = emit("Abs", [x])
    safe = where(size == 0.0, 1.0, size)
    power = _constant(emit("Floor", [emit("Log", [safe]) * (1 / math.log(2))]) + 1.0)
    half = emit("Floor", [power * 0.5])
    part = safe * _two_to(-half) * _two_to(half - power)  # in two factors: a single one may be out of range
    large, small = part >= 1.0, part < 0.5
    part = where(large, part * 0.5, where(small, part * 2.0, part))
    power = where(large, power + 1.0, where(small, power - 1.0, power))
    zero = size == 0.0
    return where(zero, 0.0, part) * emit("Sign", [x]), where(zero, 0.0, power)


def nextafter(x: Variable, y: Variable) -> Variable:
    """Return the float32 next to `x` on the way to `y`; no gradient passes.

    Raises:
        InputError: `x` or `y` is not float32.
    """
    if x.dtype != "float32" or y.dtype != "float32":
        raise InputError(f"nextafter takes float32, got {x!r} and {y!r}")
    with disable_amp():
        start, goal = (_constant(part).astype("float64") for part in (x, y))
        start = start + where(emit("IsNaN", [goal]), math.nan, 0.0)
        size = emit("Abs", [start])
        power = _power_below(maximum(size, _LEAST_NORMAL))
        inward = emit("Equal", [emit("Sign", [goal - start]), -emit("Sign", [start])])
        finer = emit("And", [emit("And", [inward, size == power]), power > _LEAST_NORMAL])
        gap = where(finer, power * 2.0**-24, power * 2.0**-23)
        ended = emit("IsInf", [start])
        moved = start + where(ended, 0.0, gap) * emit("Sign", [goal - start])
        moved = where(emit("And", [ended, inward]), emit("Sign", [start]) * _LARGEST, moved)
        return as_dtype(where(start == goal, goal, moved), "float32")


def _power_below(size: Variable) -> Variable:
    """Return the largest power of two that is not above positive numbers."""
    guess = _two_to(emit("Floor", [emit("Log", [minimum(size, _LARGEST)]) * (1 / math.log(2))]))
    guess = where(guess > size, guess * 0.5, guess)
    return where(guess * 2.0 > size, guess, guess * 2.0)


def _two_to(power: Variable) -> Variable:
    b = builder_of(power)
    return wrap(power, b.op("Pow", [b.constant(2.0, power.value.dtype), power.value]))


accept_name(globals(), __all__)
