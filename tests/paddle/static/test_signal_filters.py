"""Weights that a formula made: filters and windows, written anew here, against learnt numbers and fresh ones."""

import numpy as np
import pytest

from amp_transpiler import static
from amp_transpiler.paddle.static.onnx_import import from_onnx
from amp_transpiler.paddle.static.signal_filters import is_signal_filter, is_window
from tests import support

RANDOM = np.random.default_rng(3)
HANN = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(64) / 64)


def fourier(window, taps=64):
    """Cosines, then sines, as rows."""
    angles = 2 * np.pi * np.outer(np.arange(taps // 2 + 1), np.arange(taps)) / taps
    return np.concatenate([np.cos(angles), -np.sin(angles)]) * window


def mel(bins=101, bands=20, rate=16000.0):
    """Triangles between equal steps in mel, as columns."""
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + rate / 1400), bands + 2) / 2595) - 1)
    at = np.linspace(0, rate / 2, bins)[:, None]
    rise, fall = (at - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - at) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rise, fall))


def constant_q(taps=256, bands=36):
    """A tone of the same number of periods in each row, so that low ones are long."""
    rows = np.zeros((bands, taps))
    for band, row in enumerate(rows):
        length = int(taps * 2 ** (-band / bands))
        row[(taps - length) // 2 :][:length] = np.hanning(length) * np.cos(2 * np.pi * 34 * np.arange(length) / length)
    return rows


def resampler(phases, taps=23):
    at = (np.arange(taps) - taps // 2)[None] - np.arange(phases)[:, None] / phases
    return np.sinc(at * 0.9) * np.where(np.abs(at) < taps // 2, np.cos(np.pi * at / taps) ** 2, 0)


FORMULAS = {
    "fourier, a convolution": fourier(HANN)[:, None],
    "fourier without a window": fourier(1.0)[:, None],
    "fourier of short frames in long ones": np.pad(fourier(HANN), ((0, 0), (32, 32)))[:, None],
    "fourier, a product": fourier(HANN).T,
    "inverse fourier, a product": np.ascontiguousarray(fourier(HANN)),
    "only cosines": fourier(HANN)[:33, None],
    "mel": mel(),
    "mel, the other way round": mel().T,
    "mel of narrow bands": mel(41, 30),
    "constant q": constant_q()[:, None, None],
    "low-pass": np.sinc((np.arange(64) - 31.5) / 4)[None, None] * np.hanning(64),
    "resampler": resampler(1)[:, None, None],
    "resampler of two phases": resampler(2)[:, None, None],
}
LEARNT = {
    "noise": RANDOM.normal(size=(32, 1, 64)),
    "noise, a matrix": RANDOM.normal(size=(64, 64)),
    "sparse, not negative": np.where(RANDOM.random((64, 64)) < 0.2, RANDOM.random((64, 64)), 0),
    "fourier after training": (fourier(HANN) + 0.3 * RANDOM.normal(size=(66, 64)))[:, None],
    "smooth": np.cumsum(RANDOM.normal(size=(8, 1, 64)), -1),
    "zeros": np.zeros((32, 1, 64)),
    "ones": np.ones((32, 64)),
    "identity": np.eye(16),
    "short and even": np.array([[[1.0, 2.0, 1.0]]]),
    "several channels": RANDOM.normal(size=(8, 4, 64)),
    "a vector": RANDOM.normal(size=(1, 64, 1, 1)),
    "one number": np.ones((1, 1, 1)),
    "not numbers": np.full((8, 1, 32), np.nan),
    "empty": np.zeros((0, 1, 32)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_are_told(name):
    assert is_signal_filter(FORMULAS[name].astype(np.float32))


@pytest.mark.parametrize("name", ["fourier, a convolution", "mel", "low-pass"])
def test_formulas_are_told_in_half_precision(name):
    assert is_signal_filter(FORMULAS[name].astype(np.float16))


@pytest.mark.parametrize("name", LEARNT)
def test_learnt_numbers_stay_weights(name):
    assert not is_signal_filter(LEARNT[name].astype(np.float32))


def test_windows():
    for window in (HANN, np.hamming(33), np.hanning(40) ** 0.85, np.blackman(25)):
        assert is_window(window.astype(np.float32))
    for other in (np.ones(64), np.zeros(64), RANDOM.random(64), np.hanning(9), -np.hanning(40), np.arange(64.0)):
        assert not is_window(other.astype(np.float32))


GRAPHS = {
    "spectrogram, then a layer": (
        "(float[1,1,256] x) => (float[1,4,a] y) { f = Conv(x, basis, filler) s = Mul(f, scale) y = Conv(s, w, b) }",
        {
            "basis": fourier(HANN)[:, None],
            "filler": np.zeros(66),
            "scale": RANDOM.random((66, 1)),
            "w": support.array(4, 66, 3),
            "b": np.zeros(4),
        },
        {"w", "b"},
    ),
    "mel, then a layer": (
        "(float[3,101] x) => (float[3,2] y) { m = MatMul(x, bands) l = Log(m) y = Gemm(l, w, b) }",
        {"bands": mel(), "w": support.array(20, 2), "b": np.zeros(2)},
        {"w", "b"},
    ),
    "a window on what a layer gave": (
        "(float[3,64] x) => (float[3,64] y) { h = MatMul(x, w) y = Mul(h, window) }",
        {"window": HANN, "w": support.array(64, 64)},
        {"w"},
    ),
    "a bias behind a bias of zeros": (
        "(float[1,2,8] x) => (float[1,4,a] y) { h = Conv(x, w, filler) y = Add(h, b) }",
        {"w": support.array(4, 2, 3), "filler": np.zeros(4), "b": support.array(1, 4, 1)},
        {"w", "b"},
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_only_learnt_weights_are_trained(name):
    text, weights, wanted = GRAPHS[name]
    model = support.parse(text, **{key: value.astype(np.float32) for key, value in weights.items()})
    assert {parameter.name for parameter in from_onnx(model, static.Program()).all_parameters()} == wanted


def test_what_a_formula_made_can_be_trained_when_asked():
    text, weights, _ = GRAPHS["mel, then a layer"]
    model = support.parse(text, **{key: value.astype(np.float32) for key, value in weights.items()})
    main = from_onnx(model, static.Program(), trainable="bands")
    assert "bands" in {parameter.name for parameter in main.all_parameters()}
