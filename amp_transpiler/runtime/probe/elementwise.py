"""Questions about operators that compute each element by itself: all bit patterns, tails, pairs, casts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from amp_transpiler.graph.dtypes import FLOAT32, LowFormat
from amp_transpiler.runtime.probe.arithmetic import Rounding, erf, every_pattern, gelu, gelu_tanh, sigmoid
from amp_transpiler.runtime.probe.question import SINGLE, Candidate, Question, Questions

__all__ = ["binary", "casts", "tails", "unary"]

PAIRS = 100_000
TAILS = (1, 3, 5, 7, 255, 257)
"""Counts that kernels which take 2, 4 or 8 elements at a time do not divide."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unary:
    """An operator of one input.

    Attributes:
        op: the operator.
        candidates: what its kernel may compute.
        attributes: in ONNX text.
        condition: said in the row, where attributes make it another kernel.
        opset: the newest that the CUDA provider has a kernel for, where it is not 22.
    """

    op: str
    candidates: Mapping[str, Candidate]
    attributes: str = ""
    condition: str = ""
    opset: int = 22


def _float32_sigmoid(r: Rounding, x: np.ndarray) -> np.ndarray:
    share = (1 / (1 + np.exp(-np.abs(x)))).astype(np.float32).astype(np.float64)
    return r(np.where(x > 0, share, 1 - share))


def _hard_swish_steps(r: Rounding, x: np.ndarray) -> np.ndarray:
    return r(x * np.clip(r(r(x / 6) + 0.5), 0, 1))


def _exact_selu(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)))


_UNARY = (
    Unary(
        "Sigmoid",
        {
            SINGLE: lambda r, x: r(sigmoid(x)),
            "steps": lambda r, x: r.sigmoid(x),
            "float32, 1 - 1/(1 + e)": _float32_sigmoid,
        },
    ),
    Unary("Tanh", {SINGLE: lambda r, x: r(np.tanh(x))}),
    Unary("Erf", {SINGLE: lambda r, x: r(erf(x))}),
    Unary("Exp", {SINGLE: lambda r, x: r(np.exp(x))}),
    Unary("Log", {SINGLE: lambda r, x: r(np.log(x))}),
    Unary("Sqrt", {SINGLE: lambda r, x: r(np.sqrt(x))}),
    Unary("Reciprocal", {SINGLE: lambda r, x: r(1 / x)}),
    Unary("Sin", {SINGLE: lambda r, x: r(np.sin(x))}),
    Unary("Cos", {SINGLE: lambda r, x: r(np.cos(x))}),
    Unary("Relu", {SINGLE: lambda r, x: np.maximum(x, 0), "NaN becomes 0": lambda r, x: np.fmax(x, 0)}),
    Unary("Softplus", {SINGLE: lambda r, x: r(np.logaddexp(0, x)), "steps": lambda r, x: r.softplus(x)}),
    Unary(
        "Softsign",
        {SINGLE: lambda r, x: r(x / (1 + np.abs(x))), "steps": lambda r, x: r(x / r(1 + np.abs(x)))},
    ),
    Unary("Elu", {SINGLE: lambda r, x: r(np.where(x > 0, x, np.expm1(x))), "steps": lambda r, x: r.elu(x)}, opset=21),
    Unary("Selu", {SINGLE: lambda r, x: r(_exact_selu(x)), "steps": lambda r, x: r.selu(x)}, opset=21),
    Unary(
        "HardSigmoid",
        {
            SINGLE: lambda r, x: r(np.clip(0.2 * x + 0.5, 0, 1)),
            "alpha low, one rounding": lambda r, x: np.clip(r(r.constant(0.2) * x + r.constant(0.5)), 0, 1),
            "alpha low, two": lambda r, x: np.clip(r(r(r.constant(0.2) * x) + r.constant(0.5)), 0, 1),
        },
    ),
    Unary("HardSwish", {SINGLE: lambda r, x: r(x * np.clip(x / 6 + 0.5, 0, 1)), "steps, x / 6": _hard_swish_steps}),
    Unary(
        "LeakyRelu",
        {
            SINGLE: lambda r, x: r(np.where(x > 0, x, 0.01 * x)),
            "alpha low": lambda r, x: np.where(x > 0, x, r(r.constant(0.01) * x)),
        },
    ),
    Unary("Gelu", {SINGLE: lambda r, x: r(gelu(x)), "x R(cdf)": lambda r, x: r(x * r(0.5 * (1 + erf(x / 2**0.5))))}),
    Unary(
        "Gelu",
        {SINGLE: lambda r, x: r(gelu_tanh(x)), "steps": lambda r, x: r.fast_gelu(x)},
        'approximate = "tanh"',
        "tanh",
    ),
    Unary("Mish", {SINGLE: lambda r, x: r(x * np.tanh(np.logaddexp(0, x)))}),
    Unary("Floor", {SINGLE: lambda r, x: np.floor(x)}),
    Unary("Ceil", {SINGLE: lambda r, x: np.ceil(x)}),
    Unary("Round", {SINGLE: lambda r, x: np.rint(x)}),
    Unary("Neg", {SINGLE: lambda r, x: -x}),
    Unary("Abs", {SINGLE: lambda r, x: np.abs(x)}),
)


def unary(low: LowFormat) -> Questions:
    """Yield every operator of one input on every bit pattern of a 16-bit format."""
    if low is FLOAT32:
        return
    for row in _UNARY:
        condition = ", ".join(filter(None, (row.condition, "every bit pattern")))
        body = f"y = {row.op} <{row.attributes}> (x)" if row.attributes else f"y = {row.op} (x)"
        yield Question(
            "unary", row.op, condition, low, body, {"x": every_pattern(low)}, row.candidates, opset=row.opset
        )
    yield Question("unary", "Sigmoid, Mul", "every bit pattern", low, _SILU_BODY, {"x": every_pattern(low)}, _SILU)


_SILU_BODY = "s = Sigmoid (x) y = Mul (x, s)"
_SILU: Mapping[str, Candidate] = {
    SINGLE: lambda r, x: r(x * sigmoid(x)),
    "two": lambda r, x: r(x * r(sigmoid(x))),
    "QuickGelu steps": lambda r, x: r.silu(x),
}
_GELU_TANH: Mapping[str, Candidate] = {
    SINGLE: lambda r, x: r(gelu_tanh(x)),
    "steps": lambda r, x: r.fast_gelu(x),
}


def tails(low: LowFormat) -> Questions:
    """Yield vectorised kernels on counts that leave elements over."""
    for count in TAILS:
        x, condition = {"x": np.linspace(-3, 3, count)}, f"n={count}"
        yield Question(
            "tail", "Gelu", f"tanh, {condition}", low, 'y = Gelu <approximate = "tanh"> (x)', x, _GELU_TANH, opset=22
        )
        yield Question("tail", "Sigmoid, Mul", condition, low, _SILU_BODY, x, _SILU)


_BINARY: Mapping[str, np.ufunc] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
}


def binary(low: LowFormat) -> Questions:
    """Yield operators of two inputs, on pairs of random numbers."""
    random = np.random.default_rng(2)
    pair = {"x": random.standard_normal(PAIRS), "z": random.standard_normal(PAIRS)}
    condition = f"{PAIRS} pairs"
    for op, function in _BINARY.items():
        exact: Candidate = lambda r, x, z, function=function: r(function(x, z))  # noqa: E731  bound by the default
        yield Question("binary", op, condition, low, f"y = {op} (x, z)", pair, {SINGLE: exact})
    powers = {"x": np.abs(pair["x"]) + 0.1, "z": pair["z"]}
    yield Question(
        "binary", "Pow", condition, low, "y = Pow (x, z)", powers, {SINGLE: lambda r, x, z: r(np.power(x, z))}
    )
    yield Question(
        "binary",
        "Sum",
        "of 4",
        low,
        "y = Sum (x, z, x, z)",
        pair,
        {
            SINGLE: lambda r, x, z: r(2 * x + 2 * z),
            "steps": lambda r, x, z: r(r(r(x + z) + x) + z),
        },
    )


def casts(low: LowFormat) -> Questions:
    """Yield the cast of float32 into the format, on any bits, and on halves between two neighbours."""
    if low is FLOAT32:
        return
    bits = np.random.default_rng(3).integers(0, 2**32, PAIRS, dtype=np.uint32)
    halves = (bits & ~np.uint32(2 ** (24 - low.digits) - 1)) | np.uint32(2 ** (23 - low.digits))
    for condition, patterns in (("any bits", bits), ("halves", halves)):
        x = {"x": patterns.view(np.float32)}
        body = f"y = Cast <to = {int(low.dtype)}> (x)"
        yield Question("cast", "Cast", condition, low, body, x, {SINGLE: lambda r, x: r(x)})
