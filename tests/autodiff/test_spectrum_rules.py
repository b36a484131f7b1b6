"""Gradients of DFT and STFT."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from amp_transpiler.errors import ModelError
from tests.autodiff.gradient_check import TOLERANCE, relative_error, run_gradients

RANDOM = np.random.default_rng(0)

# name -> shape of x, attributes, length (None: that of the axis), axis, opset
TRANSFORMS = {
    "one-sided, of real numbers": ((2, 8, 1), "onesided = 1", None, 1, 17),
    "of real numbers": ((2, 7, 1), "", None, 1, 17),
    "of complex numbers": ((2, 6, 2), "", None, 1, 17),
    "inverse": ((2, 6, 2), "inverse = 1", None, 1, 17),
    "longer than its axis": ((2, 6, 1), "onesided = 1", 8, 1, 17),
    "shorter than its axis": ((2, 8, 2), "", 5, 1, 17),
    "along another axis": ((3, 4, 2, 1), "", None, 1, 17),
    "along an axis that is an input": ((2, 5, 3, 2), "", None, 2, 20),
    "along the axis that newer versions have by default": ((2, 3, 5, 1), "onesided = 1", 4, None, 20),
}


def transform(x, attributes, length, axis):
    """What ONNX's text says, in float64 by numpy: parts beside each other on the last axis."""
    axis = -2 if axis is None else axis
    axis = axis % x.ndim
    numbers = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0.0)
    spectrum = np.fft.ifft(numbers, length, axis) if "inverse" in attributes else np.fft.fft(numbers, length, axis)
    if "onesided" in attributes:
        spectrum = np.take(spectrum, range(spectrum.shape[axis] // 2 + 1), axis)
    return np.stack([spectrum.real, spectrum.imag], -1)


def adjoint(function, shape, seed):
    """The gradient of a linear function, from what it makes of each unit vector."""
    units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    return np.array([np.sum(function(unit) * seed) for unit in units]).reshape(shape)


@pytest.mark.parametrize("case", TRANSFORMS.values(), ids=TRANSFORMS)
def test_dft(case):
    shape, attributes, length, axis, opset = case
    axis_input = [] if opset < 20 or axis is None else ["axis"]
    names = ["x", *(["length"] if length is not None else [""] if axis_input else []), *axis_input]
    axis_attribute = f"axis = {axis}" if opset < 20 else ""
    words = ", ".join(filter(None, (attributes, axis_attribute)))
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g (float{list(shape)} x) => (float{["n"] * len(shape)} y)
        <int64 length = {{{length or 0}}}, int64 axis = {{{axis or 0}}}> {{
            y = DFT {f"<{words}>" if words else ""} ({", ".join(names)})
        }}""".replace("'", "")
    x = RANDOM.normal(size=shape).astype("f")
    slopes, seeds = run_gradients(onnx.parser.parse_model(text), {"x": x})
    want = adjoint(lambda unit: transform(unit, attributes, length, axis), shape, seeds["y"])
    assert relative_error(slopes["x"], want) < TOLERANCE


# name -> samples, length of a frame, step, whether one-sided, whether there is a window
FRAMES = {
    "frames that overlap": (16, 8, 4, True, True),
    "a rest behind the last frame": (19, 8, 3, True, True),
    "frames side by side, an odd length": (15, 5, 5, False, True),
    "no window": (12, 4, 2, True, False),
}


@pytest.mark.parametrize("case", FRAMES.values(), ids=FRAMES)
def test_stft(case):
    total, size, step, onesided, windowed = case
    window = (0.5 + np.hanning(size)).astype("f")
    text = f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[2, {total}, 1] x) => (float[n, f, b, p] y)
        <int64 step = {{{step}}}, int64 size = {{{size}}},
         float[{size}] window = {{{", ".join(map(repr, map(float, window)))}}}> {{
            y = STFT <onesided = {int(onesided)}> (x, step, {"window" if windowed else ""}, size)
        }}"""

    def frames(x):
        starts = range(0, total - size + 1, step)
        cut = np.stack([x[:, start : start + size, 0] for start in starts], 1) * (window if windowed else 1.0)
        spectra = np.fft.fft(cut)[..., : size // 2 + 1] if onesided else np.fft.fft(cut)
        return np.stack([spectra.real, spectra.imag], -1)

    x = RANDOM.normal(size=(2, total, 1)).astype("f")
    slopes, seeds = run_gradients(onnx.parser.parse_model(text), {"x": x}, wrt=["x"])
    want = adjoint(frames, x.shape, seeds["y"])
    assert relative_error(slopes["x"], want) < TOLERANCE


def test_a_step_that_is_not_known_is_named():
    text = """<ir_version: 10, opset_import: ["" : 17]>
        g (float[2, 16, 1] x, int64 step) => (float[n, f, b, p] y) <int64 size = {8}> { y = STFT (x, step, , size) }"""
    feeds = {"x": np.zeros((2, 16, 1), "f"), "step": np.array(4)}
    with pytest.raises(ModelError, match="the step of its frames is not known before it runs"):
        run_gradients(onnx.parser.parse_model(text), feeds, wrt=["x"])
