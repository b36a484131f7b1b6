"""Questions about sums and other reductions: by layout, by length, beyond the range, and into one cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from amp_transpiler.graph.dtypes import FLOAT16, LowFormat
from amp_transpiler.runtime.probe.arithmetic import Array, Rounding
from amp_transpiler.runtime.probe.question import SINGLE, Candidate, Question, Questions

__all__ = ["reductions"]

_LAYOUTS: Mapping[str, tuple[Callable[[int], tuple[int, ...]], int]] = {
    "last axis": (lambda n: (4, n), 1),
    "leading axis": (lambda n: (n, 64), 0),
    "middle axis": (lambda n: (3, n, 5), 1),
}
"""Layout -> the shape of n terms, and the axis."""

_LENGTHS = (7, 100, 513, 4097)
_LONG = 70_000  # beyond what float16 can count
_REPEATS = 5


def _reduced(function: Callable[[Array, tuple[int, ...]], Array]) -> Candidate:
    return lambda r, x, axes: r(function(x, tuple(axes)))


def _mean_of_rounded_sum(r: Rounding, x: Array, axes: Array) -> Array:
    count = np.prod([x.shape[axis] for axis in axes])
    return r(r(x.sum(tuple(axes), keepdims=True)) / r(float(count)))


def _squares(r: Rounding, x: Array, axes: Array) -> Array:
    return r(r(x * x).sum(tuple(axes), keepdims=True))


def _log_sum_exp_steps(r: Rounding, x: Array, axes: Array) -> Array:
    axis = tuple(axes)
    largest = x.max(axis, keepdims=True)
    return r(r(np.log(r(r(np.exp(r(x - largest))).sum(axis, keepdims=True)))) + largest)


_REDUCTIONS: Mapping[str, Mapping[str, Candidate]] = {
    "ReduceSum": {SINGLE: _reduced(lambda x, axis: x.sum(axis, keepdims=True))},
    "ReduceMean": {
        SINGLE: _reduced(lambda x, axis: x.mean(axis, keepdims=True)),
        "R(sum)/R(n)": _mean_of_rounded_sum,
    },
    "ReduceMax": {SINGLE: _reduced(lambda x, axis: x.max(axis, keepdims=True))},
    "ReduceMin": {SINGLE: _reduced(lambda x, axis: x.min(axis, keepdims=True))},
    "ReduceL1": {SINGLE: _reduced(lambda x, axis: np.abs(x).sum(axis, keepdims=True))},
    "ReduceL2": {
        SINGLE: _reduced(lambda x, axis: np.sqrt((x * x).sum(axis, keepdims=True))),
        "squares low": lambda r, x, axes: r(np.sqrt(_squares(r, x, axes))),
    },
    "ReduceSumSquare": {
        SINGLE: _reduced(lambda x, axis: (x * x).sum(axis, keepdims=True)),
        "squares low": _squares,
    },
    "ReduceLogSumExp": {
        SINGLE: _reduced(lambda x, axis: np.log(np.exp(x).sum(axis, keepdims=True))),
        "steps": _log_sum_exp_steps,
    },
}


def reductions(low: LowFormat) -> Questions:
    """Yield every reduction over every layout, then what is special about sums."""
    random = np.random.default_rng(0)
    for op, candidates in _REDUCTIONS.items():
        sums = op in ("ReduceSum", "ReduceMean")
        for layout, (shape, axis) in _LAYOUTS.items():
            for count in (*_LENGTHS, *((_LONG,) if sums and layout == "last axis" else ())):
                x = random.uniform(0.5, 1, shape(count)) / (8 if op == "ReduceSum" and low is FLOAT16 else 1)
                yield Question(
                    "reduction",
                    op,
                    f"{layout}, n={count}",
                    low,
                    f"y = {op} (x, axes)",
                    {"x": x},
                    candidates,
                    {"axes": np.array([axis], np.int64)},
                    repeats=_REPEATS if sums else 1,
                )
    yield from _special(low)


def _special(low: LowFormat) -> Questions:
    axes = {"axes": np.array([1], np.int64)}
    yield Question(
        "reduction",
        "ReduceMax",
        "all -inf",
        low,
        "y = ReduceMax (x, axes)",
        {"x": np.full((2, 8), -np.inf)},
        {
            SINGLE: lambda r, x, axes: x[:, :1],
            "lowest finite": lambda r, x, axes: np.full_like(x[:, :1], r(-np.finfo(np.float32).max)),
        },
        axes,
    )
    large = 60000.0 if low is FLOAT16 else 1.0
    for op, single in (("ReduceMean", 1), ("ReduceSum", 0)):
        x = np.full((2, 8), large)
        x[:, 4:] *= 1 if single else -1
        yield Question(
            "reduction",
            op,
            "partial sums beyond float16",
            low,
            f"y = {op} (x, axes)",
            {"x": x},
            {
                SINGLE: _REDUCTIONS[op][SINGLE],
                "infinite": lambda r, x, axes: np.full_like(x[:, :1], np.inf),
                "NaN": lambda r, x, axes: np.full_like(x[:, :1], np.nan),
            },
            axes,
        )
    yield from _in_turn(low)


def _in_turn(low: LowFormat) -> Questions:
    """Yield sums of ones, which stop growing where additions round to the format."""
    most = 2.0**low.digits
    yield Question(
        "reduction",
        "CumSum",
        "5000 ones",
        low,
        "y = CumSum (x, axis)",
        {"x": np.ones((1, 5000))},
        {
            SINGLE: lambda r, x, axis: r(np.cumsum(x, 1)),
            "low": lambda r, x, axis: np.minimum(np.cumsum(x, 1), most),
        },
        {"axis": np.array(1, np.int64)},
        opset=14,
    )
    yield Question(
        "reduction",
        "ScatterND",
        "4096 ones into a cell",
        low,
        'y = ScatterND <reduction = "add"> (x, at, u)',
        {"x": np.zeros(4), "u": np.ones(4096)},
        {
            SINGLE: lambda r, x, u, at: r(np.array([0.0, u.sum(), 0.0, 0.0])),
            "low": lambda r, x, u, at: np.array([0.0, min(u.sum(), most), 0.0, 0.0]),
        },
        {"at": np.ones((4096, 1), np.int64)},
        opset=18,
        repeats=_REPEATS,
    )
