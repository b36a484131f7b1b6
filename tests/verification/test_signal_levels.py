"""Given signals and pictures at other levels than the user's."""

import math

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.verification import signal_levels
from amp_transpiler.verification.device_draws import DeviceRuns
from amp_transpiler.verification.signal_levels import scaled_inputs
from tests.support import array, parse

SOUND = array(1, 2048, seed=4, scale=0.3)
W = array(2048, 8, seed=5, scale=0.05)

# name: (declaration of input x, its value, whether it is run at other levels)
INPUTS = {
    "a recording": ("float[1, n] audio", SOUND, True),
    "a recording of channels": ("float[1, 2, 2048] x", np.zeros((1, 2, 2048), np.float32), True),
    "channels last": ("float[1, n, 1] x", np.zeros((1, 43844, 1), np.float32), True),
    "whole numbers": ("int16[1, n] pcm", np.zeros((1, 4096), np.int16), True),
    "a picture": ("float[1, 3, 32, 32] x", np.zeros((1, 3, 32, 32), np.float32), True),
    "a picture, channels last": ("float[n, 32, 32, 3] x", np.zeros((1, 32, 32, 3), np.float32), True),
    "a picture of bytes": ("uint8[1, 3, 32, 32] x", np.zeros((1, 3, 32, 32), np.uint8), True),
    "not features": ("float[4, 64] x", np.zeros((4, 64), np.float32), False),
    "not many features": ("float[8, 2048] x", np.zeros((8, 2048), np.float32), False),
    "several recordings": ("float[b, n] audio", np.zeros((8, 512), np.float32), True),
    "not a spectrogram": ("float[1, 80, 3000] mel", np.zeros((1, 80, 3000), np.float32), False),
    "not ids": ("int64[1, n] x", np.zeros((1, 4096), np.int64), False),
    "not a mask": ("float[1, n] mask", np.zeros((1, 4096), np.float32), False),
    "not a state": ("float[2, 1, 1024] h", np.zeros((2, 1, 1024), np.float32), False),
    "not a number": ("float x", np.float32(1.0).reshape(()), False),
    "not a list": ("float[4] x", [np.zeros(4, np.float32)], False),
}


@pytest.mark.parametrize(("declared", "value", "expected"), INPUTS.values(), ids=INPUTS)
def test_what_is_a_signal_or_a_picture(declared, value, expected):
    name = declared.split()[-1]
    model = ir.from_proto(parse(f"({declared}) => (float y) {{ y = Anything ({name}) }}"))
    assert scaled_inputs(model, {name: value}) == ((name,) if expected else ())


@pytest.mark.parametrize(
    ("dtype", "factor", "expected"),
    [("float32", 0.1, [-3.0, 10.0, 20.0]), ("int16", 3.0, [-90, 300, 600]), ("uint8", 3.0, [0, 255, 255])],
)
def test_values_stay_in_their_type(dtype, factor, expected):
    values = np.array([-30, 100, 200]) if dtype != "uint8" else np.array([0, 100, 200])
    scaled = signal_levels._times(values.astype(dtype), factor)
    assert scaled.dtype == dtype
    assert np.allclose(scaled, expected)


def front_end(text, **weights):
    return parse(f"(float[1, 2048] audio) => (float[1, 8] y) {{ {text} }}", w=W, **weights)


# what becomes inaccurate, or infinite, at another level of the sound than the one that is given, were it float16
QUIET = {
    "a product of what is small": (
        "s = Mul (audio, small) m = MatMul (s, w) t = Tanh (m) y = Div (t, least)",
        2e-6,
        1e-6,
    ),
    "squares": ("s = Mul (audio, small) q = Mul (s, s) m = MatMul (q, w) y = Mul (m, least)", 4e-3, 1e6),
    "an offset that takes the digits": ("a = Add (audio, small) b = Sub (a, small) y = MatMul (b, w)", 16.0, 1.0),
    "an offset by one": ("a = Add (audio, small) b = Sub (a, small) y = MatMul (b, w)", 1.0, 1.0),
    "a large factor": ("s = Mul (audio, small) m = MatMul (s, w) t = Abs (m) y = Mul (t, least)", 2e4, 1e-4),
}


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])  # with draws of a device's arithmetic, and without any
@pytest.mark.parametrize(("text", "small", "least"), QUIET.values(), ids=QUIET)
def test_every_level_keeps_the_limit_that_is_verified(text, small, least, target):
    model = front_end(text, small=np.float32(small), least=np.float32(least))
    report = amp.transpile(
        model, inputs={"audio": SOUND}, tolerance=0.01, cache=False, prefer="size", target=target, build="no"
    )
    assert report.verdict_word in ("verified", "estimated")
    assert not report.low_nodes or set(report.gains) == {"as given", "at a tenth", "at three times"}
    assert all(error <= 0.01 for error in report.gains.values())
    for factor in (0.1, 1.0, 3.0):
        feeds = {"audio": np.float32(SOUND * np.float32(factor))}
        (expected,), (value,) = amp.Session(model).run(feeds), amp.Session(report.program).run(feeds)
        assert np.linalg.norm(value - expected) <= 0.0105 * np.linalg.norm(expected)


def test_the_verdict_names_the_worst_level_first():
    model = front_end("a = Add (audio, one) b = Sub (a, one) y = MatMul (b, w)", one=np.float32(1.0))
    report = amp.transpile(model, inputs={"audio": SOUND}, tolerance=0.2, cache=False, prefer="size")
    assert "on 1 given sample, at a tenth: " in report.verdict
    assert report.gains["at a tenth"] > report.gains["as given"]
    assert math.isclose(report.outputs["y"].relative, report.gains["at a tenth"], rel_tol=0.5)


def test_draws_run_at_the_worst_level_alone(monkeypatch):
    seen = []
    compared = DeviceRuns.compared

    def recorded(self, turn, keep=None):
        seen.append(float(np.abs(self.reference.samples[0]["audio"]).max()))
        return compared(self, turn, keep)

    monkeypatch.setattr(DeviceRuns, "compared", recorded)
    model = front_end("a = Add (audio, one) b = Sub (a, one) y = MatMul (b, w)", one=np.float32(1.0))
    amp.transpile(model, inputs={"audio": SOUND}, tolerance=0.2, cache=False, prefer="size")
    assert seen
    assert max(seen) < 0.2 * float(np.abs(SOUND).max())


def test_levels_that_say_nothing_are_left_out():
    """At three times the level float32 itself overflows; at a tenth the output is practically zero."""
    model = front_end(
        "s = Mul (audio, large) q = Exp (s) m = MatMul (q, w) y = Mul (m, none)",
        large=np.float32(60.0),
        none=np.float32(1e-30),
    )
    report = amp.transpile(model, inputs={"audio": np.clip(SOUND, -1.0, 1.0)}, cache=False, prefer="size")
    assert "at three times" not in report.gains


@pytest.mark.parametrize("inputs", [None, "features"])
def test_made_up_inputs_and_features_run_as_they_are(inputs):
    model = parse("(float[4, 8] x) => (float[4, 8] y) { y = MatMul (x, v) }", v=array(8, 8, seed=1))
    report = amp.transpile(
        model, inputs=None if inputs is None else {"x": array(4, 8, seed=2)}, cache=False, prefer="size"
    )
    assert not report.gains
    assert "at a tenth" not in report.verdict


# levels that keep no limit: another level of the sound is told, and refuses nothing
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_without_a_limit_another_level_is_told_and_refuses_nothing(level, tmp_path):
    model = front_end("s = Mul (audio, large) y = MatMul (s, w)", large=np.array(6e3, np.float32))
    quiet = SOUND / np.abs(SOUND).max()
    report = amp.transpile(model, tmp_path / "low.onnx", level=level, inputs={"audio": quiet * 4}, prefer="size")
    assert report.verdict_word == "compared"
    assert report.gains["at three times"] == math.inf
    assert "at three times: not finite" in report.verdict
    assert any("at three times of the samples' level" in warning for warning in report.warnings)
    assert report.outputs["y"].relative < 0.01
