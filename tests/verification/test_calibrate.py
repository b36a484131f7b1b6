"""Ranges over many samples: streamed, in pieces, each with the sample that set it."""

import math

import numpy as np
import pytest

from amp_transpiler.child_process.magnitudes import measure
from amp_transpiler.errors import InputError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.verification.calibrate import calibrate
from tests.support import array, parse

W = array(4, 4, seed=1)


def program(text, **weights):
    loaded = load(parse(text, **weights))
    propagate_types(loaded.model)
    return loaded


def two_layers():
    return program(
        "(float[N,4] x) => (float[N,4] y) { h = MatMul(x, w) r = Relu(h) z = MatMul(r, w) y = Add(z, x) }", w=W
    )


def sample(scale, rows=2):
    return {"x": scale * array(rows, 4)}


def test_a_range_is_that_of_all_samples_and_names_the_one_that_set_it():
    samples = [("small", sample(1.0)), ("large", sample(100.0, rows=5)), ("middle", sample(10.0))]
    calibration = calibrate(two_layers(), FLOAT16, samples)
    h = np.concatenate([feeds["x"] @ W for _, feeds in samples])
    assert calibration.samples == ("small", "large", "middle")
    assert set(calibration.ranges) == {"x", "h", "r", "z", "y"}
    assert calibration.ranges["h"].largest == pytest.approx(np.abs(h).max(), rel=1e-5)
    assert calibration.ranges["h"].smallest == pytest.approx(np.abs(h).min(), rel=1e-5)
    assert {seen.sample for seen in calibration.ranges.values()} == {"large"}


def test_samples_are_taken_one_by_one():
    alive = []

    def stream():
        for index in range(5):
            alive.append(index)
            yield f"sample {index}", sample(1.0 + index)

    calibration = calibrate(two_layers(), FLOAT16, stream())
    assert len(calibration.samples) == len(alive) == 5
    assert calibration.ranges["x"].sample == "sample 4"


def test_pieces_measure_the_same():
    samples = [("a", sample(1.0)), ("b", sample(2.0, rows=7))]
    whole, cut = calibrate(two_layers(), FLOAT16, samples), calibrate(two_layers(), FLOAT16, samples, limit=1.0)
    assert cut == whole


def test_where_all_shapes_are_known_the_program_runs_for_its_ranges_alone(monkeypatch):
    text = "(float[2,4] x) => (float[2,4] y) { h = MatMul(x, w) y = Relu(h) }"
    loaded = program(text, w=W)
    infer_shapes(loaded.model)
    expected = calibrate(program(text, w=W), FLOAT16, [("one", sample(1.0))])
    monkeypatch.setattr("amp_transpiler.verification.calibrate.survey", lambda *_: pytest.fail("it ran"))
    assert calibrate(loaded, FLOAT16, [("one", sample(1.0))]) == expected


def test_elements_that_become_zero_are_counted():
    feeds = {"x": np.array([[1e-9, 1.0, 0.0, 2.0]], np.float32)}
    seen = calibrate(program("(float[1,4] x) => (float[1,4] y) { y = Neg(x) }"), FLOAT16, [("one", feeds)]).ranges["y"]
    assert seen.flushed == pytest.approx(1 / 3)


def test_without_samples_there_is_nothing_to_say():
    with pytest.raises(InputError, match="no sample was given"):
        calibrate(two_layers(), FLOAT16, [])


@pytest.mark.parametrize(
    ("numbers", "largest", "smallest", "nonzero", "flushed"),
    [
        ([], 0.0, math.inf, 0, 0),
        ([0.0, -0.0], 0.0, math.inf, 0, 0),
        ([-3.0, 2.0], 3.0, 2.0, 2, 0),
        ([math.inf, math.nan, 1.0], 1.0, 1.0, 1, 0),
        ([2.0**-24, 2.0**-25, 2.0**-30], 2.0**-24, 2.0**-30, 3, 2),
    ],
)
def test_magnitudes(numbers, largest, smallest, nonzero, flushed):
    magnitudes = measure(np.array(numbers, np.float32), FLOAT16.smallest)
    assert (magnitudes.largest, magnitudes.smallest, magnitudes.nonzero, magnitudes.flushed) == (
        largest,
        smallest,
        nonzero,
        flushed,
    )


BRANCH = """(float[2,4] x, bool b) => (float[2,4] y) {
    y = If(b) <then_branch = yes () => (float[2,4] p) { p = Neg(x) },
              else_branch = no () => (float[2,4] q) { q = Exp(x) }> }"""


def test_branches_are_measured_as_they_are_taken():
    loaded = program(BRANCH)
    samples = [(str(b), {"x": array(2, 4), "b": np.array(b)}) for b in (True, False, True)]
    first, both = calibrate(loaded, FLOAT16, samples[:1]).ranges, calibrate(loaded, FLOAT16, samples).ranges
    assert {"x", "p"} <= set(first)
    assert "q" not in first
    assert both["q"].sample == "False"
    assert both["q"].largest == pytest.approx(np.exp(array(2, 4)).max(), rel=1e-6)
