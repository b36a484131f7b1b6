"""The fuzzer: 300 mutants without a fault, and planted faults of every class, each seen."""

import dataclasses

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from fuzzing import faults
from fuzzing.attempt import RESULT, SOURCE, Ask, attempt
from fuzzing.judge import judge
from fuzzing.minimise import minimise
from fuzzing.mutations import LEVELS, MUTATIONS, Drawn, draw
from fuzzing.options import draw_options
from fuzzing.outcomes import CLASSES, FAULTS
from fuzzing.pool import Pool, Setup
from fuzzing.seeds import all_seeds
from fuzzing.summary import Summary
from tests.support import parse

MUTANTS = 300
SEEDS = all_seeds()


def run(setup, numbers):
    with Pool(setup) as pool:
        return list(pool.run(map(setup.task, numbers)))


@pytest.mark.slow
def test_mutants_do_no_harm():
    summary = Summary()
    for outcome in run(Setup(run=300, jobs=2, verified=0.25), range(MUTANTS)):
        summary.add(outcome)
    assert summary.total == MUTANTS
    assert list(summary.fault_lines())[: len(summary.groups())] == []
    for kind in ("verified", "unverified", "refused"):  # else the mutants are all alike
        assert summary.of_kind(kind) >= MUTANTS // 25, kind


def test_a_mutant_depends_on_seed_and_number_alone():
    for index in range(40):
        assert draw(7, index, SEEDS) == draw(7, index, all_seeds())
        assert draw_options(7, index, 0.5) == draw_options(7, index, 0.5)
    assert draw(7, 0, SEEDS) != draw(8, 0, SEEDS)


@pytest.mark.slow
def test_every_mutation_is_drawn_and_changes_something():
    unseen = {row.name for row in MUTATIONS}
    originals = {seed.name: seed for seed in SEEDS}
    for index in range(6000):
        drawn = draw(1, index, SEEDS)
        seed = originals[drawn.seed]
        if len(drawn.steps) == 1 and (drawn.data, drawn.files) != (seed.data, seed.files):
            unseen.discard(drawn.steps[0][0])
    assert not unseen
    assert {row.level for row in MUTATIONS} == set(LEVELS)


def planted(door, folder, **options):
    drawn = Drawn("mlp", (), "node", SEEDS[0].data, {"weights.bin": b"1"})
    ask = Ask(1, drawn, {"verify": False, **options}, judge=True)
    return attempt(ask, folder, door, lambda case: "wrong: planted")


@pytest.mark.parametrize(
    ("door", "kind"),
    [
        (faults.fine, "unverified"),
        (faults.clear, "refused"),
        (faults.key_error, "foreign"),
        (faults.own_bug, "foreign"),
        (faults.long_message, "vague"),
        (faults.control_characters, "vague"),
        (faults.names_nothing, "vague"),
        (faults.change_source, "source changed"),
        (faults.remove_source, "source changed"),
        (faults.leave_file, "leftovers"),
        (faults.write_refused, "leftovers"),
    ],
)
def test_planted_fault(tmp_path, door, kind):
    outcome = planted(door, tmp_path)
    assert (outcome.kind, outcome.kind in FAULTS) == (kind, kind not in {"unverified", "refused", "vague"})
    assert not list(tmp_path.iterdir())


def test_innermost_line_of_a_foreign_exception(tmp_path, monkeypatch):
    monkeypatch.setattr("amp_transpiler.stages.prepare", lambda *_: {}["planted"])
    outcome = planted(amp.transpile, tmp_path)
    assert (outcome.kind, outcome.detail) == ("foreign", "KeyError: 'planted'")
    assert outcome.where.startswith("stages.py:")


def test_wrong_verified(tmp_path):
    assert planted(amp.transpile, tmp_path, verify=True).kind == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize(("door", "kind"), [("crash", "crash"), ("hang", "timeout"), ("hoard", "memory")])
def test_worker_that_must_be_replaced(door, kind):
    setup = Setup(door=f"fuzzing.faults:{door}", timeout=1.0 if door == "hang" else 20.0)
    if door == "hang":  # the first mutant of a worker may import for longer
        setup = dataclasses.replace(setup, patience=1.0)
    for outcome in run(setup, range(2 if door == "crash" else 1)):
        assert outcome.kind == kind
        assert outcome.seed
        assert outcome.steps


MODEL = "(float[2,4] x) => (float[2,4] y) { [m] h = MatMul (x, w) [r] y = Relu (h) }"


def case(folder, weight):
    """A source, its result, and what is reported about it."""
    onnx.save(parse(MODEL, w=weight), folder / SOURCE)
    report = amp.transpile(folder / SOURCE, folder / RESULT, level="O2", verify=False)
    assert report.low_nodes == 2
    return {"index": 1, "source": str(folder / SOURCE), "result": str(folder / RESULT)}


def test_the_judge_recomputes_the_error(tmp_path):
    asked = case(tmp_path, np.full((4, 4), 0.1, np.float32))
    assert judge({**asked, "reported": {"y": [0.0003, 0]}}) == "agrees"


@pytest.mark.parametrize("weight", [0.1, np.inf])
def test_the_judge_sees_a_wrong_result(tmp_path, weight):
    asked = case(tmp_path, np.full((4, 4), 0.1, np.float32))
    result = onnx.load(asked["result"])
    tensor = onnx.numpy_helper.from_array(np.full((4, 4), weight * 3, np.float16), result.graph.initializer[0].name)
    result.graph.initializer[0].CopyFrom(tensor)
    onnx.save(result, asked["result"])
    assert judge({**asked, "reported": {"y": [0.0003, 0]}}).startswith("wrong: output 'y'")


def test_minimised(tmp_path):
    setup = Setup(run=5, door="fuzzing.faults:key_error")
    (failure,) = run(setup, [3])
    smallest = minimise(setup, failure, tmp_path)
    assert smallest.steps == ()
    assert not onnx.ModelProto.FromString(smallest.data).graph.node
    (folder,) = tmp_path.iterdir()
    assert {file.name for file in folder.iterdir()} >= {"fault.json", SOURCE}


def test_the_table_counts_every_mutant_once():
    summary = Summary()
    for outcome in run(Setup(door="fuzzing.faults:fine"), range(20)):
        summary.add(outcome)
    table = summary.markdown().splitlines()
    assert len(table) == len(CLASSES) + 3
    assert table[-1].split("|")[-2].strip() == "20"
    assert summary.as_dict()["mutants"] == 20
