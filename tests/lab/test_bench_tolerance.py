"""The benchmark of tolerances: what a bisection by operator kind keeps low, and whether any choice keeps more."""

import numpy as np
import onnx
import pytest

from bench_tolerance import SHARES, Bisection, examine, low_table
from tests.support import array, parse

MODEL = parse(
    """(float[4,8] x) => (float[4,8] y) {
        [a] h = MatMul (x, v) [b] t = Tanh (h) [c] k = MatMul (t, w) [d] y = Softmax (k) }""",
    v=array(8, 8, seed=1),
    w=array(8, 8, seed=2, scale=4.0),
)


@pytest.fixture
def files(tmp_path):
    onnx.save(MODEL, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", x=array(4, 8, seed=3))
    return tmp_path / "model.onnx", tmp_path / "inputs.npz"


def test_the_most_low_nodes_of_all_choices(files):
    bisection = Bisection(*files)
    error = bisection.record(bisection.o2)["error"]
    assert bisection.most(2.0 * error, 0) == 4, "all of them"
    assert bisection.most(2.0 * error, 4) == 4, "none has more"
    assert bisection.most(0.0, 0) == 0
    assert 0 < bisection.most(0.7 * error, 0) < 4


@pytest.mark.slow
def test_cases_in_which_nothing_has_more_are_told_apart(files):
    record = examine(*files, {})
    assert len(record["most"]) == len(SHARES)
    for ours, other, most in zip(record["low"], record["bisection"], record["most"], strict=True):
        assert (most is None) == (ours["low"] > other["worth"])
        assert most is None or most >= max(ours["low"], other["worth"])
    for ours, other in zip(record["low"], record["bisection"], strict=True):
        ours["low"] = other["worth"] = 1
    record["most"] = [1, 2, None]
    *_, possible, last = low_table({"model": record})
    assert (possible[1], last[1]) == ("3", "2")
    record["low"][0]["low"] = 0
    *_, last = low_table({"model": record})
    assert last[1] == "3", "one that has fewer is never left out"
