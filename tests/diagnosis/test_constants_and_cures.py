"""Constants that the format does not hold, and the search for the fewest nodes that mend a model."""

import dataclasses
import types

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.diagnosis.cure import find_cure
from tests.support import parse

QUIET = """(float[1,8] x) => (float[1,8] y) {
    [power] p = Mul(x, x)
    [bound] c = Clip(p, least)
    [decibel] y = Log(c)
}"""


def test_a_bound_below_the_format_is_a_constant_that_it_does_not_hold():
    model = parse(QUIET, least=np.float32(1e-10))
    samples = {"x": np.geomspace(1e-6, 1e-5, 8, dtype=np.float32)[None]}

    diagnosis = amp.debug(model, inputs=samples)

    assert diagnosis.guilty is not None
    assert (diagnosis.guilty.node, diagnosis.guilty.fault) == ("bound", "constant")
    assert diagnosis.guilty.why == "it reads 'least' of 1e-10, and float16 holds nothing between 0 and 5.96e-08"
    assert diagnosis.cure is not None
    assert "bound" in diagnosis.cure.nodes


@dataclasses.dataclass
class _Policy:
    forced_high: dict


def _conversions(needed):
    """Stand in for conversions that hold if the needed nodes are float32."""

    def measured(policy):
        return types.SimpleNamespace(excess=0.5 if needed <= set(policy.forced_high) else 2.0)

    return types.SimpleNamespace(policy=_Policy({}), measured=measured)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 16, 17, 33, 40])
def test_the_first_nodes_that_hold_are_the_cure(count):
    units = [(f"n{number}",) for number in range(200)]
    cure = find_cure(_conversions({f"n{number}" for number in range(count)}), units)
    assert cure is not None
    assert cure.nodes == tuple(f"n{number}" for number in range(count))
    assert cure.runs <= 80


def test_a_note_says_that_the_search_for_the_cure_ended_early(monkeypatch):
    samples = {"x": np.geomspace(1e-6, 1e-5, 8, dtype=np.float32)[None]}
    monkeypatch.setattr("amp_transpiler.diagnosis.cure.MOST_RUNS", 3)
    monkeypatch.setattr("amp_transpiler.diagnosis.cures.MOST_RUNS", 3)
    diagnosis = amp.debug(parse(QUIET, least=np.float32(1e-10)), inputs=samples)
    assert diagnosis.cure is not None
    assert diagnosis.notes == (
        f"the search for the cure ended after {diagnosis.cure.runs} conversions: fewer nodes may do",
    )
