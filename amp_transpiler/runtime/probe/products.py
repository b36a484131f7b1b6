"""Questions about matrix products and convolutions: what they accumulate in, TF32, and what follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from amp_transpiler.graph.dtypes import FLOAT32, LowFormat
from amp_transpiler.runtime.probe.arithmetic import Array, Rounding, gelu, tf32
from amp_transpiler.runtime.probe.question import SINGLE, Candidate, Question, Questions

__all__ = ["convolutions", "products"]

# The batch, M, K, N.
_SIZES = (
    *((1, 64, 64), (3, 4, 3), (16, 16, 16), (128, 512, 1), (64, 1024, 64), (32, 8192, 32)),
    *((4, 1, 64, 64), (4, 3, 4, 3), (4, 16, 16, 16), (4, 128, 512, 1), (4, 32, 1024, 32)),
)
_LAYERS = ((1536, 128), (1536, 32), (128, 128), (32, 1))  # K, N
_MATMUL = "y = MatMul (x, w)"
_SPLITS = (2, 4, 8, 16)
_REPEATS = 5

_PRODUCT: Mapping[str, Candidate] = {SINGLE: lambda r, x, w: r(x @ w)}
_TF32: Mapping[str, Candidate] = {"tf32": lambda r, x, w: r(tf32(x) @ tf32(w))}


def products(low: LowFormat) -> Questions:
    """Yield matrix products by size, batched or not, then those that show an accumulator, then with what follows."""
    random = np.random.default_rng(1)
    wide = {} if low is not FLOAT32 else _TF32
    for *batch, m, k, n in _SIZES:
        values = {"x": random.standard_normal((*batch, m, k)), "w": random.standard_normal((*batch, k, n))}
        size = "x".join(map(str, (*batch, m, k, n)))
        yield Question("product", "MatMul", size, low, _MATMUL, values, {**_PRODUCT, **wide})
    yield from _accumulators(low)
    yield from _followed(low, random)
    yield from _of_one_row(low)


def _accumulators(low: LowFormat) -> Questions:
    """Yield products whose partial sums leave the range, stop growing, or are rounded where K is split."""
    for k in (64, 8192):
        signs = np.repeat([300.0, -300.0], k // 2)[:, None]
        values = {"x": np.full((16, k), 300.0), "w": signs * np.ones((k, 16))}
        beyond: Mapping[str, Candidate] = {
            **_PRODUCT,
            "infinite": lambda r, x, w: np.full((16, 16), np.inf),
            "NaN": lambda r, x, w: np.full((16, 16), np.nan),
        }
        condition = f"partial sums beyond float16, K={k}"
        yield Question("accumulator", "MatMul", condition, low, _MATMUL, values, beyond)
    for k in (65, 4097):
        x = np.full((8, k), 2.0**-12)
        x[:, 0] = 1
        stuck: Mapping[str, Candidate] = {**_PRODUCT, "low": lambda r, x, w: r.in_turn(x[:, :, None] * w[None], 1)}
        condition = f"1 and {k - 1} times 2^-12"
        yield Question("accumulator", "MatMul", condition, low, _MATMUL, {"x": x, "w": np.ones((k, 8))}, stuck)
    random = np.random.default_rng(4)
    for m, k, n in ((16, 8192, 16), (8, 32768, 16)):
        values = {"x": random.standard_normal((m, k)), "w": random.standard_normal((k, n))}
        split: Mapping[str, Candidate] = {**_PRODUCT, **{f"{parts} low parts of K": _split(parts) for parts in _SPLITS}}
        condition = f"few results of many terms, {m}x{k}x{n}"
        yield Question("accumulator", "MatMul", condition, low, _MATMUL, values, split, repeats=_REPEATS)


def _split(parts: int) -> Candidate:
    def summed(r: Rounding, x: Array, w: Array) -> Array:
        pairs = zip(np.split(x, parts, 1), np.split(w, parts, 0), strict=True)
        return r(sum(r(piece @ weight) for piece, weight in pairs))

    return summed


_Steps: TypeAlias = Callable[..., Array]
"""What follows a product: called with a rounding of every step, the product, and what else is read."""


def _exactly(values: Array) -> Array:
    return values


_FOLLOWED: Mapping[str, tuple[str, str, _Steps]] = {
    "MatMul, Add": ("xwb", "m = MatMul (x, w) y = Add (m, b)", lambda r, m, b: r(m + b)),
    "MatMul, Add, Relu": (
        "xwb",
        "m = MatMul (x, w) s = Add (m, b) y = Relu (s)",
        lambda r, m, b: np.maximum(r(m + b), 0),
    ),
    "MatMul, Relu": ("xw", "m = MatMul (x, w) y = Relu (m)", lambda r, m: np.maximum(r(m), 0)),
    "MatMul, Add of a matrix": ("xwz", "m = MatMul (x, w) y = Add (m, z)", lambda r, m, z: r(m + z)),
    "MatMul, Gelu": ("xw", "m = MatMul (x, w) y = Gelu (m)", lambda r, m: r(gelu(m))),
    "MatMul, Add, Gelu": (
        "xwb",
        "m = MatMul (x, w) s = Add (m, b) y = Gelu (s)",
        lambda r, m, b: r(gelu(r(m + b))),
    ),
    "Gemm": ("xwb", "y = Gemm (x, w, b)", lambda r, m, b: r(m + b)),
    "Gemm, alpha and beta": (
        "xwb",
        "y = Gemm <alpha = 0.3, beta = 0.7> (x, w, b)",
        lambda r, m, b: r(0.3 * m + r(0.7 * b)),
    ),
    "MatMul, Mul": ("xw", "m = MatMul (x, w) y = Mul (m, c)", lambda r, m, c: r(m * c)),
}
"""What is computed -> inputs, nodes, and its steps."""


def _followed(low: LowFormat, random: np.random.Generator) -> Questions:
    values = {
        "x": random.standard_normal((8, 64)),
        "w": random.standard_normal((64, 32)),
        "b": 8 * random.standard_normal(32),
        "z": random.standard_normal((8, 32)),
    }
    for op, (names, body, steps) in _FOLLOWED.items():
        inputs = {name: values[name] for name in names if name != "b"}
        constants = {name: values[name] for name in names if name == "b"}  # some fusions ask for a constant bias
        if "Mul (m" in body:
            constants["c"] = np.array(0.3)
        candidates = _with_steps(low, np.matmul, steps)
        yield Question("followed", op, "8x64x32", low, body, inputs, candidates, constants, opset=22)


def _of_one_row(low: LowFormat) -> Questions:
    """Yield layers of one sample, whose products take other kernels: weights transposed, as exporters write them."""
    random, steps = np.random.default_rng(6), _FOLLOWED["Gemm"][2]
    splits = {f"{parts} low parts of K": _split_then_bias(parts) for parts in _SPLITS}
    candidates = {**_with_steps(low, lambda x, w: np.matmul(x, w.T), steps), **splits}
    for k, n in _LAYERS:
        values = {"x": random.standard_normal((1, k)), "w": random.standard_normal((n, k)) / np.sqrt(k)}
        body, bias = "y = Gemm <transB = 1> (x, w, b)", {"b": random.standard_normal(n)}
        yield Question("one row", "Gemm", f"1x{k}x{n}", low, body, values, candidates, bias, repeats=_REPEATS)


def _split_then_bias(parts: int) -> Candidate:
    product = _split(parts)
    return lambda r, x, w, b: r(product(r, x, w.T) + b)


def _with_steps(low: LowFormat, product: Callable[[Array, Array], Array], steps: _Steps) -> Mapping[str, Candidate]:
    candidates: dict[str, Candidate] = {
        SINGLE: lambda r, x, w, **more: r(steps(_exactly, product(x, w), **more)),
        "product low": lambda r, x, w, **more: r(steps(_exactly, r(product(x, w)), **more)),
        "first step inside": lambda r, x, w, **more: steps(r, product(x, w), **more),
        "every step low": lambda r, x, w, **more: steps(r, r(product(x, w)), **more),
    }
    if low is FLOAT32:
        candidates["tf32"] = lambda r, x, w, **more: r(steps(_exactly, product(tf32(x), tf32(w)), **more))
    return candidates


_CHANNELS = ((3, 16, 3), (64, 64, 1), (64, 64, 3), (128, 128, 3))  # in, out, size of the kernel
_PLANE = 8


def _convolved(x: Array, w: Array) -> Array:
    size = w.shape[-1]
    width = x.shape[-1] - size + 1
    return np.asarray(
        sum(
            np.einsum("nchw,mc->nmhw", x[:, :, i : i + width, j : j + width], w[:, :, i, j])
            for i in range(size)
            for j in range(size)
        )
    )


def convolutions(low: LowFormat) -> Questions:
    """Yield convolutions by channels, with what follows them."""
    random = np.random.default_rng(5)
    for channels, count, size in _CHANNELS:
        width = _PLANE - size + 1
        values = {
            "x": random.standard_normal((1, channels, _PLANE, _PLANE)),
            "w": random.standard_normal((count, channels, size, size)) / channels,
            "b": 4 * random.standard_normal(count),
            "z": random.standard_normal((1, count, width, width)),
        }
        for op, (names, body, steps) in _CONVOLUTIONS.items():
            inputs = {name: values[name] for name in names if name != "b"}
            constants = {name: values[name] for name in names if name == "b"}
            condition = f"{channels} to {count} channels, {size}x{size}"
            candidates = _with_steps(low, _convolved, steps)
            yield Question("convolution", op, condition, low, body, inputs, candidates, constants, opset=22)


def _plane(b: Array) -> Array:
    return b[None, :, None, None]


_CONVOLUTIONS: Mapping[str, tuple[str, str, _Steps]] = {
    "Conv": ("xw", "y = Conv (x, w)", lambda r, c: r(c)),
    "Conv with bias": ("xwb", "y = Conv (x, w, b)", lambda r, c, b: r(c + _plane(b))),
    "Conv with bias, Relu": (
        "xwb",
        "c = Conv (x, w, b) y = Relu (c)",
        lambda r, c, b: np.maximum(r(c + _plane(b)), 0),
    ),
    "Conv with bias, Add": (
        "xwbz",
        "c = Conv (x, w, b) y = Add (c, z)",
        lambda r, c, b, z: r(r(c + _plane(b)) + z),
    ),
    "Conv with bias, Add, Relu": (
        "xwbz",
        "c = Conv (x, w, b) s = Add (c, z) y = Relu (s)",
        lambda r, c, b, z: np.maximum(r(r(c + _plane(b)) + z), 0),
    ),
}
