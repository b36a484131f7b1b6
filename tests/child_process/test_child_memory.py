"""Sessions of a child that share memory, and sums that are not spoilt by what overflows where nothing is felt."""

from __future__ import annotations

import os
import pathlib
import sys
import time

import numpy as np
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.child import lease
from amp_transpiler.child_process.remote import open_plain
from amp_transpiler.conversion import plain_copy
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.targets import TARGETS
from amp_transpiler.verification.sensitivity import collect_evidence

ADDS = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n] x) => (float[n] y) { a = Add(x, x)  b = Mul(a, x)  y = Sub(b, a) }
"""
# In float16 the first product overflows, but nobody feels it there: the other branch of Where is taken.
DEAD_BIAS = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[4] x) => (float[4] y) <float[4] w = {100000.0, 1.1, 2.3, 3.7}, bool[4] m = {0, 1, 1, 1}, float z = {0.5}> {
    big = Mul(x, w)
    kept = Where(m, big, z)
    y = Mul(kept, kept)
}
"""


def _plain(text: str):
    return plain_copy(amp.load(onnx.parser.parse_model(text)))


def test_sessions_of_a_child_that_share_memory_are_opened_run_and_closed_again():
    x = np.arange(1000, dtype=np.float32)
    expected = 2 * x * x - 2 * x
    with lease() as child:
        for _ in range(2):  # the arena is given back in between
            with open_plain(_plain(ADDS), child) as first, open_plain(_plain(ADDS), child) as other:
                for session in (first, other, first):
                    np.testing.assert_array_equal(session.run({"x": x})[0], expected)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_that_is_idle_gives_back_what_its_sessions_shared():
    x = np.ones(1 << 24, np.float32)
    with lease() as child:
        with open_plain(_plain(ADDS), child) as session:
            before = _resident(child.pid)
            session.run({"x": x})
            held = _resident(child.pid)
        deadline = time.monotonic() + 60.0
        while _resident(child.pid) > before + x.nbytes and time.monotonic() < deadline:
            time.sleep(0.1)
        assert held - before > 2 * x.nbytes
        assert _resident(child.pid) <= before + x.nbytes


def _resident(pid: int) -> int:
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_what_overflows_where_nothing_is_felt_adds_nothing():
    program = _plain(DEAD_BIAS)
    names = {node.outputs[0].name: node.name for node in program.model.graph}
    evidence = _evidence(program, np.float32([3.0, 1.3, 1.7, 1.1]))
    assert all(np.isfinite(list(evidence.node_errors.values())))
    assert 0.0 < evidence.node_errors[names["big"]] < 1e-5


def _evidence(program, x) -> Evidence:
    return collect_evidence(program, TARGETS["cuda"], FLOAT16, [("one", {"x": x})], given=True)
