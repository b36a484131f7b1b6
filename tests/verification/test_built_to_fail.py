"""Networks built to fail in float16: accurate at auto, without data and with it, most of each in lower precision."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

import amp_transpiler as amp
from tests import support
from tests.support import parse

RANDOM = np.random.default_rng(7)
WIDTH = 32


def weight(rows=WIDTH, columns=WIDTH, scale=1.0):
    return (scale * RANDOM.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


def layers(*, first, last, count, start=0):
    """Return `count` layers of a product, a bias and a Tanh from the value `first` to the value `last`."""
    names = [first, *(f"t{start + i}" for i in range(1, count)), last]
    return " ".join(
        f"m{start + i} = MatMul ({a}, w{start + i}) b{start + i} = Add (m{start + i}, k{start + i}) "
        f"{b} = Tanh (b{start + i})"
        for i, (a, b) in enumerate(itertools.pairwise(names))
    )


def network(middle, *, inputs="float[4,32] x", **values):
    """Return three layers, the middle from h to g, and three more layers."""
    weights = {f"w{i}": weight() for i in range(6)} | {f"k{i}": 0.1 * weight(1, WIDTH)[0] for i in range(6)}
    text = f"{layers(first='x', last='h', count=3)} {middle} {layers(first='g', last='y', count=3, start=3)}"
    return parse(f"({inputs}) => (float[4,32] y) {{ {text} }}", opset=18, **weights, **values)


X = {"x": RANDOM.standard_normal((4, WIDTH)).astype(np.float32)}
HIDDEN = {**X, "mask": (RANDOM.random((4, WIDTH)) < 0.5)}
NUMBER = np.float32

# name -> the model and data for it
MODELS = {
    "activations beyond 65504": (
        network(
            "a = Mul (h, large) c = MatMul (a, v) g = Mul (c, small)", large=NUMBER(3e5), small=NUMBER(2e-6), v=weight()
        ),
        X,
    ),
    "a mask of -3.4e38": (
        network(
            "s = MatMul (h, v) a = Where (mask, low, s) p = Softmax <axis=1> (a) g = MatMul (p, u)",
            inputs="float[4,32] x, bool[4,32] mask",
            low=NUMBER(-3.4e38),
            v=weight(),
            u=weight(scale=4.0),
        ),
        HIDDEN,
    ),
    "epsilon of 1e-12 under a root": (
        network(
            "s = Mul (h, tiny) q = Mul (s, s) n = ReduceMean (q, axes) e = Add (n, eps) r = Sqrt (e) g = Div (s, r)",
            axes=[1],
            tiny=NUMBER(1e-4),
            eps=NUMBER(1e-12),
        ),
        X,
    ),
    "means of large squares": (
        network(
            "s = Mul (h, large) q = Pow (s, two) n = ReduceMean (q, axes) r = Sqrt (n) g = Div (s, r)",
            axes=[1],
            large=NUMBER(5e3),
            two=NUMBER(2),
        ),
        X,
    ),
    "logarithms of tiny probabilities": (
        network(
            "s = MatMul (h, v) p = Softmax <axis=1> (s) l = Log (p) g = Mul (l, small)",
            v=weight(scale=12.0),
            small=NUMBER(0.05),
        ),
        X,
    ),
    "long sums": (
        network(
            "a = Expand (h, shape) c = ReduceSum <keepdims=0> (a, axes) g = Mul (c, small)",
            axes=[0],
            shape=np.array([4096, 4, WIDTH]),
            small=NUMBER(1 / 4096),
        ),
        X,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_auto_is_accurate_without_data(name):
    model, feeds = MODELS[name]
    report = amp.transpile(model, prefer="size")
    assert error(model, report, feeds) <= 1e-2
    assert share(report) > 0.3


@functools.cache
def with_data(name):
    model, feeds = MODELS[name]
    return amp.transpile(model, inputs=feeds, tolerance=1e-3, prefer="size")


@pytest.mark.parametrize("name", MODELS)
def test_auto_is_more_accurate_with_data(name):
    (model, feeds), report = MODELS[name], with_data(name)
    assert report.verdict_word == "verified"
    assert error(model, report, feeds) <= 1e-3
    assert share(report) > 0.5


@pytest.mark.parametrize("name", MODELS)
def test_what_data_showed_holds_for_other_data_too(name):
    """Rules give way to ranges with headroom; data of the same kind, and twice as large, stays finite and close."""
    (model, feeds), report = MODELS[name], with_data(name)
    other = np.random.default_rng(8).standard_normal((4, WIDTH)).astype(np.float32)
    assert error(model, report, {**feeds, "x": other}) <= 2e-3
    assert error(model, report, {**feeds, "x": 2.0 * other}) <= 1e-2


def error(model, report, feeds):
    expected, result = support.run(model, feeds)["y"], support.run_emulated(report.program, feeds)["y"]
    assert np.isfinite(result).all()
    return np.linalg.norm(result - expected) / np.linalg.norm(expected)


def share(report):
    return report.low_nodes / (report.low_nodes + report.high_nodes)
