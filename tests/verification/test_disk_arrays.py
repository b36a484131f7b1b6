"""Many samples in little memory: what is kept of them lies in files, and is read where it is compared."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.verification import disk_arrays
from amp_transpiler.verification.disk_arrays import Spill
from tests import support
from tests.support import array, chain

ARRAYS = {
    "floats": array(3, 5),
    "a transposed one": array(3, 5).T,
    "bfloat16": array(3, 5).astype(ml_dtypes.bfloat16),
    "truth": np.array([True, False]),
    "a scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 4), np.float32),
    "texts": np.array(["a", "bc"], object),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_mapped_is_equal(name, monkeypatch):
    monkeypatch.setattr(disk_arrays, "_IN_MEMORY", 0)
    mapped = Spill().kept({"x": ARRAYS[name], "list": [ARRAYS[name], 3]})
    for value in (mapped["x"], mapped["list"][0]):
        assert value.dtype == ARRAYS[name].dtype
        np.testing.assert_array_equal(value, ARRAYS[name])


def test_the_first_arrays_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(disk_arrays, "_IN_MEMORY", 100)
    spill, first, second = Spill(), np.zeros(20, np.float32), np.ones(20, np.float32)
    assert spill.kept({"x": first})["x"] is first
    assert not spill.kept({"x": second})["x"].flags.writeable


def test_without_room_for_a_file_it_stays_in_memory(monkeypatch, caplog):
    def full(_):
        raise OSError("no space left on device")

    monkeypatch.setattr(disk_arrays, "_IN_MEMORY", 0)
    monkeypatch.setattr(disk_arrays, "_mapped", full)
    value = array(3)
    assert Spill().kept({"x": value})["x"] is value
    assert "no space left" in caplog.text


SIDE, SAMPLES = 256, 48  # of float32: 0.25 MB each, and as much for the outputs
MODEL = chain("MatMul ({}, w)", "Tanh ({})", shape=f"float[{SIDE},{SIDE}]", w=array(SIDE, SIDE, scale=0.05))


def sample(index: int):
    return {"x": array(SIDE, SIDE, seed=index)}


@pytest.mark.slow
def test_samples_are_read_one_at_a_time_and_compared_in_little_memory(monkeypatch):
    """Twelve times as much is given as may stay in memory, and as much again is computed from it."""
    monkeypatch.setattr(disk_arrays, "_IN_MEMORY", 1 << 20)
    amp.transpile(
        MODEL, inputs=sample(0), tolerance=1e-5, prefer="size"
    )  # what is imported and started first does not count
    read: list[int] = []

    def samples():
        for index in range(SAMPLES):
            read.append(index)
            yield sample(index)

    tracemalloc.start()
    report = amp.transpile(MODEL, inputs=samples(), tolerance=1e-5, prefer="size")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == list(range(SAMPLES))
    assert [row.samples for row in report.outputs.values()] == [SAMPLES]
    assert peak < 12 << 20, "of 24 MB that were read and computed"
    monkeypatch.undo()
    again = amp.transpile(MODEL, inputs=[sample(index) for index in range(SAMPLES)], tolerance=1e-5, prefer="size")
    assert again.outputs == report.outputs
    assert support.decisions(again) == support.decisions(report)


def test_a_metric_gets_all_outputs(monkeypatch):
    monkeypatch.setattr(disk_arrays, "_IN_MEMORY", 0)
    lengths: list[int] = []

    def metric(exact, low):
        lengths.append(len(exact) + len(low))
        return max(float(np.abs(a["y"] - b["y"]).max()) for a, b in zip(exact, low, strict=True))

    report = amp.transpile(MODEL, inputs=(sample(i) for i in range(3)), metric=metric, metric_bound=0.01, prefer="size")
    assert set(lengths) == {6}
    assert report.metric.holds
