"""A session on a CPU adds rows with one thread where several would lose sums; the fault is in test_faults.py."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.loading import load
from amp_transpiler.runtime.openable import openable
from amp_transpiler.verification.remote import open_source
from tests.support import parse

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


def test_the_sums_are_all_there():
    model = parse(f"({LARGE}) => (float[8,64] y) {{ {ADDS} }}")
    feeds = {"x": np.zeros((8, 64), np.float32), "i": EACH_ONCE % 8, "u": np.ones((ROWS, 64), np.float32)}
    with amp.Session(model, amp.CPUPlace()) as session, open_source(load(model)) as source:
        assert (session.run(feeds)[0] == ROWS / 8).all()
        assert (source.run(feeds)[0] == ROWS / 8).all()
