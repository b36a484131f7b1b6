"""A session on a CPU adds rows with one thread where several would lose sums; the fault is in test_faults.py."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.remote import open_source
from amp_transpiler.files.loading import load
from amp_transpiler.runtime.openable import openable
from tests.support import array, parse

ROWS = 4096
LARGE = "float[8,64] x, int64[4096,1] i, float[4096,64] u"
ADDS = 'y = ScatterND <reduction = "add"> (x, i, u)'
BRANCHES = (
    f"y = If (b) <then_branch = t () => (float[8,64] z) {{ {ADDS.replace('y', 'z', 1)} }}, "
    "else_branch = e () => (float[8,64] w) { w = Identity (x) }>"
)
EACH_ONCE = np.arange(ROWS)[:, None]
# inputs, nodes, initializers, threads
CASES = {
    "large": (LARGE, ADDS, {}, 1),
    "of any size": ("float[8,64] x, int64[N,1] i, float[N,64] u", ADDS, {}, 1),
    "in a body": (
        f"bool b, {LARGE}",
        BRANCHES,
        {},
        1,
    ),
    "rows come twice": ("float[8,64] x, float[4096,64] u", ADDS, {"i": EACH_ONCE % 8}, 1),
    "small": ("float[8,64] x, int64[64,1] i, float[64,64] u", ADDS, {}, None),
    "nothing is added": (LARGE, "y = ScatterND (x, i, u)", {}, None),
    "each row once": ("float[4096,64] x, float[4096,64] u", ADDS, {"i": EACH_ONCE}, None),
    "from both ends": ("float[4096,64] x, float[4096,64] u", ADDS, {"i": EACH_ONCE - ROWS // 2}, 1),
}


@pytest.mark.parametrize(("inputs", "nodes", "initializers", "threads"), CASES.values(), ids=CASES)
def test_threads(inputs, nodes, initializers, threads):
    model = parse(f"({inputs}) => (float[A,B] y) {{ {nodes} }}", **initializers)
    assert openable(model, amp.CPUPlace()).settings.threads == threads
    assert openable(model, amp.CUDAPlace(0)).settings.threads is None


@pytest.mark.parametrize("emulate", [True, False])
def test_the_sums_are_all_there(tmp_path, emulate):
    model = parse(f"({LARGE}) => (float[8,64] y) {{ {ADDS} }}")
    onnx.save(model, tmp_path / "model.onnx")
    feeds = {"x": np.zeros((8, 64), np.float32), "i": EACH_ONCE % 8, "u": np.ones((ROWS, 64), np.float32)}
    with amp.Session(tmp_path / "model.onnx", amp.CPUPlace(), emulate=emulate) as session:
        assert (session.run(feeds)[0] == ROWS / 8).all()
    with open_source(load(tmp_path / "model.onnx")) as source:
        assert (source.run(feeds)[0] == ROWS / 8).all()


def test_a_file_is_looked_into_where_nothing_is_emulated(tmp_path):
    inputs = "float[16,16] x, float[16] v"
    onnx.save(parse(f"({inputs}) => (float[16] y) {{ t = Transpose (x) y = MatMul (t, v) }}"), tmp_path / "model.onnx")
    x, v = array(16, 16), array(16, seed=1)
    with amp.Session(tmp_path / "model.onnx", amp.CPUPlace(), emulate=False) as session:
        assert np.allclose(session.run({"x": x, "v": v})[0], x.T @ v, rtol=1e-4, atol=1e-5)
