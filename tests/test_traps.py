"""Every trap that the studies of today's converters and of onnx-ir name: valid, and right under emulation."""

import numpy as np
import pytest

import amp_transpiler as amp
from tests import support
from tests.trap_cases import TRAPS

FAST = [("O2", "float16"), ("auto", "float16"), ("O2", "bfloat16")]
SLOW = [("O1", "float16"), ("O1", "bfloat16"), ("auto", "bfloat16"), ("OD", "float16")]
SETTINGS = [*FAST, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)]


@pytest.mark.parametrize(("level", "dtype"), SETTINGS)
@pytest.mark.parametrize("name", TRAPS)
def test_converts_to_a_valid_and_close_model(name, level, dtype):
    trap = TRAPS[name]
    if trap.random:
        report = amp.transpile(trap.model, level=level, dtype=dtype, verify=False)
        support.assert_valid(report.program)
        found = support.run_emulated(report.program, trap.feeds)
        expected = support.run(trap.model, trap.feeds)
        assert {n: (v.shape, v.dtype) for n, v in found.items()} == {n: (v.shape, v.dtype) for n, v in expected.items()}
        assert all(np.isfinite(value).all() for value in found.values())
    else:
        report = support.convert(trap.model, trap.feeds, level, dtype, limit=trap.limit)
        assert report.verdict.startswith("verified")


@pytest.mark.parametrize("name", [name for name, trap in TRAPS.items() if trap.low or trap.high])
def test_operators_are_low_where_they_can_be_and_nowhere_else(name):
    trap = TRAPS[name]
    report = amp.transpile(trap.model, level="O2", verify=False)
    precision = {(row.op.split("::")[-1], row.precision) for row in report.decisions}
    for op in trap.low:
        assert (op, "low") in precision
        assert (op, "high") not in precision
    assert not {(op, "low") for op in trap.high} & precision
