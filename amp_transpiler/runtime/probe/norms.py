"""Questions about normalisation and softmax, as operators and written out, and about GELU written out."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.runtime.probe.arithmetic import Array, Rounding, erf, gelu, gelu_tanh, normalized, softmax
from amp_transpiler.runtime.probe.question import SINGLE, Candidate, Question, Questions

__all__ = ["norms", "softmaxes", "written_out"]

_ROWS, _WIDTH = 64, 512
_EPSILON = 1e-5


def norms(low: LowFormat) -> Questions:
    """Yield norms, by themselves and behind an addition."""
    random = np.random.default_rng(2)
    x = random.standard_normal((_ROWS, _WIDTH))
    z = random.standard_normal((_ROWS, _WIDTH))
    parameters = {"g": random.uniform(0.5, 1.5, _WIDTH), "b": random.standard_normal(_WIDTH)}
    size = f"{_ROWS}x{_WIDTH}"
    layer: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, g, b: r(normalized(x) * g + b),
        "three": lambda r, x, g, b: r(r(r(normalized(x)) * g) + b),
    }
    node = "LayerNormalization (x, g, b)"
    yield Question("norm", "LayerNormalization", size, low, f"y = {node}", {"x": x}, layer, parameters)
    summed: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, z, g, b: r(normalized(r(x + z)) * g + b),
        "sum float32": lambda r, x, z, g, b: r(normalized(x + z) * g + b),
    }
    body = "s = Add (x, z) y = LayerNormalization (s, g, b)"
    pair = {"x": x[None], "z": 0.3 * z[None]}
    yield Question("norm", "Add, LayerNormalization", size, low, body, pair, summed, parameters)
    rms: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, g: r(_rms(x) * g),
        "two": lambda r, x, g: r(r(_rms(x)) * g),
    }
    body = f"y = RMSNormalization <epsilon = {_EPSILON}> (x, g)"
    scale = {"g": parameters["g"]}
    yield Question("norm", "RMSNormalization", size, low, body, {"x": x}, rms, scale, opset=23)
    yield from _of_planes(low, random)


def _rms(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + _EPSILON))


def _of_planes(low: LowFormat, random: np.random.Generator) -> Questions:
    channels = 16
    x = {"x": random.standard_normal((2, channels, 8, 8))}
    scale, bias = random.uniform(0.5, 1.5, channels), random.standard_normal(channels)

    def over_plane(x: Array) -> Array:
        return normalized(x.reshape(2, channels, -1)).reshape(x.shape)

    def shaped(vector: Array) -> Array:
        return vector[None, :, None, None]

    instance: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, g, b: r(over_plane(x) * shaped(g) + shaped(b)),
        "three": lambda r, x, g, b: r(r(r(over_plane(x)) * shaped(g)) + shaped(b)),
    }
    body, parameters = "y = InstanceNormalization (x, g, b)", {"g": scale, "b": bias}
    yield Question("norm", "InstanceNormalization", "2x16x8x8", low, body, x, instance, parameters)
    batch: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, g, b, m, v: r((x - shaped(m)) / np.sqrt(shaped(v) + _EPSILON) * shaped(g) + shaped(b)),
    }
    statistics = {"m": random.standard_normal(channels), "v": random.uniform(0.5, 1.5, channels)}
    body = "y = BatchNormalization (x, g, b, m, v)"
    yield Question(
        "norm", "BatchNormalization", "2x16x8x8", low, body, x, batch, {**parameters, **statistics}, opset=15
    )


def softmaxes(low: LowFormat) -> Questions:
    """Yield softmax by the length of its rows, and behind an addition."""
    random = np.random.default_rng(7)
    for width in (8, 512, 4097):
        x = {"x": random.standard_normal((_ROWS, width))}
        yield Question(
            "softmax", "Softmax", f"n={width}", low, "y = Softmax (x)", x, {SINGLE: lambda r, x: r(softmax(x))}
        )
    yield Question(
        "softmax",
        "LogSoftmax",
        f"n={_WIDTH}",
        low,
        "y = LogSoftmax (x)",
        {"x": random.standard_normal((_ROWS, _WIDTH))},
        {SINGLE: lambda r, x: r(x - x.max(-1, keepdims=True) - np.log(_shares(x).sum(-1, keepdims=True)))},
    )
    yield Question(
        "softmax",
        "Add, Softmax",
        "of a mask",
        low,
        "s = Add (x, b) y = Softmax (s)",
        {"x": random.standard_normal((2, 4, 8, 8)), "b": random.standard_normal((2, 1, 1, 8))},
        {
            SINGLE: lambda r, x, b: r(softmax(r(x + b))),
            "sum float32": lambda r, x, b: r(softmax(x + b)),
        },
    )


def _shares(x: Array) -> Array:
    return np.asarray(np.exp(x - x.max(-1, keepdims=True)))


_LAYER_NORM = """
    m = ReduceMean (x, last) d = Sub (x, m) q = Pow (d, two) v = ReduceMean (q, last) e = Add (v, epsilon)
    s = Sqrt (e) n = Div (d, s) t = Mul (n, g) y = Add (t, b)
"""
_RMS_NORM = """
    q = Pow (x, two) v = ReduceMean (q, last) e = Add (v, epsilon) s = Sqrt (e) n = Div (x, s) y = Mul (n, g)
"""
_GELU = "d = Div (x, root) e = Erf (d) a = Add (e, single) m = Mul (x, a) y = Mul (m, half)"
_FAST_GELU = """
    c = Pow (x, three) k = Mul (c, cubic) i = Add (x, k) l = Mul (i, linear) t = Tanh (l)
    a = Add (t, single) h = Mul (x, half) y = Mul (h, a)
"""


def _layer_norm_steps(r: Rounding, x: Array, g: Array, b: Array, epsilon: Array, **_: Array) -> Array:
    difference = r(x - r(x.mean(-1, keepdims=True)))
    deviation = r(np.sqrt(r(r(r(difference**2).mean(-1, keepdims=True)) + epsilon)))
    return r(r(r(difference / deviation) * g) + b)


def _rms_norm_steps(r: Rounding, x: Array, g: Array, epsilon: Array, **_: Array) -> Array:
    deviation = r(np.sqrt(r(r(r(x**2).mean(-1, keepdims=True)) + epsilon)))
    return r(r(x / deviation) * g)


def _gelu_steps(r: Rounding, x: Array, root: Array, **_: Array) -> Array:
    return r(r(x * r(r(erf(r(x / root))) + 1)) * 0.5)


def _fast_gelu_steps(r: Rounding, x: Array, cubic: Array, linear: Array, **_: Array) -> Array:
    bent = r(np.tanh(r(r(x + r(r(x**3) * cubic)) * linear)))
    return r(r(x * 0.5) * r(bent + 1))


def written_out(low: LowFormat) -> Questions:
    """Yield patterns that ONNX Runtime may fuse into one kernel."""
    random = np.random.default_rng(8)
    rows = {"x": random.standard_normal((1, _ROWS, _WIDTH))}
    parameters = {"g": random.uniform(0.5, 1.5, _WIDTH), "b": random.standard_normal(_WIDTH)}
    numbers = {"two": np.array(2.0), "epsilon": np.array(_EPSILON), "last": np.array([-1], np.int64)}
    size = f"{_ROWS}x{_WIDTH}"
    layer: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, g, b, epsilon, **_: r(normalized(x, epsilon) * g + b),
        "steps": _layer_norm_steps,
    }
    yield Question("pattern", "LayerNormalization", size, low, _LAYER_NORM, rows, layer, {**parameters, **numbers})
    rms: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, g, epsilon, **_: r(x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * g),
        "steps": _rms_norm_steps,
    }
    scale = {"g": parameters["g"], **numbers}
    yield Question("pattern", "RMSNormalization", size, low, _RMS_NORM, rows, rms, scale)
    by_erf: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, **_: r(gelu(x)),
        "x R(cdf)": lambda r, x, **_: r(x * r(0.5 * (1 + erf(x / math.sqrt(2))))),
        "steps": _gelu_steps,
    }
    halves = {"single": np.array(1.0), "half": np.array(0.5)}
    yield Question("pattern", "Gelu", size, low, _GELU, rows, by_erf, {"root": np.array(math.sqrt(2)), **halves})
    by_tanh: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, **_: r(gelu_tanh(x)),
        "FastGelu steps": lambda r, x, **_: r.fast_gelu(x),
        "steps": _fast_gelu_steps,
    }
    numbers = {"three": np.array(3.0), "cubic": np.array(0.044715), "linear": np.array(0.7978845608028654), **halves}
    yield Question("pattern", "Gelu, tanh", size, low, _FAST_GELU, rows, by_tanh, numbers)
    biased: Mapping[str, Candidate] = {
        SINGLE: lambda r, x, b: r(gelu(r(x + b))),
        "sum float32": lambda r, x, b: r(gelu(x + b)),
        "sum low, x R(cdf)": lambda r, x, b: _product_of_rounded(r, r(x + b)),
    }
    body, bias = "s = Add (x, b) y = Gelu (s)", {"b": parameters["b"]}
    yield Question("pattern", "Add, Gelu", size, low, body, rows, biased, bias)


def _product_of_rounded(r: Rounding, x: Array) -> Array:
    return r(x * r(0.5 * (1 + erf(x / math.sqrt(2)))))
