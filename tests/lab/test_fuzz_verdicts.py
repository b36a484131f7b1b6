"""The verdict fuzzer: a trial repeats, changes samples as it says, and sees a wrong verdict."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import fuzz_verdicts
from amp_transpiler.graph.input_roles import ModelInput
from tests.oracle.judge import Values
from tests.support import array, parse


@pytest.fixture
def models(tmp_path):
    model = parse("(float[1, n] audio) => (float[1, n] y) { s = Mul (audio, w) y = Tanh (s) }", w=np.array(0.7, "f"))
    onnx.save(model, tmp_path / "sound.onnx")
    np.savez(tmp_path / "sound.inputs.npz", audio=array(1, 2048, seed=1))
    return fuzz_verdicts._models(tmp_path, 1.0)


def test_a_trial_depends_on_seed_and_number(models):
    trials = [fuzz_verdicts.attempt(3, number, models) for number in (0, 1, 2, 0)]
    assert trials[0] == trials[3]
    assert len({trial.told for trial in trials}) == 3
    assert {trial.outcome for trial in trials} == {"right"}


@pytest.mark.parametrize(("error", "outcome"), [(0.0, "right"), (0.2, "wrong"), (float("inf"), "wrong")])
def test_what_is_off_by_more_than_twice_the_limit_is_wrong(models, monkeypatch, error, outcome):
    monkeypatch.setattr(fuzz_verdicts._JUDGE, "judge_values", lambda *_: Values({"y": error}))
    assert fuzz_verdicts.attempt(3, 0, models).outcome == outcome


# name: (the declaration of the inputs, the change, input -> whether it changes)
CHANGES = {
    "a length, in all inputs that have it": (
        "float[b, n] audio, int64[n] position, float[b, 8] x",
        fuzz_verdicts._length,
        {"audio", "position", "x"},
    ),
    "a mask": ("float[2, 6] x, int64[2, 6] mask", fuzz_verdicts._mask, {"mask"}),
    "no mask of one dimension": ("float[2, 6] x, int64[6] mask", fuzz_verdicts._mask, set()),
    "a switch": ("float[2, 6] x, bool[1] training", fuzz_verdicts._switch, {"training"}),
    "a rate": ("float[2, 6] x, int64 sr", fuzz_verdicts._switch, {"sr"}),
    "nothing to switch": ("float[2, 6] x, int64[2] ids", fuzz_verdicts._switch, set()),
}


@pytest.mark.parametrize(("declared", "change", "changing"), CHANGES.values(), ids=CHANGES)
def test_what_a_change_changes(declared, change, changing):

    model = ir.from_proto(parse(f"({declared}) => (float y) {{ y = Anything () }}"))
    inputs = {str(value.name): ModelInput.of(value) for value in model.graph.inputs}
    sizes = {"b": 4, "n": 40}
    sample = {name: np.ones([sizes.get(d, d) for d in info.dims], info.dtype) for name, info in inputs.items()}
    changed = [change(inputs, sample, np.random.default_rng(seed)) for seed in range(20)]
    differing = {name for altered, _ in changed for name in sample if not np.array_equal(altered[name], sample[name])}
    assert differing <= changing
    assert bool(differing) == bool(changing)
    assert all(bool(said) == bool(changing) for _, said in changed)
