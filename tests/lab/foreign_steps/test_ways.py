"""Weights end where float32 takes them, or as near as exact float32 masters do: every level, policy, preset and rate.

The whole table is in docs/evidence/foreign_steps.md; lab/foreign_steps.py makes it.
"""

import functools

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
import foreign_steps
from foreign.library import by_hand
from foreign.own_steps import saved
from foreign.torch_steps import TORCH_NETWORKS
from foreign.ways import CONVERSIONS, DTYPES, Outcome, convert, masters_alone, measure, train
from foreign.writer import Writer
from tests.support import run

STEPS = 60


def plain_step(rate):
    """The step of the issue: `w` in, `w - rate * gradient` out, whose loss starts near 7.6."""
    w = Writer()
    start = np.random.default_rng(3).normal(0, 0.68, (16, 4)).astype(np.float32)
    x, t, weight = w.input("x", (8, 16)), w.input("t", (8, 4)), w.state("w", start)
    residual = w("Sub", w("MatMul", x, weight), t)
    loss = w("Div", w("ReduceSum", w("Mul", residual, residual), keepdims=0), w.constant(8.0))
    gradient = w("MatMul", w("Transpose", x, perm=[1, 0]), w("Div", residual, w.constant(4.0)))
    w.replace("w", w("Sub", weight, w("Mul", w.constant(rate), gradient)), start, "parameter")
    generator = np.random.default_rng(4)
    x = generator.normal(0, 0.3, (8, 16)).astype(np.float32)
    t = (x @ generator.normal(0, 0.68, (16, 4))).astype(np.float32)
    return w.step(lambda _: {"x": x, "t": t}, loss)


@pytest.mark.parametrize("name", ["auto", "O1", "O2", "mp4", "default", "mxnet"])
def test_a_plain_step_at_a_small_rate_learns(name):
    step = plain_step(1e-5)
    batches = step.data(400)
    fp32 = train(step, batches)
    low = train(step, batches, convert(step, CONVERSIONS[name], "float16"))
    fallen = fp32.losses[0] - fp32.losses[-1]
    assert 0.001 < fallen / fp32.losses[0] < 0.01  # as slow as in the issue
    assert measure(step, fp32, low) < 0.01
    # The loss itself is read off in float16 at some levels, to three digits; the weights tell more.
    reached = float(run(step.model, {**low.states, **batches[0]})[step.loss])
    assert reached == pytest.approx(fp32.losses[-1], abs=0.05 * fallen)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONVERSIONS)
def test_every_level_policy_and_preset_goes_fp32s_way(name, dtype):
    assert_holds(*of_adam(), CONVERSIONS[name], dtype)


@functools.cache
def of_adam():
    return in_fp32(by_hand("mlp", "adam", 1e-5))


def in_fp32(step, count=STEPS):
    """Train in float32, which all conversions of the step are compared with."""
    batches = step.data(count)
    return step, batches, train(step, batches)


def assert_holds(step, batches, fp32, options, dtype):
    report = convert(step, options, dtype)
    assert report.low_nodes
    assert {state.input for state in report.states if not state.reason.startswith("the float32 master")} == {
        row.input for row in step.states
    }
    low = train(step, batches, report)
    outcome = Outcome(measure(step, fp32, low), measure(step, fp32, train(step, batches, masters_alone(step, report))))
    assert outcome.holds, outcome
    return report


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-3, 1e-5])
@pytest.mark.parametrize(("network", "optimizer"), foreign_steps.BY_HAND)
def test_every_step_by_hand(network, optimizer, rate):
    trained = in_fp32(by_hand(network, optimizer, rate), 40)
    for name in ("auto", "O1", "O2, low", "mxnet"):
        for dtype in DTYPES:
            assert_holds(*trained, CONVERSIONS[name], dtype)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("network", TORCH_NETWORKS)
def test_every_step_from_torch(network, exporter, exported_step):
    step, batches, fp32 = in_fp32(exported_step(network, exporter), 40)
    assert np.mean(fp32.losses[-9:]) < np.mean(fp32.losses[:9])
    roles = {row.role for row in step.states}
    assert roles >= {"parameter", "moment", "counter"}
    assert ("statistic" in roles) == (network != "transformer")
    for name in ("auto", "O2, low"):
        report = assert_holds(step, batches, fp32, CONVERSIONS[name], "float16")
        assert {s.input: s.role for s in report.states if s.input in step.start} == {
            s.input: s.role for s in step.states
        }


@pytest.mark.parametrize("name", ["auto", "O2", "mp4"])
def test_a_program_of_our_own_that_was_saved(tmp_path, name):
    assert_holds(*in_fp32(saved("fp32", tmp_path), 20), CONVERSIONS[name], "float16")


def test_masters_are_where_they_are_asked_for():
    step = by_hand("conv", "sgd")
    report = convert(step, CONVERSIONS["O2, low"], "float16")
    masters = {state.input: state.master for state in report.states if state.role == "parameter"}
    assert masters == {name: f"{name}_fp32_master_0" for name in step.parameters}
    types = {value.name: value.dtype.name for value in report.program.model.graph.inputs}
    assert {types[name] for name in masters} == {"FLOAT16"}
    assert {types[name] for name in masters.values()} == {"FLOAT"}


# ---- the measure itself ----


def test_a_rounded_update_is_seen(monkeypatch):
    monkeypatch.setattr("amp_transpiler.precision.training.mark_optimizer", lambda model, step: 0)
    step = by_hand("mlp", "sgd", 1e-5)
    batches = step.data(STEPS)
    report = convert(step, CONVERSIONS["O2"], "float16")
    fp32, exact = train(step, batches), train(step, batches, masters_alone(step, report))
    outcome = Outcome(measure(step, fp32, train(step, batches, report)), measure(step, fp32, exact))
    assert outcome.relative > 0.5
    assert outcome.expected < 0.05
    assert not outcome.holds


def test_exact_masters_round_what_is_low_and_nothing_of_the_update():
    step = by_hand("linear", "sgd")
    report = convert(step, CONVERSIONS["O2"], "float16")
    model = masters_alone(step, report)
    onnx.checker.check_model(model, full_check=True)
    cast = {node.input[0] for node in model.graph.node if node.op_type == "Cast"}
    assert {"x", "a"} <= cast
    assert not cast & {row.output for row in step.states}
    nothing = amp.Report("m", "O2", "float16", "cuda")
    assert masters_alone(step, nothing) == step.model


def test_the_script_prints_a_table(capsys):
    assert foreign_steps.main(["--only", "linear", "--steps", "5", "--rates", "1e-4", "--markdown"]) == 0
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head.split(" | ")[4:6] == ["auto", "OD"]
    assert rule.count("---") == len(CONVERSIONS) + 4
    assert [row.split(" | ")[:3] for row in rows] == [["| linear, sgd", "0.0001", dtype] for dtype in DTYPES]


@pytest.mark.parametrize(("outcome", "cell"), [((0.01, 9), "1"), ((0.07, 0.06), "7 (6)"), ((0.07, 0.01), "7 (1)!")])
def test_a_cell(outcome, cell):
    assert foreign_steps._cell(Outcome(*outcome)) == cell
